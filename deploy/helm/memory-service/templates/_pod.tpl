{{/* The file that MEMORY_SERVICE_CONFIG names: what the chart sets, then `settings`, then the chart's own defaults. */}}
{{- define "ms.toml" -}}
{{- $v := .Values -}}
{{- $set := dict "listen" (printf "0.0.0.0:%d" (int $v.service.containerPort)) "metrics_listen" (printf "0.0.0.0:%d" (int $v.metrics.port)) -}}
{{- $defaults := dict "shutdown_delay_s" 5 -}}
{{- if eq $v.store.kind "embedded" -}}
{{- $_ := set $set "store" "file:///srv/memories/store" -}}
{{- else -}}
{{- $_ := set $defaults "connection_age_s" 300 -}}
{{- $_ := set $set "store" $v.store.external.url -}}
{{- if $v.store.external.cluster -}}{{- $_ := set $set "store_cluster" $v.store.external.cluster -}}{{- end -}}
{{- end -}}
{{- if include "ms.backupsWatched" . -}}
{{- $_ := set $set "backups" (include "ms.backupTarget" .) -}}
{{- $_ := set $set "backups_max_age_h" (float64 $v.backup.maxAgeHours) -}}
{{- with $v.backup.knowledgeBases -}}{{- $_ := set $set "backups_of" (join "," .) -}}{{- end -}}
{{- end -}}
{{- if $v.auth.enabled -}}{{- $_ := set $set "keys" "/etc/memory-service/keys/keys.json" -}}{{- end -}}
{{- if $v.tls.enabled -}}
{{- $_ := set $set "tls_certificate" "/etc/memory-service/tls/tls.crt" -}}
{{- $_ := set $set "tls_key" "/etc/memory-service/tls/tls.key" -}}
{{- if $v.tls.clientCaSecret -}}{{- $_ := set $set "tls_client_ca" "/etc/memory-service/client-ca/ca.crt" -}}{{- end -}}
{{- end -}}
{{- if not (or $v.auth.enabled $v.tls.clientCaSecret) -}}{{- $_ := set $set "insecure" true -}}{{- end -}}
{{- range $name, $value := $v.settings -}}
{{- if hasKey $set $name -}}
{{- fail (printf "settings.%s is set by other values of the chart: remove it" $name) -}}
{{- end -}}
{{- if kindIs "float64" $value -}}
{{- $_ := set $set $name (ternary (int64 $value) $value (eq $value (floor $value))) -}}
{{- else -}}
{{- $_ := set $set $name $value -}}
{{- end -}}
{{- end -}}
{{ toToml (merge $set $defaults) }}
{{- end -}}

{{/* Where backups are, as a container with the claim at /backups knows it. */}}
{{- define "ms.backupTarget" -}}
{{- $target := .Values.backup.target -}}
{{ ternary $target (printf "/backups/%s" $target) (hasPrefix "s3://" $target) }}
{{- end -}}

{{/* Whether the serving pods read how old the backups are. */}}
{{- define "ms.backupsWatched" -}}
{{- with .Values.backup -}}
{{- if and .enabled (or (hasPrefix "s3://" .target) .claimShared) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* (dict "root" $ "image" .Values.image): what every container of the chart has. */}}
{{- define "ms.container" -}}
image: {{ include "ms.image" . | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext: {{- toYaml .root.Values.containerSecurityContext | nindent 2 }}
{{- end -}}

{{/* (dict "root" $), with "nodeSelector" and "tolerations" of a pod that has its own, and "hook" for one that runs
before the release's ServiceAccount exists: what every pod of the chart has. */}}
{{- define "ms.podSettings" -}}
{{- $v := .root.Values -}}
automountServiceAccountToken: false
{{- if not .hook }}
serviceAccountName: {{ include "ms.serviceAccount" .root | quote }}
{{- end }}
{{- with $v.imagePullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- $default := dict "seccompProfile" (dict "type" "RuntimeDefault") }}
securityContext: {{- toYaml (merge (dict "runAsNonRoot" true) $v.podSecurityContext $default) | nindent 2 }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with default $v.nodeSelector .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat $v.tolerations (.tolerations | default list) }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "ms.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ms.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What a container needs that reads the service's settings: in the service, in workers that write memories with its
model, in the migration of its store. */}}
{{- define "ms.configEnv" -}}
- {name: MEMORY_SERVICE_CONFIG, value: /etc/memory-service/config/service.toml}
{{- end -}}

