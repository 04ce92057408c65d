//! A pod's request, before a policy chooses how it is served.

use super::{AskError, Dialect, GpuSelection, Role};
use crate::kind::{IsolationClass, Kind};
use crate::mig::{ComputeProfile, Profile};
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// The request of a pod, as its annotations and limits state it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAsk {
    /// The isolation class that the pod names; `None` if it names none.
    pub isolation: Option<IsolationClass>,
    /// The containers that ask, in the kubelet's order: init containers and sidecars, then app containers.
    pub containers: Vec<ContainerAsk>,
    /// The GPUs that may serve the pod.
    pub gpus: GpuSelection,
    /// The dialect of the request; `None` if it uses kerf's own keys only.
    pub dialect: Option<Dialect>,
    /// Keys of this dialect for which kerf has no equivalent. The user gets a warning about each.
    pub ignored: Vec<String>,
}

/// The request of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerAsk {
    /// Name of the container in the pod.
    pub name: String,
    /// When the container runs: before, beside or as one of the app containers.
    pub role: Role,
    /// What each slice must be.
    pub want: Want,
    /// How many slices the container asks for, at least one.
    pub count: u32,
    /// The key that asks, with its value, for messages.
    pub by: String,
    /// The real memory that each slice must have; `None` if its nominal size is enough.
    pub memory: Option<MemoryMib>,
    /// The least share of a GPU's compute that each slice must have; `None` if none is asked for.
    pub compute: Option<ComputePercent>,
    /// Whether each slice must be on another GPU, because other systems count GPUs and not slices.
    pub distinct_gpus: bool,
}

/// What one slice must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Any slice of this nominal size or more.
    Size(SizeGb),
    /// An instance of exactly this MIG profile.
    Profile(Profile),
    /// A compute instance of exactly this profile.
    Compute(ComputeProfile),
    /// One of the equal time slices of an instance of this MIG profile.
    MigReplica(Profile),
    /// A share of this kind and nominal size.
    Share(Kind, SizeGb),
    /// A whole GPU of any size.
    Whole,
    /// One of a GPU's equal time slices.
    Replica,
    /// One of a GPU's equal MPS shares.
    MpsReplica,
}

impl ContainerAsk {
    /// A request without conditions on memory, compute or different GPUs.
    pub(super) fn new(name: &str, role: Role, want: Want, count: u32, by: String) -> Self {
        Self {
            name: name.to_owned(),
            role,
            want,
            count,
            by,
            memory: None,
            compute: None,
            distinct_gpus: false,
        }
    }

    /// The same request, where a count above one is of different GPUs.
    pub(super) fn of_distinct_gpus(self) -> Self {
        Self { distinct_gpus: self.count > 1, ..self }
    }

    /// The refusal of a container that asks twice.
    pub(super) fn twice(&self, second: &Self) -> AskError {
        let (container, first, second) = (self.name.clone(), self.by.clone(), second.by.clone());
        AskError::Twice { container, first, second }
    }
}

impl PodAsk {
    /// The class that the resource names imply; `None` if the pod asks by size or by a kind. A whole GPU implies
    /// `hardware`, an equal MPS share implies `memory`, and an equal time slice of a GPU or MIG instance implies
    /// `none`. Of several containers the weakest counts.
    #[must_use]
    pub fn implied_class(&self) -> Option<IsolationClass> {
        let class = |container: &ContainerAsk| match container.want {
            Want::Whole => Some(IsolationClass::Hardware),
            Want::MpsReplica => Some(IsolationClass::Memory),
            Want::Replica | Want::MigReplica(_) => Some(IsolationClass::None),
            Want::Size(_) | Want::Profile(_) | Want::Compute(_) | Want::Share(..) => None,
        };
        let weakest = |weakest: Option<IsolationClass>, container| Some(weakest?.min(class(container)?));
        self.containers.iter().fold(Some(IsolationClass::Hardware), weakest)
    }
}

/// How a pod's request is read under the policy that matches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading<'p> {
    /// The dialects that the policy accepts.
    pub dialects: &'p BTreeSet<Dialect>,
    /// The GPU memory that fractions refer to; `None` if the policy names none and the cluster has no GPU.
    pub fraction_of: Option<SizeGb>,
    /// The names of containers that injectors add; `None` for the default names.
    pub sidecars: Option<&'p [String]>,
}

/// The sidecar containers that Istio and Linkerd inject into pods.
pub const DEFAULT_SIDECARS: [&str; 2] = ["istio-proxy", "linkerd-proxy"];

static NO_DIALECT: BTreeSet<Dialect> = BTreeSet::new();
static ONLY_MIG: LazyLock<BTreeSet<Dialect>> = LazyLock::new(|| BTreeSet::from([Dialect::Mig]));

impl Reading<'_> {
    /// How a pod is read that no policy matches: by kerf's own keys. If some policy in force accepts the names of MIG
    /// devices, these are read too, so that the pod cannot get a MIG device without a policy.
    #[must_use]
    pub fn without_policy(in_force: &BTreeSet<Dialect>) -> Reading<'static> {
        let dialects = if in_force.contains(&Dialect::Mig) { &*ONLY_MIG } else { &NO_DIALECT };
        Reading { dialects, fraction_of: None, sidecars: None }
    }

    /// Whether an injector added the container of this name. Keys without a container's name never mean such a
    /// container.
    #[must_use]
    pub fn is_sidecar(&self, name: &str) -> bool {
        match self.sidecars {
            Some(names) => names.iter().any(|sidecar| sidecar == name),
            None => DEFAULT_SIDECARS.contains(&name),
        }
    }

    /// Whether the policy accepts this dialect.
    #[must_use]
    pub fn knows(&self, dialect: Dialect) -> bool {
        self.dialects.contains(&dialect)
    }
}
