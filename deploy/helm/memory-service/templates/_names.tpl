{{- define "ms.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 45 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 45 letters: with a suffix a label has 63, and the name of a CronJob 52 (its Jobs add eleven). */}}
{{- define "ms.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else if contains (include "ms.name" .) .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "ms.name" .) | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ms.selector" -}}
app.kubernetes.io/name: {{ include "ms.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "ms.labels" -}}
{{ include "ms.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* (list $ component): labels of a pod, and the selector of those pods. */}}
{{- define "ms.podLabels" -}}
{{ include "ms.selector" (first .) }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- define "ms.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "ms.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* (dict "root" $ "image" .Values.image): what is not given is taken from the service's image. */}}
{{- define "ms.image" -}}
{{- $main := .root.Values.image -}}
{{- $repository := default $main.repository .image.repository -}}
{{- $digest := .image.digest | default (ternary $main.digest "" (eq $repository $main.repository)) -}}
{{- with default $main.registry .image.registry }}{{ . }}/{{ end -}}
{{- $repository -}}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ .image.tag | default $main.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "ms.keysSecret" -}}
{{- default (printf "%s-keys" (include "ms.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{/* The Secret with a key for the chart's own clients; empty without authentication. */}}
{{- define "ms.clientSecret" -}}
{{- if .Values.auth.enabled -}}
{{- if .Values.auth.existingClientSecret -}}
{{- .Values.auth.existingClientSecret -}}
{{- else if not .Values.auth.existingSecret -}}
{{- include "ms.keysSecret" . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether there is a `helm test`: it needs what the service asks of its clients. */}}
{{- define "ms.tested" -}}
{{- $key := or (not .Values.auth.enabled) (include "ms.clientSecret" .) -}}
{{- $certificate := or (not .Values.tls.clientCaSecret) .Values.tls.existingClientSecret -}}
{{- if and .Values.tests.enabled $key $certificate -}}true{{- end -}}
{{- end -}}

{{- define "ms.tlsSecret" -}}
{{- default (printf "%s-tls" (include "ms.fullname" .)) .Values.tls.existingSecret -}}
{{- end -}}

{{- define "ms.address" -}}
{{- printf "%s.%s.svc:%d" (include "ms.fullname" .) .Release.Namespace (int .Values.service.port) -}}
{{- end -}}
