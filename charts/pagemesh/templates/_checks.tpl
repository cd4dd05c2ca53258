{{/* What a schema cannot say: values that do not fit together. Each refusal names a key and its value. */}}

{{- define "pagemesh.checks" -}}
{{- include "pagemesh.checkModels" . -}}
{{- include "pagemesh.checkRoles" . -}}
{{- include "pagemesh.checkStore" . -}}
{{- include "pagemesh.checkSecrets" . -}}
{{- include "pagemesh.checkRoutes" . -}}
{{- include "pagemesh.checkLabels" (dict "root" . "where" "commonLabels" "labels" .Values.commonLabels "set" "pagemesh.ownLabels") -}}
{{- include "pagemesh.checkLabels" (dict "root" . "where" "monitoring.labels" "labels" .Values.monitoring.labels "set" "pagemesh.ownLabels") -}}
{{- include "pagemesh.checkUnused" . -}}
{{- end -}}

{{- define "pagemesh.checkModels" -}}
{{- $names := list -}}
{{- $served := list -}}
{{- range $i, $model := .Values.models -}}
{{- $key := printf "models[%d]" $i -}}
{{- $calls := include "pagemesh.servedName" . -}}
{{- if has .name $names }}{{ fail (printf "%s.name is %q, which another model is called too" $key .name) }}{{ end -}}
{{- if has $calls $served }}{{ fail (printf "%s.servedName is %q, which another model is called too" $key $calls) }}{{ end -}}
{{- $names = append $names .name -}}
{{- $served = append $served $calls -}}
{{- include "pagemesh.checkSource" (dict "root" $ "key" (printf "%s.source" $key) "source" .source) -}}
{{- range $role := list "prefill" "decode" -}}
{{- $settings := include "pagemesh.workerSettings" (dict "root" $ "role" $role "model" $model) | fromYaml -}}
{{- include "pagemesh.checkWorker" (dict "root" $ "role" $role "key" $key "model" $model "settings" $settings) -}}
{{- end -}}
{{- end -}}
{{- with .Values.router.generationConfig -}}
{{- if not (or (has . (list "auto" "vllm")) (eq (len $served) 1)) -}}
{{- fail (printf "router.generationConfig is %q, but several models cannot share a folder: set it to auto or vllm" .) -}}
{{- end -}}
{{- end -}}
{{- range .Values.router.modelAliases -}}
{{- $parts := regexSplit "=" . 2 -}}
{{- if has (first $parts) $served }}{{ fail (printf "router.modelAliases has %q, but %q is a model itself" . (first $parts)) }}{{ end -}}
{{- range $target := splitList "," (last $parts) -}}
{{- if not (or (has $target $served) (has (regexReplaceAll ":[0-9.]+$" $target "") $served)) -}}
{{- fail (printf "router.modelAliases names %q, but there are the models %s only" $target (join ", " $served)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pagemesh.checkSource" -}}
{{- $key := .key -}}
{{- with .source -}}
{{- $needed := get (dict
  "bundled" (list "path")
  "hub" (list "repository")
  "claim" (list "claimName")
  "image" (list "image")
  "init" (list "image")
) .type -}}
{{- range $needed -}}
{{- if not (get $.source .) }}{{ fail (printf "%s.%s is empty, but %s.type is %s, which needs it" $key . $key $.source.type) }}{{ end -}}
{{- end -}}
{{- if and (eq .type "bundled") (not (hasPrefix "/" (default "" .path))) -}}
{{- fail (printf "%s.path is %q, but must be a path in the image, from / on" $key .path) -}}
{{- end -}}
{{- if and (eq .type "init") (not .command) (not .path) -}}
{{- fail (printf "%s.path is empty, but without a command it says what is copied out of the image" $key) -}}
{{- end -}}
{{- if and .revision (ne .type "hub") -}}
{{- fail (printf "%s.revision is %q, but only models of the hub have revisions" $key .revision) -}}
{{- end -}}
{{- if and .revision (gt (len $.root.Values.models) 1) -}}
{{- fail (printf "%s.revision is %q, but routers with several models can pin none: take a model of which there is one commit, or an init container" $key .revision) -}}
{{- end -}}
{{- if and (eq .type "image") (semverCompare "<1.31-0" $.root.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "%s.type is image, but Kubernetes %s has no image volumes: 1.31 has them behind a feature gate, 1.35 by itself; init copies out of an image anywhere" $key $.root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pagemesh.checkWorker" -}}
{{- $settings := .settings -}}
{{- $where := .role -}}
{{- if get .model .role }}{{ $where = printf "%s.%s" .key .role }}{{ end -}}
{{- include "pagemesh.checkPods" (dict "root" .root "where" $where "settings" $settings "owned" (list "--kvstore" "--worker-id" "--advertise" "--model" "--served-model-name" "--quantization")) -}}
{{- $seqs := default 64 $settings.maxNumSeqs | int -}}
{{- $tokens := default 512 $settings.maxNumBatchedTokens | int -}}
{{- if lt $tokens $seqs -}}
{{- fail (printf "%s.maxNumBatchedTokens is %d, but must be at least %s.maxNumSeqs, %d: a decode of every running request must fit into a step" $where $tokens $where $seqs) -}}
{{- end -}}
{{- if and (hasPrefix "int8" (default "auto" .model.kvCacheDtype)) $settings.gpus -}}
{{- fail (printf "%s.kvCacheDtype is %s, which is for CPUs only, but %s.gpus is %d" .key .model.kvCacheDtype $where (int $settings.gpus)) -}}
{{- end -}}
{{- with $settings.autoscaling -}}
{{- if .enabled -}}
{{- $adapter := eq $.root.Values.autoscaling.provider "prometheusAdapter" -}}
{{- if not (or .queuedRequests .waitingRequests .kvCacheUsage .gpuUtilization) -}}
{{- fail (printf "%s.autoscaling.enabled is true, but queuedRequests, waitingRequests, kvCacheUsage and gpuUtilization are all 0" $where) -}}
{{- end -}}
{{- if and .gpuUtilization (not $settings.gpus) -}}
{{- fail (printf "%s.autoscaling.gpuUtilization is %d, but %s.gpus is 0: there is no GPU to be asked" $where (int .gpuUtilization) $where) -}}
{{- end -}}
{{- $name := include "pagemesh.servedName" $.model -}}
{{- if and $adapter .queuedRequests (not (regexMatch "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$" $name)) -}}
{{- fail (printf "%s.autoscaling.queuedRequests is %d, but the Prometheus Adapter cannot be asked for the model %q, whose name is no label value: set it to 0, write a models[].servedName that is one, or take autoscaling.provider keda" $where (int .queuedRequests) $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What holds for pods of every role. Takes (dict "root" $ "where" key "settings" settings "owned" flags of the chart). */}}
{{- define "pagemesh.checkPods" -}}
{{- $where := .where -}}
{{- include "pagemesh.checkLabels" (dict "root" .root "where" (printf "%s.podLabels" $where) "labels" .settings.podLabels "set" "pagemesh.selector") -}}
{{- $owned := concat .owned (list "--host" "--port" "--metrics-port" "--grace-period" "--log-level" "--log-format" "--mesh-cert" "--mesh-key" "--mesh-ca" "--api-key") -}}
{{- range .settings.extraArgs -}}
{{- $flag := regexFind "^--[a-z0-9-]+" . -}}
{{- if has $flag $owned -}}
{{- fail (printf "%s.extraArgs has %s, which the chart sets: there is a value of its own for it" $where $flag) -}}
{{- end -}}
{{- end -}}
{{- with .settings -}}
{{- if and (hasKey . "maxSurge") (not .maxSurge) (not .maxUnavailable) -}}
{{- fail (printf "%s.maxSurge and %s.maxUnavailable are both 0, so no pod could ever be replaced" $where $where) -}}
{{- end -}}
{{- if hasKey . "autoscaling" -}}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) -}}
{{- fail (printf "%s.autoscaling.minReplicas is %d, which is more than maxReplicas, %d" $where (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and .autoscaling.enabled (hasKey .autoscaling "cpuUtilization") (not (dig "requests" "cpu" "" .resources)) -}}
{{- fail (printf "%s.autoscaling.enabled is true, but %s.resources.requests.cpu, of which cpuUtilization is a share, is missing" $where $where) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Services, policies and Helm find pods and objects by labels. Takes (dict "root" $ "where" key "labels" labels
     "set" name of the template with those that the chart sets there). */}}
{{- define "pagemesh.checkLabels" -}}
{{- $where := .where -}}
{{- $own := include .set (dict "root" .root "component" "any") | fromYaml -}}
{{- range $label, $value := .labels -}}
{{- if or (hasKey $own $label) (hasPrefix "pagemesh/" $label) -}}
{{- fail (printf "%s has %s, which the chart sets itself: pods and objects are found by it" $where $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pagemesh.checkRoles" -}}
{{- with .Values -}}
{{- include "pagemesh.checkPods" (dict "root" $ "where" "gateway" "settings" .gateway "owned" (list "--routers" "--api-key-required" "--ssl-certfile" "--ssl-keyfile" "--ssl-ca-certs")) -}}
{{- include "pagemesh.checkPods" (dict "root" $ "where" "router" "settings" .router "owned" (list "--kvstore" "--model" "--model-alias" "--api-key-file" "--limits-shared-by")) -}}
{{- include "pagemesh.checkPods" (dict "root" $ "where" "kvstore" "settings" .kvstore "owned" (list "--index")) -}}
{{- if and .gateway.enabled (le (float64 .gateway.maxRequestTime) (float64 .router.requestTimeout)) -}}
{{- fail (printf "gateway.maxRequestTime is %v, but must be more than router.requestTimeout, %v: the router has to be the one that says that time is up" .gateway.maxRequestTime .router.requestTimeout) -}}
{{- end -}}
{{- if and (eq .autoscaling.provider "keda") (not .autoscaling.prometheusAddress) -}}
{{- fail "autoscaling.prometheusAddress is empty, but autoscaling.provider is keda, which asks Prometheus there" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pagemesh.checkStore" -}}
{{- with .Values -}}
{{- if and (gt (int .kvstore.replicas) 1) (eq .redis.type "none") -}}
{{- fail (printf "kvstore.replicas is %d, but redis.type is none: several kvstores need a Redis in which they keep one index" (int .kvstore.replicas)) -}}
{{- end -}}
{{- with .redis -}}
{{- if and (eq .type "external") (not .host) }}{{ fail "redis.host is empty, but redis.type is external" }}{{ end -}}
{{- if and (ne .type "external") (ne (int .port) 6379) }}{{ fail (printf "redis.port is %d, but redis.type is %s, and only external has a port of its own" (int .port) .type) }}{{ end -}}
{{- if and (eq .type "none") .database }}{{ fail (printf "redis.database is %d, but redis.type is none" (int .database)) }}{{ end -}}
{{- if and (ne .type "external") .host }}{{ fail (printf "redis.host is %q, but redis.type is %s, and only external has a host" .host .type) }}{{ end -}}
{{- if and (ne .type "external") .tls }}{{ fail (printf "redis.tls is true, but redis.type is %s, and only external speaks TLS" .type) }}{{ end -}}
{{- if and (ne .type "external") .existingSecret }}{{ fail (printf "redis.existingSecret is %q, but redis.type is %s, and only external has a password" .existingSecret .type) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pagemesh.checkSecrets" -}}
{{- with .Values -}}
{{- $sources := list -}}
{{- $auth := .auth -}}
{{- range list "apiKeys" "existingSecret" "keyFile" "keyFileSecret" -}}
{{- if get $auth . }}{{ $sources = append $sources (printf "auth.%s" .) }}{{ end -}}
{{- end -}}
{{- if gt (len $sources) 1 }}{{ fail (printf "%s are given, but API keys come from one place only" (join " and " $sources)) }}{{ end -}}
{{- if and .hub.token .hub.existingSecret }}{{ fail "hub.token and hub.existingSecret are given, but the token comes from one place only" }}{{ end -}}
{{- with .meshTls -}}
{{- if and .enabled (eq .provider "secrets") -}}
{{- $names := .secretNames -}}
{{- $needed := list "router" "prefill" "decode" "kvstore" -}}
{{- if $.Values.gateway.enabled }}{{ $needed = append $needed "gateway" }}{{ end -}}
{{- if ne $.Values.monitoring.type "none" }}{{ $needed = append $needed "health" }}{{ end -}}
{{- range $needed -}}
{{- if not (get $names .) }}{{ fail (printf "meshTls.secretNames.%s is empty, but meshTls.provider is secrets" .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .clientTls -}}
{{- if .enabled -}}
{{- if not .secretName }}{{ fail "clientTls.secretName is empty, but clientTls.enabled is true" }}{{ end -}}
{{- if and .issuer.name (not .dnsNames) }}{{ fail "clientTls.dnsNames is empty, but cert-manager has to be told for which names the certificate is" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pagemesh.checkRoutes" -}}
{{- with .Values -}}
{{- $api := .gatewayApi -}}
{{- if $api.enabled -}}
{{- if not $api.parentRefs }}{{ fail "gatewayApi.parentRefs is empty, but a route has to name its Gateway" }}{{ end -}}
{{- if and $api.http (not .gateway.enabled) }}{{ fail "gatewayApi.http is true, but gateway.enabled is false: HTTP is turned into gRPC by the mesh's own gateway" }}{{ end -}}
{{- if and $api.grpc (eq $api.grpcBackend "gateway") (not .gateway.enabled) }}{{ fail "gatewayApi.grpcBackend is gateway, but gateway.enabled is false" }}{{ end -}}
{{- if and $api.grpc (eq $api.grpcBackend "router") .meshTls.enabled }}{{ fail "gatewayApi.grpcBackend is router, but meshTls.enabled is true, and a Gateway has no certificate of the mesh: take gateway" }}{{ end -}}
{{- if and $api.grpc (eq $api.grpcBackend "router") .networkPolicy.enabled (not .networkPolicy.grpcClientsFrom) }}{{ fail "networkPolicy.grpcClientsFrom is empty, but gatewayApi.grpcBackend is router: the Gateway's pods must be let in there" }}{{ end -}}
{{- end -}}
{{- with .inferenceExtension -}}
{{- if .enabled -}}
{{- if not (and $api.enabled $api.http) }}{{ fail "inferenceExtension.enabled is true, but gatewayApi.enabled or gatewayApi.http is false: the HTTPRoute leads to the pool" }}{{ end -}}
{{- if not .endpointPicker.name }}{{ fail "inferenceExtension.endpointPicker.name is empty, but a pool needs one" }}{{ end -}}
{{- if $.Values.clientTls.enabled }}{{ fail "inferenceExtension.enabled and clientTls.enabled are both true, but pools are called without TLS" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Values that would do nothing, as what they belong to is off: who gives them believes that it is on. */}}
{{- define "pagemesh.checkUnused" -}}
{{- with .Values -}}
{{- if not .clientTls.enabled -}}
{{- include "pagemesh.refuseGiven" (list .clientTls "clientTls" (list "secretName" "clientCaSecret" "dnsNames") "clientTls.enabled is false") -}}
{{- include "pagemesh.refuseGiven" (list .clientTls.issuer "clientTls.issuer" (list "name") "clientTls.enabled is false") -}}
{{- else if not .gateway.enabled -}}
{{- fail "clientTls.enabled is true, but gateway.enabled is false: TLS for clients is the gateway's" -}}
{{- end -}}
{{- $names := list "gateway" "router" "prefill" "decode" "kvstore" "health" -}}
{{- if not .meshTls.enabled -}}
{{- include "pagemesh.refuseGiven" (list .meshTls.secretNames "meshTls.secretNames" $names "meshTls.enabled is false") -}}
{{- include "pagemesh.refuseGiven" (list .meshTls.issuer "meshTls.issuer" (list "name") "meshTls.enabled is false") -}}
{{- else if eq .meshTls.provider "certManager" -}}
{{- include "pagemesh.refuseGiven" (list .meshTls.secretNames "meshTls.secretNames" $names "meshTls.provider is certManager, which names the secrets itself") -}}
{{- else -}}
{{- include "pagemesh.refuseGiven" (list .meshTls.issuer "meshTls.issuer" (list "name") "meshTls.provider is secrets, which are there already") -}}
{{- end -}}
{{- if not (include "pagemesh.hasSource" (dict "root" $ "type" "hub")) -}}
{{- include "pagemesh.refuseGiven" (list .hub "hub" (list "token" "existingSecret" "endpoint") "no model's source.type is hub") -}}
{{- end -}}
{{- if not .inferenceExtension.enabled -}}
{{- include "pagemesh.refuseGiven" (list .inferenceExtension "inferenceExtension" (list "objectives") "inferenceExtension.enabled is false") -}}
{{- include "pagemesh.refuseGiven" (list .inferenceExtension.endpointPicker "inferenceExtension.endpointPicker" (list "name") "inferenceExtension.enabled is false") -}}
{{- end -}}
{{- if not .gatewayApi.enabled -}}
{{- include "pagemesh.refuseGiven" (list .gatewayApi "gatewayApi" (list "parentRefs" "hostnames") "gatewayApi.enabled is false") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Says no value, which may be a secret. Takes (list values "their key" keys "why they do nothing"). */}}
{{- define "pagemesh.refuseGiven" -}}
{{- $values := index . 0 -}}
{{- $where := index . 1 -}}
{{- $why := index . 3 -}}
{{- range index . 2 -}}
{{- if get $values . }}{{ fail (printf "%s.%s is given, but %s" $where . $why) }}{{ end -}}
{{- end -}}
{{- end -}}
