{{/* What models are called, and where they are: value of --model, volumes, mounts and init containers. Each takes an
entry of `models`. */}}

{{/* What clients ask for. */}}
{{- define "pagemesh.servedName" -}}
{{- $own := eq .source.type "hub" | ternary .source.repository .name -}}
{{- default $own .servedName -}}
{{- end -}}

{{- define "pagemesh.modelSource" -}}
{{- with .source -}}
{{- $path := default "" .path -}}
{{- if and (eq .type "init") (not .command) -}}
{{- /* The copy of a folder is the volume itself. */ -}}
{{- $path = hasSuffix ".gguf" $path | ternary (base $path) "" -}}
{{- end -}}
{{- if eq .type "hub" -}}
{{- .repository -}}
{{- else if eq .type "bundled" -}}
{{- $path -}}
{{- else -}}
{{- printf "/model/%s/%s" $.name (trimAll "/" $path) | trimSuffix "/" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What an init container without a command copies, as a list in JSON: what is in the folder `path`, or of a GGUF
file all parts. */}}
{{- define "pagemesh.modelCopied" -}}
{{- $path := trimSuffix "/" (default "" .source.path) -}}
{{- $ending := regexFind "-[0-9]{5}-of-[0-9]{5}[.]gguf$" $path -}}
{{- $copied := list -}}
{{- if $ending -}}
{{- $count := regexFind "[0-9]{5}[.]gguf$" $ending | trimSuffix ".gguf" -}}
{{- range $part := until (atoi $count) -}}
{{- $copied = append $copied (printf "%s-%05d-of-%s.gguf" (trimSuffix $ending $path) (add1 $part) $count) -}}
{{- end -}}
{{- else -}}
{{- $copied = hasSuffix ".gguf" $path | ternary $path (printf "%s/." $path) | list -}}
{{- end -}}
{{- toJson $copied -}}
{{- end -}}

{{/* Whether it is a GGUF file of the hub, which routers, too, fetch as a whole. */}}
{{- define "pagemesh.isGgufOfHub" -}}
{{- if and (eq .source.type "hub") (regexMatch ":|/.*/" (default "" .source.repository)) -}}yes{{- end -}}
{{- end -}}

{{- define "pagemesh.modelVolume" -}}
{{- $name := printf "model-%s" .name -}}
{{- with .source -}}
{{- if eq .type "claim" }}
- name: {{ $name }}
  persistentVolumeClaim:
    claimName: {{ .claimName }}
    readOnly: true
{{- else if eq .type "image" }}
- name: {{ $name }}
  image:
    reference: {{ .image | quote }}
    pullPolicy: IfNotPresent
{{- else if eq .type "init" }}
- name: {{ $name }}
  emptyDir:
    sizeLimit: {{ default "50Gi" .size }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "pagemesh.modelMount" -}}
{{- if has .source.type (list "claim" "image" "init") }}
- name: model-{{ .name }}
  mountPath: /model/{{ .name }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "pagemesh.modelInit" -}}
{{- if eq .source.type "init" }}
- name: model-{{ .name }}
  image: {{ .source.image | quote }}
  {{- with .source.command }}
  command:
    {{- toYaml . | nindent 4 }}
  {{- else }}
  command:
    {{- concat (list "cp" "-RL") (include "pagemesh.modelCopied" . | fromJsonArray) (list "/model/") | toYaml | nindent 4 }}
  {{- end }}
  {{- with .source.envFromSecret }}
  envFrom:
    - secretRef:
        name: {{ . }}
  {{- end }}
  env:
    - name: HOME
      value: /tmp
  terminationMessagePolicy: FallbackToLogsOnError
  securityContext:
    {{- include "pagemesh.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - name: model-{{ .name }}
      mountPath: /model
    - name: tmp
      mountPath: /tmp
{{- end }}
{{- end -}}

{{/* The volume of a cache that may outlive its pods. Takes root and cache, model or kernel. */}}
{{- define "pagemesh.cacheVolume" -}}
{{- with get .root.Values (printf "%sCache" .cache) -}}
- name: {{ $.cache }}-cache
{{- if eq .type "claim" }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-%s-cache" (include "pagemesh.fullname" $.root) $.cache) .existingClaim }}
{{- else }}
  emptyDir:
    sizeLimit: {{ .size }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Environment for the hub. Takes the chart's root. */}}
{{- define "pagemesh.hubEnv" -}}
- name: HF_HOME
  value: /models
{{- with .Values.hub }}
{{- with .endpoint }}
- name: HF_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- if or .token .existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ default (printf "%s-hub" (include "pagemesh.fullname" $)) .existingSecret }}
      key: {{ empty .token | ternary .existingSecretKey "token" }}
{{- end }}
{{- end }}
{{- end -}}
