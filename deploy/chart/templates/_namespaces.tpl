{{/* Which namespaces' pods come to the webhook. kerf's own programs must start without it, and so must the control plane. */}}

{{/* Namespaces whose pods never come to it, as a list in YAML. */}}
{{- define "kerf.excludedNamespaces" -}}
[{{ concat (list "kube-system" .Release.Namespace) .Values.webhook.excludedNamespaces | uniq | join ", " }}]
{{- end }}

{{/* A namespaceSelector of all others. */}}
{{- define "kerf.servedNamespaces" -}}
matchExpressions:
- {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ include "kerf.excludedNamespaces" . }}}
{{- with .Values.webhook.excludedNamespaceLabel }}
- {key: {{ . }}, operator: DoesNotExist}
{{- end }}
{{- end }}

{{/* Selectors of the excluded ones: by name, and by label. One selector's requirements hold together, so these are two. */}}
{{- define "kerf.namedNamespaces" -}}
matchExpressions:
- {key: kubernetes.io/metadata.name, operator: In, values: {{ include "kerf.excludedNamespaces" . }}}
{{- end }}
{{- define "kerf.labelledNamespaces" -}}
matchExpressions:
- {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ include "kerf.excludedNamespaces" . }}}
- {key: {{ .Values.webhook.excludedNamespaceLabel }}, operator: Exists}
{{- end }}

{{/* Whether the namespace of a request is excluded, as CEL. */}}
{{- define "kerf.isExcluded" -}}
(request.namespace in {{ include "kerf.excludedNamespaces" . | fromYamlArray | toJson }}
{{- with .Values.webhook.excludedNamespaceLabel }} || namespaceObject.metadata.?labels[?'{{ . }}'].hasValue(){{ end }})
{{- end }}
