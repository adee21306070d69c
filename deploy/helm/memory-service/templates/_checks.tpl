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
{{- if and $v.store.external.caSecret (not (regexMatch "^[a-z]+s://" $v.store.external.url)) -}}
{{- fail "store.external.caSecret is set, but store.external.url asks for no certificate: begin it with clickhouses:// or myscales://" -}}
{{- end -}}
{{- if and (not $external) $v.store.external.url -}}
{{- fail "store.external.url is set, but store.kind is embedded: set store.kind to external, or drop the url" -}}
{{- end -}}
{{- if and $v.store.embedded.persistence.existingClaim (not $v.store.embedded.persistence.enabled) -}}
{{- fail "store.embedded.persistence.existingClaim is set, but store.embedded.persistence.enabled is false: a restart would lose every memory" -}}
{{- end -}}
{{- if and (not $v.auth.enabled) $v.auth.existingSecret -}}
{{- fail "auth.existingSecret is set, but auth.enabled is false: every caller could read and write" -}}
{{- end -}}
{{- if and (eq $v.service.type "ClusterIP") $v.service.externalTrafficPolicy -}}
{{- fail "service.externalTrafficPolicy is set, but service.type is ClusterIP, which has no traffic from outside: set the type, or drop the policy" -}}
{{- end -}}
{{- if and (ne $v.service.type "LoadBalancer") $v.service.loadBalancerSourceRanges -}}
{{- fail (printf "service.loadBalancerSourceRanges is set, but service.type is %s: nothing would be shut out; set it to LoadBalancer, or use networkPolicy.ingressFrom" $v.service.type) -}}
{{- end -}}
{{- range $of, $labels := dict "commonLabels" $v.commonLabels "podLabels" $v.podLabels -}}
{{- range $name := list "name" "instance" "component" -}}
{{- if hasKey $labels (printf "app.kubernetes.io/%s" $name) -}}
{{- fail (printf "%s has app.kubernetes.io/%s, by which the chart selects its pods: use another name" $of $name) -}}
{{- end -}}
{{- end -}}
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
{{- with $v.tls.certManager -}}
{{- $now := now -}}
{{- if and .enabled .renewBefore (ge (dateModify .renewBefore $now).Unix (dateModify .duration $now).Unix) -}}
{{- fail (printf "tls.certManager.renewBefore (%s) must be less than tls.certManager.duration (%s): leave it empty for a third of the lifetime" .renewBefore .duration) -}}
{{- end -}}
{{- end -}}
{{- if eq (toString (default $v.image.tag $v.image.digest)) "latest" -}}
{{- fail "image.tag latest is refused: name a version, or a digest" -}}
{{- end -}}
{{- if eq (toString (default $v.ingestion.image.tag $v.ingestion.image.digest)) "latest" -}}
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
{{- fail "backup.enabled with auth.existingSecret needs auth.existingClientSecret: a Secret with an api-key that may read" -}}
{{- end -}}
{{- end -}}
{{- if and $v.tls.certManager.enabled (not $v.tls.certManager.clusterNames) (not $v.tls.certManager.dnsNames) -}}
{{- fail "tls.certManager.clusterNames is false: set tls.certManager.dnsNames" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not $v.autoscaling.targetCPUUtilizationPercentage) (not $v.autoscaling.targetCallsUnderWay) -}}
{{- fail "autoscaling.enabled needs autoscaling.targetCPUUtilizationPercentage or autoscaling.targetCallsUnderWay" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled $v.autoscaling.targetCPUUtilizationPercentage -}}
{{- range $container := prepend $v.sidecars (dict "name" "service" "resources" $v.resources) -}}
{{- $of := $container.resources | default dict -}}
{{- if not (or (dig "requests" "cpu" "" $of) (dig "limits" "cpu" "" $of)) -}}
{{- fail (printf "autoscaling by CPU needs a CPU request of every container: %s has none; set it, or autoscaling.targetCPUUtilizationPercentage to 0" $container.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (int $v.service.containerPort) (int $v.metrics.port) -}}
{{- fail (printf "service.containerPort and metrics.port are both %d: gRPC and metrics need a port each" (int $v.metrics.port)) -}}
{{- end -}}
{{- if and $v.backup.enabled (has "*" $v.backup.knowledgeBases) -}}
{{- fail "backup.knowledgeBases has *: leave it empty for all of them" -}}
{{- end -}}
{{- range $name, $way := dict "ingress" $v.ingress "grpcRoute" $v.grpcRoute -}}
{{- if and $way.enabled (not $v.auth.enabled) -}}
{{- fail (printf "%s.enabled without authentication: set auth.enabled" $name) -}}
{{- end -}}
{{- end -}}
{{- if and $v.ingress.enabled (not (and $v.ingress.hosts $v.ingress.tlsSecret)) -}}
{{- fail "ingress.enabled needs ingress.hosts and ingress.tlsSecret: API keys would travel in the clear, and most controllers serve gRPC over TLS only" -}}
{{- end -}}
{{- if and $v.grpcRoute.enabled (not $v.grpcRoute.parentRefs) -}}
{{- fail "grpcRoute.enabled needs grpcRoute.parentRefs: the Gateways" -}}
{{- end -}}
{{- if and $v.metrics.prometheusRule.enabled (not $v.metrics.serviceMonitor.enabled) -}}
{{- fail "metrics.prometheusRule.enabled needs metrics.serviceMonitor.enabled, whose labels tell this release from others" -}}
{{- end -}}
{{- $grace := ternary (get $v.settings "shutdown_grace_s") 20 (hasKey $v.settings "shutdown_grace_s") -}}
{{- $delay := ternary (get $v.settings "shutdown_delay_s") 5 (hasKey $v.settings "shutdown_delay_s") -}}
{{- if le (int $v.terminationGracePeriodSeconds) (add (int $grace) (int $delay)) -}}
{{- fail (printf "terminationGracePeriodSeconds (%d) must be more than settings.shutdown_grace_s (%d) and settings.shutdown_delay_s (%d) together: calls under way would be killed" (int $v.terminationGracePeriodSeconds) (int $grace) (int $delay)) -}}
{{- end -}}
{{- end -}}
