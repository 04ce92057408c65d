//! Everything that can be wrong with one policy document: each mistake one case with one text.

use super::LabelOperator;
use super::document_field::Field;
use crate::kind::{IsolationClass, Kind};
use crate::names::GpuUuid;
use crate::resource::ResourceName;
use crate::units::SizeGb;
use thiserror::Error;

/// Why a policy document is refused: a field, and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {fault}")]
pub struct PolicyError {
    /// The field.
    pub field: Field,
    /// What is wrong.
    pub fault: PolicyFault,
}

/// What is wrong with a field, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyFault {
    /// Another version.
    #[error("{0:?} is not known; this program reads kerf.dev/v1alpha1")]
    Version(String),
    /// Another kind of document.
    #[error("{0:?} is not known; write GpuPolicy or GpuNodePolicy")]
    Kind(String),
    /// No name of an object.
    #[error("{0:?} is no name; write lower case letters, digits, dashes and dots, as in team-a")]
    Name(String),
    /// A star in the middle of a name.
    #[error("{0:?} is no name and no beginning of one; a * may stand at the end only, as in team-*")]
    Pattern(String),
    /// No label's key.
    #[error("{0:?} is no label's key; write it like team or example.com/team")]
    LabelKey(String),
    /// No label's value.
    #[error(
        "{0:?} is no label's value; write at most 63 letters, digits, dashes, underscores and dots that begin and end with a letter or a digit"
    )]
    LabelValue(String),
    /// The same twice in a list.
    #[error("{0} is listed twice; remove one")]
    Twice(String),
    /// No word at all.
    #[error("the text is empty; write a name, or remove it")]
    Blank,
    /// A field without which a policy serves nobody.
    #[error(
        "the field is missing; write it, or name a policy that has it in spec.extends, or write spec.deny"
    )]
    Missing,
    /// No reason for `deny`.
    #[error("the reason is empty; write the reason that refused users read, or remove the field")]
    NoReason,
    /// A field beside `deny`.
    #[error("a policy with spec.deny has spec.match and nothing else; remove this field, or spec.deny")]
    BesideDeny,
    /// The policy that a policy extends is not there.
    #[error("no GpuPolicy is called {0}; write it into a policy file, or name another")]
    NoBase(String),
    /// The policy that a policy extends serves nobody.
    #[error("policy {0} has spec.deny and gives nothing to extend; name another")]
    DenyingBase(String),
    /// A policy extends itself.
    #[error("the policies form a cycle: {0}; remove spec.extends from one of them")]
    Cycle(String),
    /// What is inherited does not make a policy.
    #[error("{0}; it is inherited, write the field here or correct it there")]
    Unreadable(String),
    /// A model for which kinds are named and which the policy does not allow.
    #[error("{0} is not in spec.models, so its pods never have it; add it there, or remove this entry")]
    ModelNotAllowed(String),
    /// The models and kinds leave nothing for a class.
    #[error(
        "no GPU model of spec.models may serve a kind of this class by spec.kindsByModel; allow one there, or leave the class out to forbid it"
    )]
    NoModelForClass,
    /// A selector that selects everything.
    #[error("the selector is empty; name labels or expressions, or leave the field out for all namespaces")]
    EmptySelector,
    /// Values where there are none, or none where there must be some.
    #[error("{0} {takes}", takes = if matches!(.0, LabelOperator::In | LabelOperator::NotIn) { "needs values; name at least one" } else { "takes no values; remove them" })]
    Values(LabelOperator),
    /// A class falls below its promise.
    #[error("a slice of kind {kind} isolates less than {class} promises; remove it")]
    TooWeak {
        /// The class.
        class: IsolationClass,
        /// The kind.
        kind: Kind,
    },
    /// A class has no kind.
    #[error("no kind is listed; list at least one, or leave the class out to forbid it")]
    NoKind,
    /// The default class is not allowed.
    #[error("{0} has no entry in spec.isolation; add one")]
    Default(IsolationClass),
    /// A limit of nothing.
    #[error("0 is too little; write 1 or more")]
    Zero,
    /// A size that no GPU has.
    #[error("no GPU has {0}; the largest has {largest}", largest = crate::units::LARGEST_SIZE)]
    TooLarge(SizeGb),
    /// The largest size is smaller than the smallest.
    #[error("{max} is less than spec.sizes.minGb, {min}; no size is left")]
    MaxBelowMin {
        /// The smallest size.
        min: SizeGb,
        /// The largest.
        max: SizeGb,
    },
    /// No step lies between the smallest and the largest size.
    #[error("no multiple of {step} is at least {min} and at most {max}; no size is left")]
    Step {
        /// The step.
        step: SizeGb,
        /// The smallest size.
        min: SizeGb,
        /// The largest.
        max: SizeGb,
    },
    /// A cap that the smallest allowed request exceeds.
    #[error(
        "{cap} GB is less than the smallest size that may be asked for, {smallest}; no pod could be served"
    )]
    CapBelowSize {
        /// The cap in GB.
        cap: u32,
        /// The smallest size.
        smallest: SizeGb,
    },
    /// A namespace may hold less than one of its pods may ask for.
    #[error(
        "{quota} is less than what one pod may ask for, {pod} (spec.maxPerPod); such a pod would wait for ever: raise this or lower that"
    )]
    QuotaBelowPod {
        /// The namespace's.
        quota: u32,
        /// The pod's.
        pod: u32,
    },
    /// A weight that is none.
    #[error("{0} percent is out of bounds; write 1 to 10000")]
    Weight(u32),
    /// An operator that tolerations do not have.
    #[error("{0:?} is no operator of a toleration; write Exists or Equal")]
    Operator(String),
    /// An effect that taints do not have.
    #[error(
        "{0:?} is no effect of a taint; write NoSchedule, PreferNoSchedule or NoExecute, or leave it out for all"
    )]
    Effect(String),
    /// A toleration of every value with a value.
    #[error("Exists tolerates every value; remove the value, or write operator: Equal")]
    ValueWithExists,
    /// A toleration of a value of no key.
    #[error("without a key only operator: Exists is allowed, which tolerates every taint; name a key")]
    NoKey,
    /// A rule for GPUs that may be used for nothing.
    #[error("no kind is listed; list at least one, or leave the field out to allow all")]
    NoKindOfGpu,
    /// A setting for a kind that the rule does not allow.
    #[error(
        "this setting is for {kind}, which the rule's kinds do not list; add {kind} or remove the setting"
    )]
    WithoutKind {
        /// The kind that it is for.
        kind: Kind,
    },
    /// GPU instances that are shared out in two ways.
    #[error(
        "computeInstances stands beside it, and GPU instances are shared out in one way; remove one of the two"
    )]
    PartsAndTurns,
    /// Too few replicas.
    #[error("{0} replicas share nothing; write 2 or more, or remove it for slices by size")]
    Replicas(u32),
    /// A size that no share has.
    #[error("no share has {size}; the nearest size with a name is {nearest}")]
    NoShare {
        /// The size.
        size: SizeGb,
        /// The nearest that shares have.
        nearest: SizeGb,
    },
    /// A GPU is named by its number, which another GPU may have after a boot or a loss.
    #[error(
        "NVML's indexes shift when a GPU is lost or the machine boots, so no policy may name GPUs by them; write select.uuids \
         (GPU-...) or select.pciBusIds (0000:65:00.0), which `kerf nodes -o wide` and `kerf gpu list` print"
    )]
    Indexes,
    /// A text that is no GPU's UUID.
    #[error(
        "{0} is no GPU's UUID; write one that begins with GPU-, as `kerf nodes -o wide` and `kerf gpu list` print it"
    )]
    NoUuid(GpuUuid),
    /// A rule behind one that names every GPU.
    #[error("spec.gpus[{0}] names every GPU, so this rule is never used; move it before that one")]
    RuleNeverUsed(usize),
    /// Nothing is kept ready.
    #[error("0 slices are kept ready without being named; write 1 or more, or remove the entry")]
    NoWarm,
    /// What no GPU of the node may be used for is to be kept ready.
    #[error("{resource} is of kind {kind}, which no rule of spec.gpus allows; allow it, or remove the entry")]
    WarmKind {
        /// The name.
        resource: ResourceName,
        /// Its kind.
        kind: Kind,
    },
    /// A setting for kerf's own nodes beside a layout of NVIDIA's device plugin.
    #[error(
        "this is for kerf's own nodes, and spec.plugin for those that NVIDIA's device plugin serves; write two policies"
    )]
    BesidePlugin,
    /// Two ways to share at once.
    #[error(
        "timeSlicing stands beside it, and NVIDIA's device plugin shares a node's GPUs in one way; remove one"
    )]
    TwoSharings,
    /// Replicas that share nothing, in a layout.
    #[error("{0} replicas share nothing; write 2 or more, or remove the field for whole GPUs")]
    FewReplicas(u32),
    /// More replicas than there can be.
    #[error("{replicas} replicas are too many; write at most {most}")]
    ManyReplicas {
        /// What was written.
        replicas: u32,
        /// The most.
        most: u32,
    },
    /// MPS and MIG at once.
    #[error(
        "NVIDIA's device plugin has no MPS on MIG devices; write migStrategy: none, or timeSlicing instead of mps"
    )]
    MpsWithMig,
    /// How GPUs are cut, where no slice is offered.
    #[error(
        "with migStrategy none the plugin offers no MIG device; write migStrategy: single or mixed, or remove it"
    )]
    MigConfigWithoutStrategy,
    /// The name of the configuration that nodes without a label have.
    #[error(
        "default is the configuration of nodes that no policy with spec.plugin is for; choose another name"
    )]
    ReservedLayoutName,
    /// A name that is no label's value with what may stand behind it.
    #[error(
        "{0:?} is too long for a node's label; write at most {most} characters",
        most = crate::plugin_layout::LONGEST_LAYOUT_NAME
    )]
    LongLayoutName(String),
}

impl PolicyFault {
    /// As the mistake of a field.
    #[must_use]
    pub fn of(self, field: Field) -> PolicyError {
        PolicyError { field, fault: self }
    }
}
