{{/* What the pods of all programs share. Each takes (list . "component" values). */}}

{{/* Their metadata. */}}
{{- define "kerf.podMetadata" -}}
{{- $values := index . 2 -}}
labels: {{- merge (include "kerf.lastingLabels" . | fromYaml) $values.podLabels (index . 0).Values.commonLabels | toYaml | nindent 2 }}
{{- with $values.podAnnotations }}
annotations: {{ toJson . }}
{{- end }}
{{- end }}

{{/* Fields of their spec. */}}
{{- define "kerf.podSpec" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 -}}
serviceAccountName: {{ include "kerf.serviceAccount" . }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- if $values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
{{- $these := dict "labelSelector" (dict "matchLabels" (dict "app.kubernetes.io/name" (printf "kerf-%s" $component))) }}
- {{ hasKey . "labelSelector" | ternary . (merge $these .) | toJson }}
{{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
{{- range . }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{- with $values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with concat $root.Values.imagePullSecrets $root.Values.global.imagePullSecrets | uniq }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with $values.podSecurityContext }}
securityContext: {{ toJson . }}
{{- end }}
{{- end }}

{{/* Fields of their container. */}}
{{- define "kerf.container" -}}
{{- $root := index . 0 }}{{ $values := index . 2 -}}
image: {{ include "kerf.image" . }}
imagePullPolicy: {{ $values.image.pullPolicy | default $root.Values.image.pullPolicy }}
resources: {{- toYaml $values.resources | nindent 2 }}
{{- with $values.securityContext }}
securityContext: {{ toJson . }}
{{- end }}
{{- end }}

{{/* The image. The scheduler's is of the cluster's version, without what clouds and distributions add to it. Argo CD 3.3 passes major
     and minor alone; the patch is 0 then. */}}
{{- define "kerf.image" -}}
{{- $root := index . 0 }}{{ $image := (index . 2).image }}
{{- $registry := $image.registry | default $root.Values.image.registry }}
{{- with $root.Values.global.imageRegistry }}{{ $registry = regexReplaceAll "^[^/]*" $registry . }}{{ end }}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.repository }}
{{- if $image.tag }}:{{ $image.tag }}
{{- else if eq (index . 1) "scheduler" }}:{{ with semver $root.Capabilities.KubeVersion.Version }}v{{ .Major }}.{{ .Minor }}.{{ .Patch }}{{ end }}
{{- else }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end }}
{{- with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The service account, if the chart makes it. */}}
{{- define "kerf.account" -}}
{{- $root := index . 0 }}{{ $values := (index . 2).serviceAccount }}
{{- if $values.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "kerf.serviceAccount" . }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "kerf.labels" . | nindent 4 }}
  {{- with $values.annotations }}
  annotations: {{ toJson . }}
  {{- end }}
---
{{- end }}
{{- end }}