{{- define "ms.configMount" -}}
- {name: config, mountPath: /etc/memory-service/config, readOnly: true}
{{- end -}}

{{/* The name of the ConfigMap. */}}
{{- define "ms.configVolume" -}}
- name: config
  configMap: {name: {{ . | quote }}}
{{- end -}}

{{/* What a pod that opens the store needs. OpenSSL's variable: the ClickHouse client has no other way to
name an authority. */}}
{{- define "ms.storeEnv" -}}
{{- with .Values.store.external }}
{{- if .existingSecret -}}
- name: MEMORY_SERVICE_STORE_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .passwordKey | quote }}}
{{- end }}
{{- if .caSecret }}
- {name: SSL_CERT_FILE, value: /etc/memory-service/store-ca/ca.crt}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ms.storeMounts" -}}
{{- if .Values.store.external.caSecret -}}
- {name: store-ca, mountPath: /etc/memory-service/store-ca, readOnly: true}
{{- end }}
{{- end -}}

{{- define "ms.storeVolumes" -}}
{{- with .Values.store.external.caSecret -}}
- name: store-ca
  secret:
    secretName: {{ . | quote }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end -}}

{{/* What a container that is a client of the service needs. */}}
{{- define "ms.clientEnv" -}}
{{- $key := include "ms.clientSecret" . -}}
{{- $tls := .Values.tls -}}
{{- $name := default (ternary "" (first (append $tls.certManager.dnsNames "")) $tls.certManager.clusterNames) $tls.serverName -}}
- {name: EDGE_CLIENT_SERVICE, value: {{ include "ms.address" . }}}
- {name: MEMORY_SERVICE_ADDRESS, value: {{ include "ms.address" . }}}
{{- range $program := list "MEMORY_SERVICE_CLIENT" "EDGE_CLIENT" }}
{{- if $key }}
- name: {{ $program }}_API_KEY
  valueFrom:
    secretKeyRef: {name: {{ $key | quote }}, key: api-key}
{{- end }}
{{- if $tls.enabled }}
- {name: {{ $program }}_TLS, value: "true"}
{{- if $tls.caKey }}
- {name: {{ $program }}_CA, value: /etc/memory-service/tls/ca.crt}
{{- end }}
{{- if $name }}
- {name: {{ $program }}_SERVER_NAME, value: {{ $name | quote }}}
{{- end }}
{{- if $tls.existingClientSecret }}
- {name: {{ $program }}_CERTIFICATE, value: /etc/memory-service/client/tls.crt}
- {name: {{ $program }}_KEY, value: /etc/memory-service/client/tls.key}
{{- end }}
{{- else if $key }}
# Without TLS the key travels in the clear, inside the cluster.
- {name: {{ $program }}_INSECURE, value: "true"}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ms.clientMounts" -}}
{{ include "ms.mounts" . }}
{{- if and .Values.tls.enabled .Values.tls.caKey }}
- {name: tls, mountPath: /etc/memory-service/tls, readOnly: true}
{{- end }}
{{- if .Values.tls.existingClientSecret }}
- {name: client, mountPath: /etc/memory-service/client, readOnly: true}
{{- end }}
{{- end -}}

{{- define "ms.clientVolumes" -}}
{{ include "ms.volumes" . }}
{{- if and .Values.tls.enabled .Values.tls.caKey }}
- name: tls
  secret:
    secretName: {{ include "ms.tlsSecret" . | quote }}
    items: [{key: {{ .Values.tls.caKey | quote }}, path: ca.crt}]
{{- end }}
{{- with .Values.tls.existingClientSecret }}
- name: client
  secret: {secretName: {{ . | quote }}}
{{- end }}
{{- end -}}

