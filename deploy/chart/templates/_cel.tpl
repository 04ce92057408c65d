{{/* CEL over pods that several objects share. */}}

{{/* The kubelet mirrors static pods, which run already. Only a kubelet is in this group. */}}
{{- define "kerf.noMirrorPod" -}}
!('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({})
&& 'system:nodes' in request.userInfo.?groups.orValue([]))
{{- end }}

{{/* The keys of the annotations that kerf writes into pods. */}}
{{- define "kerf.writtenKeys" -}}
['kerf.dev/request', 'kerf.dev/assignment', 'kerf.dev/epoch', 'kerf.dev/room']
{{- end }}

{{/* Whether k is the key of an annotation by which a pod asks kerf. */}}
{{- define "kerf.isRequestKey" -}}
k.matches('^kerf[.]dev/(gpu-(memory|profile|count|model|model-not|uuid|uuid-not)|compute|isolation|memory-match)([.].*)?$')
{{- end }}

{{/* Whether k is a resource's name that only kerf serves. */}}
{{- define "kerf.onlyKerfServes" -}}
(k.startsWith('kerf.dev/') || k.matches('^nvidia[.]com/gpu-[0-9]+gb([.]shared)?$'))
{{- end }}
