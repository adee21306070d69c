{{/* The file that MEMORY_SERVICE_CONFIG names: what the chart sets, then `settings`. */}}
{{- define "ms.toml" -}}
{{- $v := .Values -}}
{{- $set := dict "listen" (printf "0.0.0.0:%d" (int $v.service.port)) -}}
{{- if eq $v.store.kind "embedded" -}}
{{- $_ := set $set "store" (printf "%s:///srv/memories/store" $v.store.embedded.engine) -}}
{{- else -}}
{{- $_ := set $set "store" $v.store.external.url -}}
{{- if $v.store.external.cluster -}}{{- $_ := set $set "store_cluster" $v.store.external.cluster -}}{{- end -}}
{{- end -}}
{{- if $v.auth.enabled -}}{{- $_ := set $set "keys" "/etc/memory-service/keys/keys.json" -}}{{- end -}}
{{- if $v.tls.enabled -}}
{{- $_ := set $set "tls_certificate" "/etc/memory-service/tls/tls.crt" -}}
{{- $_ := set $set "tls_key" "/etc/memory-service/tls/tls.key" -}}
{{- if $v.tls.clientCaSecret -}}{{- $_ := set $set "tls_client_ca" "/etc/memory-service/client-ca/ca.crt" -}}{{- end -}}
{{- end -}}
{{- if not (or $v.auth.enabled $v.tls.clientCaSecret) -}}{{- $_ := set $set "insecure" true -}}{{- end -}}
{{- if $v.metrics.enabled -}}{{- $_ := set $set "metrics_listen" (printf "0.0.0.0:%d" (int $v.metrics.port)) -}}{{- end -}}
{{- range $name, $value := $v.settings -}}
{{- if hasKey $set $name -}}
{{- fail (printf "settings.%s is what the chart sets by its own values: remove it" $name) -}}
{{- end -}}
{{- if kindIs "float64" $value -}}
{{- $_ := set $set $name (ternary (int64 $value) $value (eq $value (floor $value))) -}}
{{- else -}}
{{- $_ := set $set $name $value -}}
{{- end -}}
{{- end -}}
{{ toToml $set }}
{{- end -}}

{{- define "ms.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "ms.env" -}}
- name: MEMORY_SERVICE_CONFIG
  value: /etc/memory-service/config/service.toml
{{- if include "ms.hasStorePassword" . }}
- name: MEMORY_SERVICE_STORE_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "ms.storeSecret" . }}
      key: {{ ternary .Values.store.external.passwordKey "password" (ne .Values.store.external.existingSecret "") }}
{{- end }}
{{- if .Values.store.external.caSecret }}
{{ include "ms.storeCaEnv" . }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* OpenSSL's own variable: the ClickHouse client has no other door for an authority. */}}
{{- define "ms.storeCaEnv" -}}
- {name: SSL_CERT_FILE, value: /etc/memory-service/store-ca/ca.crt}
{{- end -}}

{{- define "ms.storeCaMount" -}}
- {name: store-ca, mountPath: /etc/memory-service/store-ca, readOnly: true}
{{- end -}}

{{- define "ms.storeCaVolume" -}}
- name: store-ca
  secret:
    secretName: {{ .Values.store.external.caSecret }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end -}}

{{/* Environment of a container that is a client of the service. */}}
{{- define "ms.clientEnv" -}}
- name: EDGE_CLIENT_SERVICE
  value: {{ include "ms.address" . }}
- name: MEMORY_SERVICE_ADDRESS
  value: {{ include "ms.address" . }}
{{- with include "ms.clientSecret" . }}
- name: MEMORY_SERVICE_CLIENT_API_KEY
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: api-key}
- name: EDGE_CLIENT_API_KEY
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: api-key}
{{- end }}
{{- if and (include "ms.clientSecret" .) (not .Values.tls.enabled) }}
# Inside the cluster without TLS: the key travels in the clear, which auth without tls.enabled permits.
- {name: MEMORY_SERVICE_CLIENT_INSECURE, value: "true"}
- {name: EDGE_CLIENT_INSECURE, value: "true"}
{{- end }}
{{- if .Values.tls.enabled }}
- name: MEMORY_SERVICE_CLIENT_CA
  value: /etc/memory-service/tls/ca.crt
- name: EDGE_CLIENT_CA
  value: /etc/memory-service/tls/ca.crt
{{- end }}
{{- if .Values.tls.existingClientSecret }}
{{- range $program := list "MEMORY_SERVICE_CLIENT" "EDGE_CLIENT" }}
- {name: {{ $program }}_CERTIFICATE, value: /etc/memory-service/client/tls.crt}
- {name: {{ $program }}_KEY, value: /etc/memory-service/client/tls.key}
{{- end }}
{{- end }}
{{- end -}}

