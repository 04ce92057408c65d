{{/* Annotations of what a hook's pods need: made before them, and gone after them. Takes the hook. */}}
{{- define "kerf.hookRights" -}}
helm.sh/hook: {{ . }}
helm.sh/hook-weight: "-10"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
