// What waits as the first process of a pod, and the only program of the image that pods on a GPU machine run from.
module kerf.dev/tests/tools/pause

go 1.26.0