{{- define "ms.clientMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/memory-service/tls, readOnly: true}
{{- end }}
{{- if .Values.tls.existingClientSecret }}
- {name: client, mountPath: /etc/memory-service/client, readOnly: true}
{{- end }}
{{- end -}}

{{- define "ms.clientVolumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "ms.tlsSecret" . }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- with .Values.tls.existingClientSecret }}
- name: client
  secret: {secretName: {{ . }}}
{{- end }}
{{- end -}}

{{- define "ms.checksums" -}}
checksum/config: {{ include "ms.toml" . | sha256sum }}
checksum/store: {{ toJson .Values.store.external | sha256sum }}
{{- end -}}

{{/* The kubelet's gRPC probe knows no TLS: then the metrics port tells the same. */}}
{{- define "ms.probe" -}}
{{- if .Values.tls.enabled }}
httpGet: {path: /ready, port: metrics}
{{- else }}
grpc:
  port: {{ .Values.service.port }}
{{- end }}
timeoutSeconds: 3
{{- end -}}

{{- define "ms.podSettings" -}}
serviceAccountName: {{ include "ms.serviceAccount" . }}
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "ms.pod" -}}
metadata:
  labels:
    {{- include "ms.labels" . | nindent 4 }}
    app.kubernetes.io/component: service
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- include "ms.checksums" . | nindent 4 }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "ms.podSettings" . | nindent 2 }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq .Values.store.kind "external" }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- range .Values.topologySpreadConstraints }}
    - {{ toYaml . | nindent 6 | trim }}
      {{- if not .labelSelector }}
      labelSelector:
        matchLabels: {{- include "ms.selector" $ | nindent 10 }}
          app.kubernetes.io/component: service
      {{- end }}
    {{- end }}
    {{- else }}
    {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - topologyKey: {{ $key }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "ms.selector" $ | nindent 10 }}
          app.kubernetes.io/component: service
    {{- end }}
    {{- end }}
  {{- end }}
  containers:
    - name: service
      image: {{ include "ms.image" (dict "root" . "image" .Values.image) }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve]
      env: {{- include "ms.env" . | nindent 8 }}
      ports:
        - {name: grpc, containerPort: {{ .Values.service.port }}}
        {{- if .Values.metrics.enabled }}
        - {name: metrics, containerPort: {{ .Values.metrics.port }}}
        {{- end }}
      securityContext: {{- include "ms.containerSecurity" . | nindent 8 }}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      {{- range $kind := list "startup" "readiness" "liveness" }}
      {{- $probe := get $.Values.probes $kind }}
      {{- if $probe.enabled }}
      {{ $kind }}Probe:
        {{- include "ms.probe" $ | trim | nindent 8 }}
        periodSeconds: {{ $probe.periodSeconds }}
        failureThreshold: {{ $probe.failureThreshold }}
      {{- end }}
      {{- end }}
      {{- if .Values.preStopSleepSeconds }}
      lifecycle:
        preStop:
          exec:
            command: [sleep, {{ .Values.preStopSleepSeconds | quote }}]
      {{- end }}
      volumeMounts:
        - {name: config, mountPath: /etc/memory-service/config, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if eq .Values.store.kind "embedded" }}
        - {name: store, mountPath: /srv/memories}
        {{- end }}
        {{- if .Values.store.external.caSecret }}
        {{- include "ms.storeCaMount" . | nindent 8 }}
        {{- end }}
        {{- if .Values.auth.enabled }}
        - {name: keys, mountPath: /etc/memory-service/keys, readOnly: true}
        {{- end }}
        {{- if .Values.tls.enabled }}
        - {name: tls, mountPath: /etc/memory-service/tls, readOnly: true}
        {{- if .Values.tls.clientCaSecret }}
        - {name: client-ca, mountPath: /etc/memory-service/client-ca, readOnly: true}
        {{- end }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "ms.fullname" . }}}
    - name: tmp
      emptyDir: {}
    {{- if and (eq .Values.store.kind "embedded") (not .Values.store.embedded.persistence.enabled) }}
    - name: store
      emptyDir: {sizeLimit: {{ .Values.store.embedded.persistence.size }}}
    {{- else if and (eq .Values.store.kind "embedded") .Values.store.embedded.persistence.existingClaim }}
    - name: store
      persistentVolumeClaim: {claimName: {{ .Values.store.embedded.persistence.existingClaim }}}
    {{- end }}
    {{- if .Values.store.external.caSecret }}
    {{- include "ms.storeCaVolume" . | nindent 4 }}
    {{- end }}
    {{- if .Values.auth.enabled }}
    - name: keys
      secret:
        secretName: {{ include "ms.keysSecret" . }}
        items: [{key: keys.json, path: keys.json}]
    {{- end }}
    {{- if .Values.tls.enabled }}
    - name: tls
      secret: {secretName: {{ include "ms.tlsSecret" . }}}
    {{- if .Values.tls.clientCaSecret }}
    - name: client-ca
      secret: {secretName: {{ .Values.tls.clientCaSecret }}}
    {{- end }}
    {{- end }}
{{- end -}}
