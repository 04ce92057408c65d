{{/* What the Deployments share. Each takes (list . "component" values). */}}

{{/* The strategy. In the host's network a new pod cannot start beside an old one on the same node. */}}
{{- define "kerf.strategy" -}}
{{- $values := index . 2 }}
{{- $surge := $values.hostNetwork | default false | ternary 0 1 }}
{{- $values.updateStrategy | default (dict "type" "RollingUpdate" "rollingUpdate" (dict "maxSurge" $surge "maxUnavailable" (sub 1 $surge))) | toJson }}
{{- end }}

{{/* A drain of nodes leaves one of several pods. */}}
{{- define "kerf.disruptionBudget" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 }}
{{- with $values.podDisruptionBudget }}
{{- if and .enabled (gt (int $values.replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: kerf-{{ $component }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "kerf.labels" (list $root $component) | nindent 4 }}
spec:
  {{- if eq (toString .maxUnavailable) "" }}
  minAvailable: {{ .minAvailable }}
  {{- else }}
  maxUnavailable: {{ .maxUnavailable }}
  {{- end }}
  selector:
    matchLabels: {app.kubernetes.io/name: kerf-{{ $component }}}
{{- end }}
{{- end }}
{{- end }}
