//! The layouts of the sharing demos as data: a node's GPU, the applied pods, and the expected result. They
//! come from the demos' own texts, which [`docs/reference-demos.md`] names. A test applies each layout and
//! compares.
//!
//! [`docs/reference-demos.md`]: ../../docs/reference-demos.md

use kerf_nvml_mock::Model;

/// A layout on a node with one GPU, and the expected result of its validation workload.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The folder below `deploy/overlays`.
    pub overlay: &'static str,
    /// The folder below `deploy/examples/validation`.
    pub workload: &'static str,
    pub gpu: Model,
    /// Whether the overlay needs MIG mode on the GPU.
    pub mig: bool,
    pub running: usize,
    pub pending: usize,
    /// The node's allocatable before any pod exists. It is set for NVIDIA's plugin only, because kerf's agent
    /// offers only reserved slices.
    pub allocatable: &'static [(&'static str, u32)],
    /// Labels of the node while the pods run, without `nvidia.com/`.
    pub labels: &'static [(&'static str, &'static str)],
}

/// A layout of NVIDIA's plugin, and its workload as in the demo.
const fn of_nvidia(overlay: &'static str, workload: &'static str, gpu: Model) -> Layout {
    Layout { overlay, workload, gpu, mig: false, running: 0, pending: 0, allocatable: &[], labels: &[] }
}

/// Layouts on nodes that NVIDIA's device plugin serves. The instances of `mig-mixed` are NVIDIA's
/// `all-balanced` of an A100 with 80 GB; the test cuts them in place of NVIDIA's MIG manager.
pub const STATIC: [Layout; 7] = [
    Layout {
        running: 1,
        pending: 1,
        allocatable: &[("nvidia.com/gpu", 1)],
        labels: &[
            ("gpu.product", "NVIDIA-A10G"),
            ("gpu.count", "1"),
            ("gpu.memory", "23028"),
            ("gpu.replicas", "1"),
            ("gpu.sharing-strategy", "none"),
        ],
        ..of_nvidia("default", "nvidia/default", Model::A10G)
    },
    Layout {
        running: 2,
        allocatable: &[("nvidia.com/gpu", 2)],
        labels: &[
            ("gpu.product", "NVIDIA-A10G-SHARED"),
            ("gpu.count", "1"),
            ("gpu.memory", "23028"),
            ("gpu.replicas", "2"),
            ("gpu.sharing-strategy", "time-slicing"),
            ("mps.capable", "false"),
        ],
        ..of_nvidia("time-sliced-2", "nvidia/time-sliced-2", Model::A10G)
    },
    Layout {
        running: 4,
        allocatable: &[("nvidia.com/gpu", 4)],
        labels: &[
            ("gpu.product", "NVIDIA-A10G-SHARED"),
            ("gpu.replicas", "4"),
            ("gpu.sharing-strategy", "time-slicing"),
        ],
        ..of_nvidia("time-sliced-4", "nvidia/time-sliced-4", Model::A10G)
    },
    Layout {
        mig: true,
        running: 7,
        allocatable: &[("nvidia.com/gpu", 7)],
        labels: &[
            ("gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"),
            ("gpu.count", "7"),
            ("gpu.memory", "9728"),
            ("mig.capable", "true"),
            ("mig.strategy", "single"),
        ],
        ..of_nvidia("mig-single", "nvidia/mig-single", Model::A100Gb80)
    },
    Layout {
        mig: true,
        running: 2,
        allocatable: &[
            ("nvidia.com/mig-1g.10gb", 2),
            ("nvidia.com/mig-2g.20gb", 1),
            ("nvidia.com/mig-3g.40gb", 1),
        ],
        labels: &[
            ("gpu.product", "NVIDIA-A100-SXM4-80GB"),
            ("mig.strategy", "mixed"),
            ("mig-1g.10gb.count", "2"),
            ("mig-1g.10gb.product", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"),
            ("mig-3g.40gb.count", "1"),
        ],
        ..of_nvidia("mig-mixed", "nvidia/mig-mixed", Model::A100Gb80)
    },
    Layout {
        running: 2,
        allocatable: &[("nvidia.com/gpu", 2)],
        labels: &[
            ("gpu.product", "NVIDIA-A10G-SHARED"),
            ("gpu.replicas", "2"),
            ("gpu.sharing-strategy", "mps"),
            ("mps.capable", "true"),
        ],
        ..of_nvidia("mps-2", "nvidia/mps-2", Model::A10G)
    },
    Layout {
        running: 4,
        allocatable: &[("nvidia.com/gpu", 4)],
        labels: &[
            ("gpu.product", "NVIDIA-A10G-SHARED"),
            ("gpu.replicas", "4"),
            ("gpu.sharing-strategy", "mps"),
            ("mps.capable", "true"),
        ],
        ..of_nvidia("mps-4", "nvidia/mps-4", Model::A10G)
    },
];

/// The same layouts on nodes that kerf's agent serves, with the workloads by size. The labels are those while
/// the pods run. kerf cuts on demand and idle slices stay, so of two layouts on one GPU the one with fewer
/// instances comes first.
pub const MANAGED: [Layout; 7] = [
    Layout {
        running: 1,
        pending: 1,
        labels: &[("gpu.product", "NVIDIA-A10G"), ("gpu.replicas", "1"), ("gpu.sharing-strategy", "none")],
        ..of_nvidia("managed-default", "kerf/default", Model::A10G)
    },
    Layout {
        running: 2,
        labels: &[
            ("gpu.product", "NVIDIA-A10G-SHARED"),
            ("gpu.replicas", "2"),
            ("gpu.sharing-strategy", "time-slicing"),
        ],
        ..of_nvidia("managed-time-sliced", "kerf/time-sliced-2", Model::A10G)
    },
    Layout {
        running: 4,
        labels: &[
            ("gpu.product", "NVIDIA-A10G-SHARED"),
            ("gpu.replicas", "4"),
            ("gpu.sharing-strategy", "time-slicing"),
        ],
        ..of_nvidia("managed-time-sliced", "kerf/time-sliced-4", Model::A10G)
    },
    Layout {
        running: 2,
        labels: &[
            ("gpu.product", "NVIDIA-A10G-SHARED"),
            ("gpu.replicas", "2"),
            ("gpu.sharing-strategy", "mps"),
            // The label starts NVIDIA's MPS daemon, but kerf has its own.
            ("mps.capable", "false"),
        ],
        ..of_nvidia("managed-mps", "kerf/mps-2", Model::A10G)
    },
    Layout {
        running: 4,
        labels: &[
            ("gpu.product", "NVIDIA-A10G-SHARED"),
            ("gpu.replicas", "4"),
            ("gpu.sharing-strategy", "mps"),
        ],
        ..of_nvidia("managed-mps", "kerf/mps-4", Model::A10G)
    },
    Layout {
        mig: true,
        running: 2,
        labels: &[
            ("mig.strategy", "mixed"),
            ("mig-1g.10gb.count", "2"),
            ("mig-1g.10gb.memory", "9728"),
            ("mig-1g.10gb.multiprocessors", "14"),
        ],
        ..of_nvidia("managed-mig-mixed", "kerf/mig-mixed", Model::A100Gb80)
    },
    Layout {
        mig: true,
        running: 7,
        labels: &[
            ("gpu.product", "NVIDIA-A100-SXM4-80GB"),
            ("mig.strategy", "mixed"),
            ("mig-1g.10gb.count", "7"),
        ],
        ..of_nvidia("managed-mig-single", "kerf/mig-single", Model::A100Gb80)
    },
];
