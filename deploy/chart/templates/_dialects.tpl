{{/* Which pods come to the webhook. The webhook keeps the same true while it runs (core/src/admission/match_condition.rs); a test
holds what this makes against what it writes. */}}

{{/* The dialects of a stream of policies, as text: of each GpuPolicy those that it lists, and mig of one that lists none and takes
them over from no other. A policy that denies takes none. */}}
{{- define "kerf.dialectsOf" -}}
{{- range regexSplit "(?m)^---(?:\\s|$)" . -1 }}
{{- $policy := fromYaml . }}
{{- $spec := get $policy "spec" }}
{{- $spec = kindIs "map" $spec | ternary $spec dict }}
{{- if and (eq (toString (get $policy "kind")) "GpuPolicy") (not (hasKey $spec "deny")) }}
{{- if hasKey $spec "dialects" }} {{ join " " $spec.dialects }}{{ else if not (hasKey $spec "extends") }} mig{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Those of all policies of the chart, as text; or of webhook.dialects. */}}
{{- define "kerf.dialects" -}}
{{- if eq .Values.webhook.matchConditions "fixed" }}
{{- join " " .Values.webhook.dialects }}
{{- else }}
{{- range .Values.policies.files }} {{ include "kerf.dialectsOf" (kindIs "string" . | ternary (toString .) (toYaml .)) }}{{ end }}
{{- if .Values.policies.default }} {{ include "kerf.dialectsOf" (.Files.Get "files/policies/default.yaml") }}{{ end }}
{{- end }}
{{- end }}

{{/* By which annotations, resources and beginnings of resources' names pods ask in these dialects, as JSON. */}}
{{- define "kerf.words" -}}
{{- $kai := list "gpu-fraction" "gpu-memory" "gpu-fraction-num-devices" }}
{{- $words := dict
  "mig" (dict "prefixes" (list "nvidia.com/mig-"))
  "nvidia" (dict "resources" (list "nvidia.com/gpu" "nvidia.com/gpu.shared" "nvidia.com/gpu.mps"))
  "hami" (dict "resources" (list "nvidia.com/gpu" "nvidia.com/gpumem" "nvidia.com/gpumem-percentage" "nvidia.com/gpucores"))
  "gpushare" (dict "resources" (list "aliyun.com/gpu-mem" "aliyun.com/gpu-count"))
  "kai" (dict "annotations" $kai)
  "runai" (dict "annotations" $kai "resources" (list "nvidia.com/gpu")) }}
{{- $of := dict "annotations" list "resources" list "prefixes" list }}
{{- range $dialect := include "kerf.dialects" . | splitList " " | compact }}
{{- range $sort, $keys := get $words $dialect | default dict }}
{{- $_ := set $of $sort (concat (get $of $sort) $keys | uniq | sortAlpha) }}
{{- end }}
{{- end }}
{{- toJson $of }}
{{- end }}

{{/* The CEL expression over a pod that is created. The API server writes every amount of nothing as "0"; charts write that for no
GPU, and a cluster may say of all pods whether they may be moved: neither asks for anything. */}}
{{- define "kerf.asksForGpus" -}}
{{- $words := include "kerf.words" . | fromJson -}}
has(object.metadata.labels) && object.metadata.labels.exists(k, k.startsWith('kerf.dev/'))
|| has(object.metadata.annotations) && object.metadata.annotations.exists(k,
k.startsWith('kerf.dev/') && k != 'kerf.dev/movable'
{{- with $words.annotations }} || k in ['{{ join "', '" . }}']{{ end }})
|| [has(object.spec.containers) ? object.spec.containers : null,
has(object.spec.initContainers) ? object.spec.initContainers : null].exists(l, l != null && l.exists(c,
has(c.resources) && [has(c.resources.limits) ? c.resources.limits : {},
has(c.resources.requests) ? c.resources.requests : {}].exists(m, m.exists(k,
k.startsWith('kerf.dev/') || k.startsWith('gpu-')
|| (k.matches('^nvidia[.]com/gpu-[0-9]+gb([.]shared)?$')
{{- with $words.resources }} || k in ['{{ join "', '" . }}']{{ end }}
{{- range $words.prefixes }} || k.startsWith('{{ . }}'){{ end }}) && string(m[k]) != '0'))))
{{- end }}

{{/* The schedulers that ask the extender, as a CEL list. */}}
{{- define "kerf.schedulers" -}}
{{- $own := eq .Values.scheduler.mode "main" | ternary "default-scheduler" .Values.scheduler.name -}}
['{{ concat (list $own) .Values.scheduler.others | uniq | join "', '" }}']
{{- end }}
