{{/* What is allowed and rarely meant, for NOTES.txt. */}}
{{- define "pagemesh.warnings" -}}
{{- $found := list -}}
{{- with .Values -}}
{{- if not (include "pagemesh.hasAuth" $) }}{{ $found = append $found "auth is empty: everybody who reaches the gateway may call." }}{{ end -}}
{{- if not .meshTls.enabled }}{{ $found = append $found "meshTls.enabled is false: prompts travel between the pods in the clear." }}{{ end -}}
{{- if and (ne .gateway.service.type "ClusterIP") (not .clientTls.enabled) }}{{ $found = append $found (printf "gateway.service.type is %s without clientTls: keys and prompts arrive in the clear." .gateway.service.type) }}{{ end -}}
{{- if and .gatewayApi.enabled .clientTls.enabled }}{{ $found = append $found "clientTls.enabled is true: the Gateway needs a BackendTLSPolicy to reach the mesh's gateway." }}{{ end -}}
{{- if not .networkPolicy.enabled }}{{ $found = append $found "networkPolicy.enabled is false: every pod of the cluster reaches every part of the mesh." }}{{ end -}}
{{- if eq .redis.type "bundled" }}{{ $found = append $found "redis.type is bundled: one pod without password or TLS, for tests." }}{{ end -}}
{{- if lt (float64 .router.gracePeriod) (float64 .router.requestTimeout) }}{{ $found = append $found (printf "router.gracePeriod is %v, less than router.requestTimeout, %v: an update may cut off the longest answers." .router.gracePeriod .router.requestTimeout) }}{{ end -}}
{{- if and .gateway.enabled (lt (float64 .gateway.gracePeriod) (float64 .router.requestTimeout)) }}{{ $found = append $found (printf "gateway.gracePeriod is %v, less than router.requestTimeout, %v: an update may cut off the longest answers." .gateway.gracePeriod .router.requestTimeout) }}{{ end -}}
{{- if and (include "pagemesh.hasSource" (dict "root" $ "type" "hub")) (eq .modelCache.type "emptyDir") }}{{ $found = append $found "modelCache.type is emptyDir: every pod downloads its model again when it is replaced." }}{{ end -}}
{{- range $cache := list "modelCache" "kernelCache" -}}
{{- with get $.Values $cache -}}
{{- if and (eq .type "claim") (not .existingClaim) (not (has "ReadWriteMany" .accessModes)) }}{{ $found = append $found (printf "%s.accessModes lacks ReadWriteMany: pods on a second node will wait for the volume for ever." $cache) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $model := .Values.models -}}
{{- range $role := list "prefill" "decode" -}}
{{- $settings := include "pagemesh.workerSettings" (dict "root" $ "role" $role "model" $model) | fromYaml -}}
{{- $where := printf "%s of model %s" $role $model.name -}}
{{- if gt (int $settings.gpus) 1 }}{{ $found = append $found (printf "gpus is %d for %s: a worker uses one GPU." (int $settings.gpus) $where) }}{{ end -}}
{{- if $settings.multiNode.enabled }}{{ $found = append $found (printf "multiNode is on for %s: every pod of a group is a worker with a whole copy of the model." $where) }}{{ end -}}
{{- if and $settings.autoscaling.enabled (eq $.Values.monitoring.type "none") }}{{ $found = append $found (printf "autoscaling is on for %s, but monitoring.type is none: see that Prometheus finds the metrics." $where) }}{{ end -}}
{{- if and (eq $role "decode") (include "pagemesh.isGgufOfHub" $model) (lt (int $.Values.router.startupTimeout) (int $settings.startupTimeout)) }}{{ $found = append $found (printf "router.startupTimeout is %d, less than decode.startupTimeout, %d, and routers fetch the whole of %s." (int $.Values.router.startupTimeout) (int $settings.startupTimeout) $model.source.repository) }}{{ end -}}
{{- if and (eq $role "decode") (not $settings.autoscaling.enabled) (eq (int $settings.replicas) 0) }}{{ $found = append $found (printf "replicas is 0 for %s: nobody answers for it." $where) }}{{ end -}}
{{- if and (eq $role "decode") (not $settings.autoscaling.enabled) (eq (int $settings.replicas) 1) (not $settings.maxSurge) }}{{ $found = append $found (printf "replicas is 1 and maxSurge 0 for %s: an update leaves requests without a worker." $where) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with $found }}

To know:
{{- range . }}
  * {{ . }}
{{- end }}
{{- end -}}
{{- end -}}
