//! What the layouts of the sharing demos show, as data: which GPUs a node has, which pods are applied, and what is seen then. From the
//! demos' own texts ([`docs/reference-demos.md`] says which); a test applies a layout and compares.
//!
//! [`docs/reference-demos.md`]: ../../docs/reference-demos.md

use kerf_nvml_mock::Model;

/// A layout on a node with one GPU, and what its validation workload shows.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The folder below `deploy/overlays`.
    pub overlay: &'static str,
    /// The folder below `deploy/examples/validation`.
    pub workload: &'static str,
    /// The node's GPU.
    pub gpu: Model,
    /// Whether the overlay wants its MIG mode on.
    pub mig: bool,
    /// Pods that run.
    pub running: usize,
    /// Pods that wait.
    pub pending: usize,
    /// What the node can be asked for before any pod is there. NVIDIA's plugin tells it so; kerf's agent offers what is promised.
    pub allocatable: &'static [(&'static str, u32)],
    /// Labels of the node while the pods run, behind `nvidia.com/`.
    pub labels: &'static [(&'static str, &'static str)],
}

/// A layout of NVIDIA's plugin, and its workload as the demo has it.
const fn of_nvidia(overlay: &'static str, workload: &'static str, gpu: Model) -> Layout {
    Layout { overlay, workload, gpu, mig: false, running: 0, pending: 0, allocatable: &[], labels: &[] }
}

/// Layouts on nodes that NVIDIA's device plugin serves. `nvidia.com/mig-…` of `mig-mixed` are NVIDIA's `all-balanced` of an
/// A100 with 80 GB, which whoever stands in for NVIDIA's MIG manager cuts.
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

/// The same layouts on nodes that kerf's agent serves, with the workloads by size. Labels are those while the pods run: kerf cuts as
/// they come, and what is idle stays cut, so of two layouts on one GPU that with fewer instances stands first.
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
            // NVIDIA's MPS daemon is started by it, and kerf has its own.
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
