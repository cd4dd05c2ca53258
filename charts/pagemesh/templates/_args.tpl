{{/* Arguments of the processes. */}}

{{/* A flag with one value, left out when the value is empty or 0. Takes (list "--flag" value). */}}
{{- define "pagemesh.flag" -}}
{{- $value := index . 1 -}}
{{- if $value }}
- {{ index . 0 }}
- {{ include "pagemesh.text" $value | quote }}
{{- end -}}
{{- end -}}

{{/* A value as a flag's text: whole numbers without an exponent. */}}
{{- define "pagemesh.text" -}}
{{- if kindIs "float64" . -}}
{{- eq (floor .) . | ternary (int64 . | toString) (toString .) -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* What every process but the gateway is told. Takes (dict "root" $ "settings" values of the role). */}}
{{- define "pagemesh.serverArgs" -}}
- --host
- {{ .root.Values.listenAddress | quote }}
- --port
- "9000"
- --metrics-port
- "9090"
- --grace-period
- {{ include "pagemesh.text" .settings.gracePeriod | quote }}
- --log-level
- {{ .root.Values.logLevel }}
- --log-format
- {{ .root.Values.logFormat }}
{{- include "pagemesh.meshFlags" .root }}
{{- end -}}

{{/* Certificates between the processes, the same for every process and for `pagemesh health`. */}}
{{- define "pagemesh.meshFlags" -}}
{{- if .Values.meshTls.enabled }}
- --mesh-cert
- /etc/pagemesh/mesh-tls/tls.crt
- --mesh-key
- /etc/pagemesh/mesh-tls/tls.key
- --mesh-ca
- /etc/pagemesh/mesh-tls/ca.crt
{{- end }}
{{- end -}}

{{/* Flags of the user's own, at the end, where they win. */}}
{{- define "pagemesh.extraArgs" -}}
{{- range .extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Takes (dict "root" $ "settings" settings "model" entry). */}}
{{- define "pagemesh.workerArgs" -}}
{{- $settings := .settings -}}
{{- $brackets := contains ":" .root.Values.listenAddress -}}
{{ include "pagemesh.serverArgs" . }}
- --kvstore
- {{ include "pagemesh.kvstores" .root | quote }}
- --worker-id
- $(POD_NAME)
- --advertise
- {{ $brackets | ternary "[$(POD_IP)]:9000" "$(POD_IP):9000" | quote }}
- --model
- {{ include "pagemesh.modelSource" .model | quote }}
- --served-model-name
- {{ include "pagemesh.servedName" .model | quote }}
- --device
- {{ empty $settings.gpus | ternary "cpu" "cuda" }}
{{- if eq .model.source.type "hub" }}
{{- include "pagemesh.flag" (list "--revision" .model.source.revision) }}
{{- end }}
{{- include "pagemesh.flag" (list "--dtype" .model.dtype) }}
{{- include "pagemesh.flag" (list "--quantization" .model.quantization) }}
{{- include "pagemesh.flag" (list "--max-model-len" .model.maxModelLen) }}
{{- include "pagemesh.flag" (list "--block-size" .model.blockSize) }}
{{- include "pagemesh.flag" (list "--kv-cache-dtype" .model.kvCacheDtype) }}
{{- include "pagemesh.flag" (list "--gpu-memory-utilization" $settings.gpuMemoryUtilization) }}
{{- include "pagemesh.flag" (list "--kv-cache-memory" $settings.kvCacheMemory) }}
{{- include "pagemesh.flag" (list "--swap-space" $settings.swapSpace) }}
{{- include "pagemesh.flag" (list "--max-num-seqs" $settings.maxNumSeqs) }}
{{- include "pagemesh.flag" (list "--max-num-batched-tokens" $settings.maxNumBatchedTokens) }}
{{- include "pagemesh.flag" (list "--threads" $settings.threads) }}
{{- include "pagemesh.extraArgs" $settings }}
{{- end -}}

