{{/*
The one pod template of all roles. Takes
  root, component, settings   as elsewhere
  args                        the arguments as a YAML list
  models                      entries of `models` that the process reads
  model                       name of the model, for workers
  env, volumes, mounts        YAML lists of the role's own
  checksum                    text, at whose change pods are replaced
*/}}
{{- define "pagemesh.podTemplate" -}}
{{- $root := .root -}}
{{- $settings := .settings -}}
{{- $hub := false -}}
{{- range .models }}{{ if eq .source.type "hub" }}{{ $hub = true }}{{ end }}{{ end -}}
metadata:
  labels:
    {{- include "pagemesh.selector" . | nindent 4 }}
    {{- with include "pagemesh.usersLabels" (dict "root" $root "labels" $settings.podLabels) }}
    {{- . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: {{ .component }}
    {{- with .checksum }}
    checksum/secrets: {{ sha256sum . }}
    {{- end }}
    {{- with $settings.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "pagemesh.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add $settings.gracePeriod $settings.preStopSleep 10 }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- include "pagemesh.placement" . | nindent 2 }}
  {{- $inits := "" }}
  {{- range .models }}{{ $inits = printf "%s%s" $inits (include "pagemesh.modelInit" .) }}{{ end }}
  {{- with $inits }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "pagemesh.image" . | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args:
        {{- .args | nindent 8 }}
      {{- include "pagemesh.containerBody" (merge (dict "hub" $hub) .) | nindent 6 }}
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: 2Gi
    {{- if $root.Values.meshTls.enabled }}
    - name: mesh-tls
      secret:
        secretName: {{ include "pagemesh.meshSecret" (dict "root" $root "role" .component) }}
        defaultMode: 0440
    {{- end }}
    {{- if $hub }}
    {{- include "pagemesh.cacheVolume" (dict "root" $root "cache" "model") | nindent 4 }}
    {{- end }}
    {{- if $settings.gpus }}
    {{- include "pagemesh.cacheVolume" (dict "root" $root "cache" "kernel") | nindent 4 }}
    {{- end }}
    {{- range .models }}
    {{- include "pagemesh.modelVolume" . | nindent 4 }}
    {{- end }}
    {{- with .volumes }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $settings.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Ports, environment, probes, resources and mounts of the process's container. */}}
{{- define "pagemesh.containerBody" -}}
{{- $root := .root -}}
{{- $settings := .settings -}}
ports:
  {{- if eq .component "gateway" }}
  - name: http
    containerPort: 8000
  {{- else }}
  - name: grpc
    containerPort: 9000
  {{- end }}
  - name: metrics
    containerPort: 9090
env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  - name: HOME
    value: /tmp
  {{- with $root.Values.tracing }}
  {{- if .otlpEndpoint }}
  - name: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
    value: {{ .otlpEndpoint | quote }}
  - name: OTEL_EXPORTER_OTLP_TRACES_PROTOCOL
    value: {{ .protocol }}
  {{- if .existingSecret }}
  - name: OTEL_EXPORTER_OTLP_TRACES_HEADERS
    valueFrom:
      secretKeyRef:
        name: {{ .existingSecret }}
        key: {{ .existingSecretKey }}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- if .hub }}
  {{- include "pagemesh.hubEnv" $root | nindent 2 }}
  {{- end }}
  {{- if $settings.gpus }}
  - name: TRITON_CACHE_DIR
    value: /kernels
  {{- end }}
  {{- with .env }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $settings.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- include "pagemesh.probes" . | nindent 0 }}
{{- with $settings.preStopSleep }}
lifecycle:
  preStop:
    exec:
      command: [sleep, {{ . | toString | quote }}]
{{- end }}
# What a process says as it ends stands in `kubectl describe pod`.
terminationMessagePolicy: FallbackToLogsOnError
resources:
  {{- include "pagemesh.resources" $settings | nindent 2 }}
securityContext:
  {{- include "pagemesh.containerSecurity" $root | nindent 2 }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- if $root.Values.meshTls.enabled }}
  - name: mesh-tls
    mountPath: /etc/pagemesh/mesh-tls
    readOnly: true
  {{- end }}
  {{- if .hub }}
  - name: model-cache
    mountPath: /models
  {{- end }}
  {{- if $settings.gpus }}
  - name: kernel-cache
    mountPath: /kernels
  {{- end }}
  {{- range .models }}
  {{- include "pagemesh.modelMount" . | nindent 2 }}
  {{- end }}
  {{- with .mounts }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $settings.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "pagemesh.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Resources with the GPUs in them. Takes the role's settings. */}}
{{- define "pagemesh.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if .gpus -}}
{{- $gpus := dict .gpuResource (int .gpus) -}}
{{- $_ := set $resources "limits" (merge $gpus (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Where pods run. */}}
{{- define "pagemesh.placement" -}}
{{- $call := . -}}
{{- with .settings.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - topologyKey: {{ .topologyKey }}
    maxSkew: {{ .maxSkew }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "pagemesh.selector" $call | nindent 8 }}
  {{- end }}
{{- end }}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if .settings.gpus }}
{{- with .settings.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Ready is who serves; a process starts over when it does not answer any more. The kubelet's gRPC probes speak no
TLS, so with it the image asks itself. A gateway is alive without routers, and ready when one of them answers.
*/}}
{{- define "pagemesh.probes" -}}
{{- /* Asking by a program costs a start of Python. */ -}}
{{- $every := ternary 10 5 (and .root.Values.meshTls.enabled (ne .component "gateway")) -}}
{{- $check := include "pagemesh.check" . -}}
{{- $alive := eq .component "gateway" | ternary "tcpSocket:\n  port: http" $check -}}
startupProbe:
  {{- $alive | nindent 2 }}
  periodSeconds: {{ $every }}
  timeoutSeconds: 5
  failureThreshold: {{ max 1 (div (add .settings.startupTimeout (sub $every 1)) $every) }}
readinessProbe:
  {{- $check | nindent 2 }}
  periodSeconds: {{ $every }}
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  {{- $alive | nindent 2 }}
  periodSeconds: {{ mul 2 $every }}
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{- define "pagemesh.check" -}}
{{- $values := .root.Values -}}
{{- if eq .component "gateway" -}}
{{- if $values.clientTls.clientCaSecret -}}
tcpSocket:
  port: http
{{- else -}}
httpGet:
  path: /version
  port: http
  scheme: {{ $values.clientTls.enabled | ternary "HTTPS" "HTTP" }}
{{- end -}}
{{- else if $values.meshTls.enabled -}}
exec:
  command:
    - pagemesh
    - health
    - {{ contains ":" $values.listenAddress | ternary "[::1]:9000" "127.0.0.1:9000" | quote }}
    {{- include "pagemesh.meshFlags" .root | nindent 4 }}
{{- else -}}
grpc:
  port: 9000
{{- end -}}
{{- end -}}
