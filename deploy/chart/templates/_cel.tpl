{{/* CEL over pods that several objects share. */}}

{{/* The kubelet mirrors static pods, which run already. Only a kubelet is in this group. */}}
{{- define "kerf.noMirrorPod" -}}
!('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({})
&& 'system:nodes' in request.userInfo.?groups.orValue([]))
{{- end }}

{{/* Whether k is a resource's name that only kerf serves. */}}
{{- define "kerf.onlyKerfServes" -}}
(k.startsWith('kerf.dev/') || k.matches('^nvidia[.]com/gpu-[0-9]+gb([.]shared)?$'))
{{- end }}