{{- define "pagemesh.routerArgs" -}}
{{- $settings := .Values.router -}}
{{ include "pagemesh.serverArgs" (dict "root" . "settings" $settings) }}
- --kvstore
- {{ include "pagemesh.kvstores" . | quote }}
- --model
{{- range .Values.models }}
{{- if and (eq .source.type "hub") (not .servedName) }}
- {{ include "pagemesh.modelSource" . | quote }}
{{- else }}
- {{ printf "%s=%s" (include "pagemesh.servedName" .) (include "pagemesh.modelSource" .) | quote }}
{{- end }}
{{- end }}
{{- with (index .Values.models 0).source }}
{{- if eq .type "hub" }}
{{- include "pagemesh.flag" (list "--revision" .revision) }}
{{- end }}
{{- end }}
{{- with $settings.modelAliases }}
- --model-alias
{{- range . }}
- {{ . | quote }}
{{- end }}
{{- end }}
- --policy
- {{ $settings.policy }}
{{- include "pagemesh.flag" (list "--request-timeout" $settings.requestTimeout) }}
{{- include "pagemesh.flag" (list "--max-waiting-requests" $settings.maxWaitingRequests) }}
{{- if ne $settings.generationConfig "auto" }}
- --generation-config
- {{ $settings.generationConfig | quote }}
{{- end }}
{{- with $settings.overrideGenerationConfig }}
- --override-generation-config
- {{ toJson . | quote }}
{{- end }}
{{- with $settings.defaultChatTemplateKwargs }}
- --default-chat-template-kwargs
- {{ toJson . | quote }}
{{- end }}
{{- if $settings.explainRoutes }}
- --explain-routes
{{- end }}
{{- include "pagemesh.flag" (list "--requests-per-minute" $settings.requestsPerMinute) }}
{{- include "pagemesh.flag" (list "--tokens-per-minute" $settings.tokensPerMinute) }}
{{- include "pagemesh.flag" (list "--concurrent-requests" $settings.concurrentRequests) }}
{{- include "pagemesh.flag" (list "--max-output-tokens" $settings.maxOutputTokens) }}
{{- include "pagemesh.flag" (list "--max-output-tokens-policy" $settings.maxOutputTokensPolicy) }}
{{- $most := $settings.autoscaling.enabled | ternary $settings.autoscaling.maxReplicas $settings.replicas }}
{{- include "pagemesh.flag" (list "--limits-shared-by" (default $most $settings.limitsSharedBy)) }}
{{- if or .Values.auth.keyFile .Values.auth.keyFileSecret }}
- --api-key-file
- /etc/pagemesh/keys/keys.yaml
{{- end }}
{{- if .Values.auth.openMetrics }}
- --open-metrics
{{- end }}
{{- include "pagemesh.extraArgs" $settings }}
{{- end -}}

{{- define "pagemesh.gatewayArgs" -}}
{{- $settings := .Values.gateway -}}
- --host
- {{ .Values.listenAddress | quote }}
- --port
- "8000"
- --log-format
- {{ .Values.logFormat }}
- --routers
- {{ include "pagemesh.fullname" . }}-router:9000
- --grace-period
- {{ include "pagemesh.text" $settings.gracePeriod | quote }}
{{- include "pagemesh.flag" (list "--concurrency" $settings.concurrency) }}
{{- include "pagemesh.flag" (list "--max-body-size" $settings.maxBodySize) }}
{{- include "pagemesh.flag" (list "--max-request-time" $settings.maxRequestTime) }}
- --allowed-origins
{{- range $settings.allowedOrigins }}
- {{ . | quote }}
{{- end }}
{{- if $settings.accessLog }}
- --access-log
- "-"
{{- end }}
{{- if include "pagemesh.hasAuth" . }}
- --api-key-required
{{- end }}
{{- if .Values.clientTls.enabled }}
- --ssl-certfile
- /etc/pagemesh/client-tls/tls.crt
- --ssl-keyfile
- /etc/pagemesh/client-tls/tls.key
{{- if .Values.clientTls.clientCaSecret }}
- --ssl-ca-certs
- /etc/pagemesh/client-ca/ca.crt
{{- end }}
{{- end }}
{{- include "pagemesh.meshFlags" . }}
{{- include "pagemesh.extraArgs" $settings }}
{{- end -}}

{{- define "pagemesh.kvstoreArgs" -}}
{{- $settings := .Values.kvstore -}}
{{ include "pagemesh.serverArgs" (dict "root" . "settings" $settings) }}
{{- include "pagemesh.flag" (list "--heartbeat-interval" $settings.heartbeatInterval) }}
{{- include "pagemesh.flag" (list "--index-max-blocks" $settings.indexMaxBlocks) }}
{{- if ne .Values.redis.type "none" }}
- --index
- {{ include "pagemesh.redisUrl" . | quote }}
{{- end }}
{{- include "pagemesh.extraArgs" $settings }}
{{- end -}}

{{/* A password is put in by the kubelet, from a secret: it is in no object of Kubernetes. */}}
{{- define "pagemesh.redisUrl" -}}
{{- with .Values.redis -}}
{{- $bundled := eq .type "bundled" -}}
{{- $host := $bundled | ternary (printf "%s-redis" (include "pagemesh.fullname" $)) .host -}}
{{- $port := $bundled | ternary 6379 .port -}}
{{- $password := empty .existingSecret | ternary "" ":$(REDIS_PASSWORD)@" -}}
{{- printf "%s://%s%s:%d/%d" (.tls | ternary "rediss" "redis") $password $host (int $port) (int .database) -}}
{{- end -}}
{{- end -}}
