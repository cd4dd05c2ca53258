{{/* Objects that several roles have. Each takes (dict "root" $ "component" name "name" full name "settings" settings
     "kind" of the workload "apiVersion" of it), and "model" for workers. */}}

{{- define "pagemesh.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "pagemesh.labels" . | nindent 2 }}
{{- end -}}

{{- define "pagemesh.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "pagemesh.metadata" . | nindent 2 }}
spec:
  {{- if not .settings.autoscaling.enabled }}
  replicas: {{ .settings.replicas }}
  {{- end }}
  # A large model takes long to load.
  progressDeadlineSeconds: {{ add .settings.startupTimeout .settings.gracePeriod 600 }}
  revisionHistoryLimit: 5
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: {{ .settings.maxSurge }}
      maxUnavailable: {{ .settings.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "pagemesh.selector" . | nindent 6 }}
  template:
    {{- include "pagemesh.podTemplate" . | nindent 4 }}
{{- end -}}

{{- define "pagemesh.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "pagemesh.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .settings.disruptionBudget }}
  # One that does not serve anyhow holds up no drain.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "pagemesh.selector" . | nindent 6 }}
{{- end -}}

{{/* For processes that scale by CPU. */}}
{{- define "pagemesh.cpuAutoscaler" -}}
{{- if .settings.autoscaling.enabled -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "pagemesh.metadata" . | nindent 2 }}
spec:
  {{- include "pagemesh.autoscalerBase" . | nindent 2 }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ .settings.autoscaling.cpuUtilization }}
{{- end -}}
{{- end -}}

{{- define "pagemesh.autoscalerBase" -}}
scaleTargetRef:
  apiVersion: {{ default "apps/v1" .apiVersion }}
  kind: {{ default "Deployment" .kind }}
  name: {{ .name }}
minReplicas: {{ .settings.autoscaling.minReplicas }}
maxReplicas: {{ .settings.autoscaling.maxReplicas }}
behavior:
  {{- include "pagemesh.scalingBehavior" . | nindent 2 }}
{{- end -}}

{{/* Up at once, down one by one. */}}
{{- define "pagemesh.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
scaleDown:
  stabilizationWindowSeconds: {{ .settings.autoscaling.scaleDownDelay }}
  policies:
    - type: Pods
      value: 1
      periodSeconds: 60
{{- end -}}

{{/* For workers, by the Prometheus Adapter or by KEDA. Takes "modelName", what clients ask for, as well. */}}
{{- define "pagemesh.workerAutoscaler" -}}
{{- if .settings.autoscaling.enabled -}}
{{- if eq .root.Values.autoscaling.provider "keda" -}}
{{- include "pagemesh.kedaAutoscaler" . -}}
{{- else -}}
{{- include "pagemesh.adapterAutoscaler" . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Workers of one replica: the pods of a group. Takes settings of a worker. */}}
{{- define "pagemesh.workersOfReplica" -}}
{{- .multiNode.enabled | ternary (int .multiNode.size) 1 -}}
{{- end -}}

{{/*
Values are per worker. What is asked of all routers is divided by replicas, which are groups where there are any;
metrics of pods are averages over the pods that the scale subresource selects, of each group its first.
*/}}
{{- define "pagemesh.adapterAutoscaler" -}}
{{- $scaling := .settings.autoscaling -}}
{{- $workers := include "pagemesh.workersOfReplica" .settings -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "pagemesh.metadata" . | nindent 2 }}
spec:
  {{- include "pagemesh.autoscalerBase" . | nindent 2 }}
  metrics:
    {{- with $scaling.queuedRequests }}
    - type: External
      external:
        metric:
          name: pagemesh_requests_queued
          selector:
            matchLabels:
              model_name: {{ $.modelName | quote }}
        target:
          type: AverageValue
          averageValue: {{ mul . $workers | quote }}
    {{- end }}
    {{- with $scaling.waitingRequests }}
    - type: Pods
      pods:
        metric:
          name: vllm_num_requests_waiting
        target:
          type: AverageValue
          averageValue: {{ include "pagemesh.text" . | quote }}
    {{- end }}
    {{- with $scaling.kvCacheUsage }}
    - type: Pods
      pods:
        metric:
          name: vllm_kv_cache_usage_perc
        target:
          type: AverageValue
          averageValue: {{ mul . 10 }}m
    {{- end }}
    {{- with $scaling.gpuUtilization }}
    - type: Pods
      pods:
        metric:
          name: pagemesh_gpu_utilization
        target:
          type: AverageValue
          averageValue: {{ mul . 10 }}m
    {{- end }}
{{- end -}}

{{/* Values are per worker; KEDA divides each sum by replicas, which are groups where there are any. */}}
{{- define "pagemesh.kedaAutoscaler" -}}
{{- $scaling := .settings.autoscaling -}}
{{- $workers := include "pagemesh.workersOfReplica" .settings -}}
{{- $server := .root.Values.autoscaling.prometheusAddress -}}
{{- $fullname := include "pagemesh.fullname" .root -}}
{{- $from := printf "namespace=%q,model_name=%q" .root.Release.Namespace .modelName -}}
{{- $pods := printf "%s,pod=~%q" $from (printf "%s-%s-.+" $fullname .component) -}}
{{- $routers := printf "%s,pod=~%q" $from (printf "%s-router-.+" $fullname) -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "pagemesh.metadata" . | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: {{ default "apps/v1" .apiVersion }}
    kind: {{ default "Deployment" .kind }}
    name: {{ .name }}
  minReplicaCount: {{ $scaling.minReplicas }}
  maxReplicaCount: {{ $scaling.maxReplicas }}
  pollingInterval: 15
  cooldownPeriod: {{ $scaling.scaleDownDelay }}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        {{- include "pagemesh.scalingBehavior" . | nindent 8 }}
  triggers:
    {{- with $scaling.queuedRequests }}
    {{- include "pagemesh.kedaTrigger" (list $server (printf "sum(pagemesh:requests_queued{%s})" $routers) (mul . $workers)) | nindent 4 }}
    {{- end }}
    {{- with $scaling.waitingRequests }}
    {{- include "pagemesh.kedaTrigger" (list $server (printf "sum(vllm:num_requests_waiting{%s})" $pods) (mul . $workers)) | nindent 4 }}
    {{- end }}
    {{- with $scaling.kvCacheUsage }}
    {{- include "pagemesh.kedaTrigger" (list $server (printf "sum(vllm:kv_cache_usage_perc{%s})" $pods) (divf (mul . $workers) 100)) | nindent 4 }}
    {{- end }}
    {{- with $scaling.gpuUtilization }}
    {{- include "pagemesh.kedaTrigger" (list $server (printf "sum(pagemesh:gpu_utilization{%s})" $pods) (divf (mul . $workers) 100)) | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The sum over all pods, divided by the replicas that there are, against the threshold. */}}
{{- define "pagemesh.kedaTrigger" -}}
- type: prometheus
  metricType: AverageValue
  metadata:
    serverAddress: {{ index . 0 | quote }}
    query: {{ index . 1 | quote }}
    threshold: {{ index . 2 | toString | quote }}
{{- end -}}
