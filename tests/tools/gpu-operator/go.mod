// GPU Operator, of which tests take the CRD of its ClusterPolicy. The newest version that a module proxy has.
module kerf.dev/tests/tools/gpu-operator

go 1.26.0

require github.com/NVIDIA/gpu-operator v1.11.1
