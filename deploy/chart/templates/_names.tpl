{{/* Labels of an object: (list . "component"). Those of Helm's own are left out of deploy/base. */}}
{{- define "kerf.labels" -}}
{{- $root := index . 0 }}
{{- $labels := dict "app.kubernetes.io/version" $root.Chart.AppVersion "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") }}
{{- toYaml (merge $labels (include "kerf.lastingLabels" . | fromYaml) $root.Values.commonLabels) }}
{{- end }}

{{/* Those that an upgrade does not change: (list . "component"). */}}
{{- define "kerf.lastingLabels" -}}
app.kubernetes.io/name: kerf-{{ index . 1 }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: kerf
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end }}

{{/* The service account of a program: (list . "component"). */}}
{{- define "kerf.serviceAccount" -}}
{{- $values := get (index . 0).Values (index . 1 | camelcase | untitle) | default dict }}
{{- dig "serviceAccount" "name" "" $values | default (printf "kerf-%s" (index . 1)) }}
{{- end }}

{{/* The name under which it comes to the API server: (list . "component"). */}}
{{- define "kerf.user" -}}
system:serviceaccount:{{ (index . 0).Release.Namespace }}:{{ include "kerf.serviceAccount" . }}
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

{{/* "true" where Helm sees a cluster, and may look. */}}
{{- define "kerf.seesCluster" -}}
{{- if and (ne .Values.preflight "never") (lookup "v1" "Namespace" "" "kube-system") }}true{{ end }}
{{- end }}

{{/* The extender's Service by the address that a scheduler outside the pods' network can call; empty before there is one. */}}
{{- define "kerf.extenderAddress" -}}
{{- $service := dict -}}
{{- if include "kerf.seesCluster" . }}{{ $service = lookup "v1" "Service" .Release.Namespace "kerf-extender" | default dict }}{{ end -}}
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

{{/* Files of policies.files that have a GpuPolicy, in one document or in one of several; empty if none has. */}}
{{- define "kerf.podPolicies" -}}
{{- range $name, $policy := .Values.policies.files }}
{{- range kindIs "string" $policy | ternary (regexSplit "(?m)^---(?:\\s|$)" (toString $policy) -1) (list (toYaml $policy)) }}
{{- if eq (toString (get (fromYaml .) "kind")) "GpuPolicy" }}{{ $name }} {{ end }}
{{- end }}
{{- end }}
{{- end }}
