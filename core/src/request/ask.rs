//! What a pod asks for, before a policy has chosen how it is served.

use super::{AskError, GpuSelection, Role};
use crate::kind::{IsolationClass, Kind};
use crate::mig::{ComputeProfile, Profile};
use crate::policy::{DEFAULT_SIDECARS, Dialect, PolicySpec};
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// What a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAsk {
    /// The class that the pod names, if it names one.
    pub isolation: Option<IsolationClass>,
    /// The containers that ask, in the kubelet's order: init containers and sidecars, then app containers.
    pub containers: Vec<ContainerAsk>,
    /// Which GPUs may serve it.
    pub gpus: GpuSelection,
    /// The dialect that it asks in; `None` for kerf's own keys.
    pub dialect: Option<Dialect>,
    /// Keys of that dialect's that ask for what kerf does not give.
    pub ignored: Vec<String>,
}

/// What one container asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerAsk {
    /// The container's name.
    pub name: String,
    /// When it runs.
    pub role: Role,
    /// What each slice must be.
    pub want: Want,
    /// How many slices.
    pub count: u32,
    /// The key that asked and what it says, for messages.
    pub by: String,
    /// The memory that each slice must really have; `None` where its nominal size is enough.
    pub memory: Option<MemoryMib>,
    /// The least share of a GPU's compute that each slice must have.
    pub compute: Option<ComputePercent>,
    /// Whether each slice must be of another GPU, as a count is meant in other systems' words.
    pub distinct_gpus: bool,
}

/// What a slice must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Any slice of this nominal size or more.
    Size(SizeGb),
    /// Exactly this MIG profile.
    Profile(Profile),
    /// Exactly this compute instance.
    Compute(ComputeProfile),
    /// One of the equal time slices of an instance of this MIG profile.
    MigReplica(Profile),
    /// A share of this kind and size.
    Share(Kind, SizeGb),
    /// A whole GPU, of whatever size.
    Whole,
    /// One of a GPU's equal time slices.
    Replica,
    /// One of a GPU's equal MPS shares.
    MpsReplica,
}

impl ContainerAsk {
    /// An ask by name, with nothing beside.
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

    /// The same where the count is of GPUs.
    pub(super) fn of_distinct_gpus(self) -> Self {
        Self { distinct_gpus: self.count > 1, ..self }
    }

    /// The refusal of two asks of one container.
    pub(super) fn twice(&self, second: &Self) -> AskError {
        let (container, first, second) = (self.name.clone(), self.by.clone(), second.by.clone());
        AskError::Twice { container, first, second }
    }
}

impl PodAsk {
    /// The class that the names themselves speak of, where the pod asks by no size: a whole GPU is nobody else's, an
    /// MPS share has its memory, and one of a GPU's or a MIG instance's time slices is fenced by nothing.
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

/// How the policy that is for a pod lets it be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading<'p> {
    /// Other systems' ways to ask that are understood.
    pub dialects: &'p BTreeSet<Dialect>,
    /// The GPU memory of which fractions are fractions; `None` if that is not known.
    pub fraction_of: Option<SizeGb>,
    /// The names of containers that injectors add to pods; `None` for those that are known everywhere.
    pub sidecars: Option<&'p [String]>,
}

static NO_DIALECT: BTreeSet<Dialect> = BTreeSet::new();
static ONLY_MIG: LazyLock<BTreeSet<Dialect>> = LazyLock::new(|| BTreeSet::from([Dialect::Mig]));

impl<'p> Reading<'p> {
    /// Of a pod that no policy is for: by kerf's own keys, and it may name its node, for nothing becomes of it anyway. Where some
    /// policy takes the names of MIG devices, the pod may not have one by such a name either.
    #[must_use]
    pub fn without_policy(in_force: &BTreeSet<Dialect>) -> Reading<'static> {
        let dialects = if in_force.contains(&Dialect::Mig) { &*ONLY_MIG } else { &NO_DIALECT };
        Reading { dialects, fraction_of: None, sidecars: None }
    }

    /// As `policy` says, in a cluster whose largest GPU has `largest`.
    #[must_use]
    pub fn of(policy: &'p PolicySpec, largest: Option<SizeGb>) -> Self {
        let fraction_of = policy.fraction_of_gb.or(largest);
        let sidecars = Some(policy.sidecars.as_slice());
        Self { dialects: &policy.dialects, fraction_of, sidecars }
    }

    /// Whether a container of this name was added by an injector, and is nobody's that asks without a container's name.
    #[must_use]
    pub fn is_sidecar(&self, name: &str) -> bool {
        match self.sidecars {
            Some(names) => names.iter().any(|sidecar| sidecar == name),
            None => DEFAULT_SIDECARS.contains(&name),
        }
    }

    /// Whether `dialect` is understood.
    #[must_use]
    pub fn knows(&self, dialect: Dialect) -> bool {
        self.dialects.contains(&dialect)
    }
}
