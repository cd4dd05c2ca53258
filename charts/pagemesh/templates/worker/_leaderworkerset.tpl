{{/* Groups of pods that are placed, replaced and scaled together. Takes what pagemesh.deployment takes. */}}
{{- define "pagemesh.leaderWorkerSet" -}}
{{- $group := .settings.multiNode -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  {{- include "pagemesh.metadata" . | nindent 2 }}
  {{- with $group.exclusiveTopologyKey }}
  annotations:
    leaderworkerset.sigs.k8s.io/exclusive-topology: {{ . }}
  {{- end }}
spec:
  {{- if not .settings.autoscaling.enabled }}
  replicas: {{ .settings.replicas }}
  {{- end }}
  startupPolicy: LeaderCreated
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration:
      maxSurge: {{ .settings.maxSurge }}
      maxUnavailable: {{ .settings.maxUnavailable }}
  leaderWorkerTemplate:
    size: {{ $group.size }}
    restartPolicy: {{ $group.restartPolicy }}
    workerTemplate:
      {{- include "pagemesh.podTemplate" . | nindent 6 }}
{{- end -}}
