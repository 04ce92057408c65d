{{/* Labels of an object: (list . "component"). Those of Helm's own are left out of deploy/base. */}}
{{- define "kerf.labels" -}}
{{- $root := index . 0 }}{{ $component := index . 1 -}}
app.kubernetes.io/name: kerf-{{ $component }}
app.kubernetes.io/component: {{ $component }}
app.kubernetes.io/part-of: kerf
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{/* An image of kerf's: (list . "name" "override"). */}}
{{- define "kerf.image" -}}
{{- $root := index . 0 }}{{ $name := index . 1 }}{{ $whole := index . 2 -}}
{{- if $whole }}{{ $whole }}
{{- else }}{{ with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $name }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* The scheduler's image: of the cluster's version, without what clouds and distributions add to it. */}}
{{- define "kerf.schedulerImage" -}}
{{- .Values.scheduler.image | default (printf "registry.k8s.io/kube-scheduler:%s" (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version)) }}
{{- end }}

{{/* Flags that all programs share, where they are not the default. */}}
{{- define "kerf.logArgs" -}}
{{- if ne .Values.log.level "info" }}
- --log={{ .Values.log.level }}
{{- end }}
{{- if ne .Values.log.format "text" }}
- --log-format={{ .Values.log.format }}
{{- end }}
{{- end }}

{{/* How and by what images are pulled: lines of a pod's spec. */}}
{{- define "kerf.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{/* Where pods may run: (dict with nodeSelector, tolerations, affinity). */}}
{{- define "kerf.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations:
{{- range . }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{- with .affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}

{{/* The extender's Service by the address that a scheduler outside the pods' network can call; empty before there is one. */}}
{{- define "kerf.extenderAddress" -}}
{{- $service := lookup "v1" "Service" .Release.Namespace "kerf-extender" | default dict -}}
{{- .Values.extender.clusterIP | default (dig "spec" "clusterIP" "" $service) }}
{{- end }}

{{/* The terms of node affinity that say which nodes are kerf's, as a JSON list. */}}
{{- define "kerf.managedTerms" -}}
{{- $in := list }}
{{- $not := dict "key" "kerf.dev/managed" "operator" "NotIn" "values" (list "false") }}
{{- $present := dict "key" "nvidia.com/gpu.present" "operator" "In" "values" (list "true") }}
{{- with .Values.managedNodes }}
{{- if .labelled }}
{{- $in = append $in (dict "matchExpressions" (list (dict "key" "kerf.dev/managed" "operator" "In" "values" (list "true")))) }}
{{- end }}
{{- if .withoutDevicePlugin }}
{{- $off := dict "key" "nvidia.com/gpu.deploy.device-plugin" "operator" "In" "values" (list "false") }}
{{- $in = append $in (dict "matchExpressions" (list $present $off $not)) }}
{{- end }}
{{- if .nos }}
{{- $nos := dict "key" "nos.nebuly.com/gpu-partitioning" "operator" "In" "values" (list "mig" "mps") }}
{{- $in = append $in (dict "matchExpressions" (list $nos $not)) }}
{{- end }}
{{- if .all }}
{{- $in = append $in (dict "matchExpressions" (list $present $not)) }}
{{- end }}
{{- range .terms }}
{{- $in = append $in (merge (dict "matchExpressions" (append (.matchExpressions | default list) $not)) .) }}
{{- end }}
{{- end }}
{{- toJson $in }}
{{- end }}

{{/* Namespaces whose pods never come to kerf: its own programs must start without it, and so must the control plane. */}}
{{- define "kerf.excludedNamespaces" -}}
[{{ concat (list "kube-system" .Release.Namespace) .Values.webhook.excludedNamespaces | uniq | join ", " }}]
{{- end }}

{{/* Files of policies.files that have a GpuPolicy, in one document or in one of several; empty if none has. */}}
{{- define "kerf.podPolicies" -}}
{{- range $name, $policy := .Values.policies.files }}
{{- range kindIs "string" $policy | ternary (regexSplit "(?m)^---(?:\\s|$)" (toString $policy) -1) (list (toYaml $policy)) }}
{{- if eq (toString (get (fromYaml .) "kind")) "GpuPolicy" }}{{ $name }} {{ end }}
{{- end }}
{{- end }}
{{- end }}
