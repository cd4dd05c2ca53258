{{/* How to ask the gateway, for NOTES.txt: one address, the nearest to what clients will use. */}}

{{/* Takes (dict "root" $ "model" what clients call it). */}}
{{- define "pagemesh.firstRequest" -}}
{{- $release := .root.Release -}}
{{- $values := .root.Values -}}
{{- $service := printf "%s-gateway" (include "pagemesh.fullname" .root) -}}
{{- $port := int $values.gateway.service.port -}}
{{- $host := include "pagemesh.routedHost" .root -}}
{{- /* Behind a Gateway, TLS is the Gateway's own. */ -}}
{{- $tls := and $values.clientTls.enabled (eq $host "") -}}
{{- $scheme := or $tls (ne $host "") | ternary "https" "http" -}}
{{- $url := "" -}}
{{- if $host -}}
{{- $url = printf "%s://%s" $scheme $host }}
Clients reach it by the Gateway, at {{ join ", " $values.gatewayApi.hostnames }}, with the scheme and the port of its listener:
{{ else if eq $values.gateway.service.type "LoadBalancer" -}}
{{- $url = printf "%s://$ADDRESS:%d" $scheme $port }}
Clients reach it by the load balancer, once that has an address:

  ADDRESS=$(kubectl -n {{ $release.Namespace }} get service {{ $service }} -o jsonpath='{.status.loadBalancer.ingress[0].ip}{.status.loadBalancer.ingress[0].hostname}')
{{ else -}}
{{- $url = printf "%s://127.0.0.1:8000" $scheme }}
From here, in another terminal:

  kubectl -n {{ $release.Namespace }} port-forward service/{{ $service }} 8000:{{ $port }}
{{ end }}
  curl {{ $tls | ternary "-k " "" }}{{ $url }}/v1/chat/completions -H 'content-type: application/json' \
{{- if include "pagemesh.hasAuth" .root }}
    -H "authorization: Bearer $PAGEMESH_API_KEY" \
{{- end }}
{{- if and $tls $values.clientTls.clientCaSecret }}
    --cert client.crt --key client.key \
{{- end }}
    -d '{"model": {{ .model | quote }}, "messages": [{"role": "user", "content": "Who are you?"}]}'
{{ if $tls }}
The certificate names {{ join ", " $values.clientTls.dnsNames | default "other hosts" }}, not this address, so -k leaves it unchecked; clients call by such a name, without -k.
{{- with $values.clientTls.clientCaSecret }}
client.crt and client.key are the client's own, from an authority in the secret {{ . }}.
{{- end }}
{{ end }}
A page with chat and the mesh live is at {{ $url }}/. `helm -n {{ $release.Namespace }} test {{ $release.Name }}` asks whether
the mesh can answer.
{{- end -}}

{{/* The name by which a Gateway leads to the mesh, a whole one if there is any; empty without a route or names. */}}
{{- define "pagemesh.routedHost" -}}
{{- with .Values.gatewayApi -}}
{{- if and .enabled .http .hostnames -}}
{{- $host := first .hostnames | replace "*" "NAME" -}}
{{- range reverse .hostnames -}}
{{- if not (hasPrefix "*" .) }}{{ $host = . }}{{ end -}}
{{- end -}}
{{- $host -}}
{{- end -}}
{{- end -}}
{{- end -}}