{{/* The serving pod. Its labels have no version: a new chart alone does not restart a store. */}}
{{- define "ms.pod" -}}
metadata:
  labels:
    {{- include "ms.podLabels" (list . "service") | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include "ms.toml" . | sha256sum }}
    checksum/store: {{ toJson .Values.store.external | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "ms.podSettings" (dict "root" .) | nindent 2 }}
  terminationGracePeriodSeconds: {{ int64 .Values.terminationGracePeriodSeconds }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq .Values.store.kind "external" }}
  topologySpreadConstraints:
    {{- $selector := dict "matchLabels" (include "ms.podLabels" (list . "service") | fromYaml) }}
    {{- range .Values.topologySpreadConstraints }}
    - {{ toYaml (merge . (dict "labelSelector" $selector)) | nindent 6 | trim }}
    {{- else }}
    {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - topologyKey: {{ $key }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      labelSelector: {{- toYaml $selector | nindent 8 }}
    {{- end }}
    {{- end }}
  {{- end }}
  containers:
    - name: service
      {{- include "ms.container" (dict "root" . "image" .Values.image) | nindent 6 }}
      args: [serve]
      env:
        {{- include "ms.configEnv" . | nindent 8 }}
        {{- include "ms.storeEnv" . | nindent 8 }}
      {{- if and (include "ms.backupsWatched" .) .Values.backup.existingSecret }}
      envFrom:
        - secretRef: {name: {{ .Values.backup.existingSecret | quote }}}
      {{- end }}
      ports:
        - {name: grpc, containerPort: {{ int64 .Values.service.containerPort }}}
        - {name: metrics, containerPort: {{ int64 .Values.metrics.port }}}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      readinessProbe:
        httpGet: {path: /ready, port: metrics}
        timeoutSeconds: 3
        periodSeconds: {{ int64 .Values.probes.readiness.periodSeconds }}
        failureThreshold: {{ int64 .Values.probes.readiness.failureThreshold }}
      {{- with .Values.probes.liveness }}
      {{- if .enabled }}
      livenessProbe:
        httpGet: {path: /live, port: metrics}
        timeoutSeconds: 10
        periodSeconds: {{ int64 .periodSeconds }}
        failureThreshold: {{ int64 .failureThreshold }}
      {{- end }}
      {{- end }}
      volumeMounts:
        {{- include "ms.mounts" . | nindent 8 }}
        {{- include "ms.configMount" . | nindent 8 }}
        {{- if eq .Values.store.kind "embedded" }}
        - {name: store, mountPath: /srv/memories}
        {{- end }}
        {{- include "ms.storeMounts" . | nindent 8 }}
        {{- if and (include "ms.backupsWatched" .) .Values.backup.existingClaim }}
        - {name: backups, mountPath: /backups, readOnly: true}
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
    {{- with .Values.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "ms.volumes" . | nindent 4 }}
    {{- include "ms.configVolume" (include "ms.fullname" .) | nindent 4 }}
    {{- with .Values.store.embedded.persistence }}
    {{- if ne $.Values.store.kind "embedded" }}
    {{- else if not .enabled }}
    - name: store
      emptyDir: {sizeLimit: {{ .size | quote }}}
    {{- else if .existingClaim }}
    - name: store
      persistentVolumeClaim: {claimName: {{ .existingClaim | quote }}}
    {{- end }}
    {{- end }}
    {{- include "ms.storeVolumes" . | nindent 4 }}
    {{- if and (include "ms.backupsWatched" .) .Values.backup.existingClaim }}
    - name: backups
      persistentVolumeClaim: {claimName: {{ .Values.backup.existingClaim | quote }}, readOnly: true}
    {{- end }}
    {{- if .Values.auth.enabled }}
    - name: keys
      secret:
        secretName: {{ include "ms.keysSecret" . | quote }}
        items: [{key: keys.json, path: keys.json}]
    {{- end }}
    {{- if .Values.tls.enabled }}
    - name: tls
      secret: {secretName: {{ include "ms.tlsSecret" . | quote }}}
    {{- if .Values.tls.clientCaSecret }}
    - name: client-ca
      secret: {secretName: {{ .Values.tls.clientCaSecret | quote }}}
    {{- end }}
    {{- end }}
{{- end -}}
