{{/* Names, labels and images. */}}

{{- define "pagemesh.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- $full | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select pods. Takes (dict "root" $ "component" name, and "model" name for workers). */}}
{{- define "pagemesh.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
pagemesh/model: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels that the chart gives to objects; takes what pagemesh.selector takes. */}}
{{- define "pagemesh.ownLabels" -}}
{{ include "pagemesh.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: pagemesh
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* All labels of objects; takes what pagemesh.selector takes, and "labels" that win over commonLabels. */}}
{{- define "pagemesh.labels" -}}
{{ include "pagemesh.ownLabels" . }}
{{- with include "pagemesh.usersLabels" . }}
{{ . }}
{{- end }}
{{- end -}}

{{/* Labels of the user's own. Takes (dict "root" $), and "labels" that win over commonLabels. */}}
{{- define "pagemesh.usersLabels" -}}
{{- with merge (deepCopy (default dict .labels)) .root.Values.commonLabels -}}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{- define "pagemesh.serviceAccount" -}}
{{- $made := .Values.serviceAccount.create | ternary (include "pagemesh.fullname" .) "default" -}}
{{- default $made .Values.serviceAccount.name -}}
{{- end -}}

{{/* Takes (dict "root" $ "component" name "settings" values of the role). */}}
{{- define "pagemesh.image" -}}
{{- $image := .root.Values.image -}}
{{- $suffix := empty .settings.gpus | ternary "" $image.cudaTagSuffix -}}
{{- $tag := printf "%s%s" (default .root.Chart.AppVersion $image.tag) $suffix -}}
{{- default (printf "%s/%s:%s" $image.repository .component $tag) .settings.imageOverride -}}
{{- end -}}

{{/* host:port of every kvstore, with commas in between. */}}
{{- define "pagemesh.kvstores" -}}
{{- $service := printf "%s-kvstore" (include "pagemesh.fullname" .) -}}
{{- $addresses := list -}}
{{- range $i := until (int .Values.kvstore.replicas) -}}
{{- $addresses = append $addresses (printf "%s-%d.%s:9000" $service $i $service) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}

{{- define "pagemesh.hasAuth" -}}
{{- with .Values.auth -}}
{{- if or .apiKeys .existingSecret .keyFile .keyFileSecret -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether the source of any model is of a type. Takes (dict "root" $ "type" name). */}}
{{- define "pagemesh.hasSource" -}}
{{- $type := .type -}}
{{- range .root.Values.models -}}
{{- if eq .source.type $type -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* Settings of a model's workers as YAML. Takes (dict "root" $ "role" prefill or decode "model" entry). */}}
{{- define "pagemesh.workerSettings" -}}
{{- $own := default dict (get .model .role) -}}
{{- mergeOverwrite (deepCopy (get .root.Values .role)) (deepCopy $own) | toYaml -}}
{{- end -}}

{{/* Whether any worker has GPUs. Takes the chart's root. */}}
{{- define "pagemesh.hasGpus" -}}
{{- $root := . -}}
{{- range $model := .Values.models -}}
{{- range $role := list "prefill" "decode" -}}
{{- $settings := include "pagemesh.workerSettings" (dict "root" $root "role" $role "model" $model) | fromYaml -}}
{{- if $settings.gpus -}}yes{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Name of the secret with a role's certificate. Takes (dict "root" $ "role" name). */}}
{{- define "pagemesh.meshSecret" -}}
{{- $tls := .root.Values.meshTls -}}
{{- if eq $tls.provider "secrets" -}}
{{- get $tls.secretNames .role -}}
{{- else -}}
{{- printf "%s-%s-mesh-tls" (include "pagemesh.fullname" .root) .role -}}
{{- end -}}
{{- end -}}
