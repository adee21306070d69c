{{/* Values that contradict each other end the rendering with the reason and what to do. */}}
{{- define "ms.checks" -}}
{{- $v := .Values -}}
{{- $external := eq $v.store.kind "external" -}}
{{- if and (not $external) (gt (int $v.replicas) 1) -}}
{{- fail (printf "replicas is %d, but an embedded store has one writer: set replicas to 1, or store.kind to external" (int $v.replicas)) -}}
{{- end -}}
{{- if and (not $external) $v.autoscaling.enabled -}}
{{- fail "autoscaling.enabled needs store.kind external: an embedded store has one writer" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and $external (not $v.store.external.url) -}}
{{- fail "store.kind is external: set store.external.url, such as clickhouse://memories@clickhouse:8123/memories" -}}
{{- end -}}
{{- if and $external (regexMatch "^[a-z]+://[^/@]*:[^/@]*@" $v.store.external.url) -}}
{{- fail "store.external.url holds a password, which everybody who reads the release would see: use store.external.existingSecret" -}}
{{- end -}}
{{- if and $v.store.external.password $v.store.external.existingSecret -}}
{{- fail "store.external.password and store.external.existingSecret are both set: keep one" -}}
{{- end -}}
{{- if and $v.store.external.caSecret (not (regexMatch "^[a-z]+s://" $v.store.external.url)) -}}
{{- fail "store.external.caSecret is set, but store.external.url asks for no certificate: begin it with clickhouses:// or myscales://" -}}
{{- end -}}
{{- if and (not $external) $v.store.external.url -}}
{{- fail "store.external.url is set, but store.kind is embedded: set store.kind to external, or drop the url" -}}
{{- end -}}
{{- $mtls := and $v.tls.enabled $v.tls.clientCaSecret -}}
{{- if and (ne $v.service.type "ClusterIP") (not $v.auth.enabled) -}}
{{- fail (printf "service.type is %s without authentication: set auth.enabled" $v.service.type) -}}
{{- end -}}
{{- if and $mtls (not $v.auth.enabled) -}}
{{- fail "tls.clientCaSecret says who may connect, and the key file what they may do: set auth.enabled" -}}
{{- end -}}
{{- if and (ne $v.service.type "ClusterIP") $v.auth.enabled (not $v.tls.enabled) -}}
{{- fail (printf "service.type is %s without TLS: API keys would travel in the clear; set tls.enabled" $v.service.type) -}}
{{- end -}}
{{- if and $v.tls.enabled $v.tls.existingSecret $v.tls.certManager.enabled -}}
{{- fail "tls.existingSecret and tls.certManager.enabled are both set: keep one" -}}
{{- end -}}
{{- if and $v.tls.enabled (not $v.tls.existingSecret) (not $v.tls.certManager.enabled) -}}
{{- fail "tls.enabled needs tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and (not $v.tls.enabled) (or $v.tls.existingSecret $v.tls.clientCaSecret $v.tls.certManager.enabled) -}}
{{- fail "tls values are set, but tls.enabled is false: the service would serve in the clear" -}}
{{- end -}}
{{- if and $mtls (or $v.ingestion.enabled $v.backup.enabled) (not $v.tls.existingClientSecret) -}}
{{- fail "tls.clientCaSecret asks clients for a certificate: ingestion and backup need tls.existingClientSecret" -}}
{{- end -}}
{{- if and $v.tls.certManager.enabled (not $v.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.enabled needs tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- if and $v.auth.enabled (not $v.auth.generate) (not $v.auth.apiKey) (not $v.auth.existingSecret) -}}
{{- fail "auth.enabled needs auth.generate, auth.apiKey or auth.existingSecret (a Secret with keys.json of `memory-service keys`)" -}}
{{- end -}}
{{- if and $v.auth.apiKey $v.auth.existingSecret -}}
{{- fail "auth.apiKey and auth.existingSecret are both set: keep one" -}}
{{- end -}}
{{- if and $v.auth.apiKey (not (regexMatch "^m3_[0-9a-f]{12}_[A-Za-z0-9_-]{32,}$" $v.auth.apiKey)) -}}
{{- fail "auth.apiKey is no key: make one with `memory-service keys create NAME --grant '*:admin' --keys keys.json`" -}}
{{- end -}}
{{- if eq (toString (default $v.image.tag $v.image.digest)) "latest" -}}
{{- fail "image.tag latest is refused: name a version, or a digest" -}}
{{- end -}}
{{- if eq (toString $v.ingestion.image.tag) "latest" -}}
{{- fail "ingestion.image.tag latest is refused: name a version" -}}
{{- end -}}
{{- if and $v.ingestion.enabled (not $v.ingestion.source.existingClaim) -}}
{{- fail "ingestion.enabled needs ingestion.source.existingClaim: the claim with the documents" -}}
{{- end -}}
{{- if and $v.ingestion.enabled $v.auth.enabled (not (include "ms.clientSecret" .)) -}}
{{- fail "ingestion.enabled with auth.existingSecret needs auth.existingClientSecret: a Secret with an api-key that may write" -}}
{{- end -}}
{{- if $v.backup.enabled -}}
{{- if not $v.backup.target -}}
{{- fail "backup.enabled needs backup.target: s3://bucket/path, or a path below backup.existingClaim" -}}
{{- end -}}
{{- if and (not (hasPrefix "s3://" $v.backup.target)) (not $v.backup.existingClaim) -}}
{{- fail "backup.target is a path: set backup.existingClaim to the claim it lies on" -}}
{{- end -}}
{{- if and $v.auth.enabled (not (include "ms.clientSecret" .)) -}}
{{- fail "backup.enabled with auth.existingSecret needs auth.existingClientSecret: a Secret with an api-key that may administer" -}}
{{- end -}}
{{- end -}}
{{- if and $v.tls.enabled (not $v.metrics.enabled) -}}
{{- fail "tls.enabled needs metrics.enabled: the kubelet's probes know no TLS and ask the metrics port" -}}
{{- end -}}
{{- if and (not $v.metrics.enabled) (or $v.metrics.serviceMonitor.enabled $v.metrics.prometheusRule.enabled) -}}
{{- fail "metrics.serviceMonitor and metrics.prometheusRule need metrics.enabled" -}}
{{- end -}}
{{- $grace := get $v.settings "shutdown_grace_s" | default 20 -}}
{{- if le (int $v.terminationGracePeriodSeconds) (add (int $grace) (int $v.preStopSleepSeconds)) -}}
{{- fail (printf "terminationGracePeriodSeconds (%d) must be more than settings.shutdown_grace_s (%d) and preStopSleepSeconds (%d) together: calls under way would be killed" (int $v.terminationGracePeriodSeconds) (int $grace) (int $v.preStopSleepSeconds)) -}}
{{- end -}}
{{- end -}}
