{{/* Pieces of network policies. */}}

{{/* Pods of this release by component. Takes (list $ "router" "decode" …). */}}
{{- define "pagemesh.peers" -}}
{{- $root := first . -}}
{{- range rest . }}
- podSelector:
    matchLabels:
      {{- include "pagemesh.selector" (dict "root" $root "component" .) | nindent 6 }}
{{- end }}
{{- end -}}

{{/*
Connections that every process may make: names, and traces. A node's own cache of names (NodeLocal DNSCache) has no
pod's address, which no selector chooses; OpenShift's pods listen on 5353. Takes the chart's root.
*/}}
{{- define "pagemesh.commonEgress" -}}
{{- $policy := .Values.networkPolicy -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
  {{- with $policy.dnsTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
- ports:
    - {port: 5353, protocol: UDP}
    - {port: 5353, protocol: TCP}
  to:
    {{- toYaml (default (list (dict "namespaceSelector" dict)) $policy.dnsTo) | nindent 4 }}
{{- with .Values.tracing.otlpEndpoint }}
{{- $url := urlParse (contains "://" . | ternary . (printf "http://%s" .)) }}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" }}
- ports:
    - {port: {{ default (eq $url.scheme "https" | ternary 443 80) $port }}, protocol: TCP}
  {{- with $.Values.networkPolicy.tracesTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Connections to where models come from. Takes (dict "root" $ "models" entries). */}}
{{- define "pagemesh.modelEgress" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- $ports := list -}}
{{- range .models -}}
{{- if eq .source.type "hub" }}{{ $ports = append $ports (int $policy.hubPort) }}{{ end -}}
{{- if and (eq .source.type "init") $policy.initPort }}{{ $ports = append $ports (int $policy.initPort) }}{{ end -}}
{{- end -}}
{{- with uniq $ports }}
- ports:
    {{- range . }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end }}
{{- end -}}

{{/* Who may read metrics, and ask a process how it is. Takes the chart's root. */}}
{{- define "pagemesh.commonIngress" -}}
{{- if ne .Values.monitoring.type "none" }}
- ports:
    - {port: 9090, protocol: TCP}
  from:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ .Values.monitoring.namespace }}
{{- end }}
{{- with .Values.networkPolicy.doctorFrom }}
- ports:
    - {port: 9000, protocol: TCP}
    - {port: 8000, protocol: TCP}
  from:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/*
The policy of one component. Takes
  root, component    as elsewhere
  from               components that call its gRPC port
  ingress, egress    further rules as YAML
  to                 components whose gRPC port it calls
*/}}
{{- define "pagemesh.networkPolicy" -}}
{{- if .root.Values.networkPolicy.enabled -}}
{{- $name := printf "%s-%s" (include "pagemesh.fullname" .root) .component -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "pagemesh.metadata" (dict "root" .root "component" .component "name" $name) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "pagemesh.selector" (dict "root" .root "component" .component) | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- with .from }}
    - ports:
        - {port: 9000, protocol: TCP}
      from:
        {{- include "pagemesh.peers" (concat (list $.root) .) | nindent 8 }}
    {{- end }}
    {{- include "pagemesh.commonIngress" .root | nindent 4 }}
    {{- with .ingress }}
    {{- . | nindent 4 }}
    {{- end }}
  egress:
    {{- include "pagemesh.commonEgress" .root | nindent 4 }}
    {{- with .to }}
    - ports:
        - {port: 9000, protocol: TCP}
      to:
        {{- include "pagemesh.peers" (concat (list $.root) .) | nindent 8 }}
    {{- end }}
    {{- with .egress }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}
{{- end -}}
