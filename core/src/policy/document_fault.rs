//! All mistakes that one policy document can have. Each mistake is one variant with one text.

use super::LabelOperator;
use super::document_field::Field;
use crate::kind::{IsolationClass, Kind};
use crate::names::GpuUuid;
use crate::resource::ResourceName;
use crate::units::SizeGb;
use thiserror::Error;

/// A mistake in a policy document: a field, and its fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {fault}")]
pub struct PolicyError {
    /// The path of the field, from the document's root.
    pub field: Field,
    /// The fault of this field, with the remedy.
    pub fault: PolicyFault,
}

/// The fault of a field, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyFault {
    /// `apiVersion` is not the version that kerf reads.
    #[error("{0:?} is not known; this program reads kerf.dev/v1alpha1")]
    Version(String),
    /// `kind` is not a policy's kind.
    #[error("{0:?} is not known; write GpuPolicy or GpuNodePolicy")]
    Kind(String),
    /// The text is not a valid object name.
    #[error("{0:?} is no name; write lower case letters, digits, dashes and dots, as in team-a")]
    Name(String),
    /// A `*` is not at the end of a name.
    #[error("{0:?} is no name and no beginning of one; a * may stand at the end only, as in team-*")]
    Pattern(String),
    /// The text is not a valid label key.
    #[error("{0:?} is no label's key; write it like team or example.com/team")]
    LabelKey(String),
    /// The text is not a valid label value.
    #[error(
        "{0:?} is no label's value; write at most 63 letters, digits, dashes, underscores and dots that begin and end with a letter or a digit"
    )]
    LabelValue(String),
    /// A list contains the same item twice.
    #[error("{0} is listed twice; remove one")]
    Twice(String),
    /// A list contains an empty text.
    #[error("the text is empty; write a name, or remove it")]
    Blank,
    /// A required field is absent, so the policy would serve no pod.
    #[error(
        "the field is missing; write it, or name a policy that has it in spec.extends, or write spec.deny"
    )]
    Missing,
    /// `spec.deny` has an empty reason.
    #[error("the reason is empty; write the reason that refused users read, or remove the field")]
    NoReason,
    /// Another field than `match` is set with `deny`.
    #[error("a policy with spec.deny has spec.match and nothing else; remove this field, or spec.deny")]
    BesideDeny,
    /// No policy has the name in `spec.extends`.
    #[error("no GpuPolicy is called {0}; write it into a policy file, or name another")]
    NoBase(String),
    /// The policy in `spec.extends` has `deny`, so it has nothing to inherit.
    #[error("policy {0} has spec.deny and gives nothing to extend; name another")]
    DenyingBase(String),
    /// Policies extend each other in a cycle.
    #[error("the policies form a cycle: {0}; remove spec.extends from one of them")]
    Cycle(String),
    /// An inherited field and the policy's own fields contradict each other.
    #[error("{0}; it is inherited, write the field here or correct it there")]
    Unreadable(String),
    /// `kindsByModel` has an entry for a model that `models` does not allow.
    #[error("{0} is not in spec.models, so its pods never have it; add it there, or remove this entry")]
    ModelNotAllowed(String),
    /// `models` and `kindsByModel` leave a class without any GPU.
    #[error(
        "no GPU model of spec.models may serve a kind of this class by spec.kindsByModel; allow one there, or leave the class out to forbid it"
    )]
    NoModelForClass,
    /// The namespace selector is empty, so it would select every namespace.
    #[error("the selector is empty; name labels or expressions, or leave the field out for all namespaces")]
    EmptySelector,
    /// An expression has values though its operator takes none, or has none though it needs some.
    #[error("{0} {takes}", takes = if matches!(.0, LabelOperator::In | LabelOperator::NotIn) { "needs values; name at least one" } else { "takes no values; remove them" })]
    Values(LabelOperator),
    /// A kind isolates less than the class that lists it.
    #[error("a slice of kind {kind} isolates less than {class} requires; remove it")]
    TooWeak {
        /// The class that lists the kind.
        class: IsolationClass,
        /// The kind that isolates too little.
        kind: Kind,
    },
    /// A class lists no kind at all.
    #[error("no kind is listed; list at least one, or leave the class out to forbid it")]
    NoKind,
    /// `defaultIsolation` names a class that `isolation` does not allow.
    #[error("{0} has no entry in spec.isolation; add one")]
    Default(IsolationClass),
    /// A limit or a size is zero.
    #[error("0 is too little; write 1 or more")]
    Zero,
    /// The size is larger than any GPU.
    #[error("no GPU has {0}; the largest has {largest}", largest = crate::units::LARGEST_SIZE)]
    TooLarge(SizeGb),
    /// `sizes.maxGb` is smaller than `sizes.minGb`.
    #[error("{max} is less than spec.sizes.minGb, {min}; no size is left")]
    MaxBelowMin {
        /// The smallest size that the policy allows.
        min: SizeGb,
        /// The largest size that the policy allows.
        max: SizeGb,
    },
    /// No multiple of the step lies between the smallest and the largest size.
    #[error("no multiple of {step} is at least {min} and at most {max}; no size is left")]
    Step {
        /// The policy's `sizes.stepGb`, in GB.
        step: SizeGb,
        /// The smallest size that the policy allows.
        min: SizeGb,
        /// The largest size that the policy allows.
        max: SizeGb,
    },
    /// A cap is smaller than the smallest request that the policy allows.
    #[error(
        "{cap} GB is less than the smallest size that may be asked for, {smallest}; no pod could be served"
    )]
    CapBelowSize {
        /// The cap, in nominal GB.
        cap: u32,
        /// The smallest size that the policy allows.
        smallest: SizeGb,
    },
    /// `quota` allows a namespace less than `maxPerPod` allows one pod.
    #[error(
        "{quota} is less than what one pod may ask for, {pod} (spec.maxPerPod); such a pod would wait for ever: raise this or lower that"
    )]
    QuotaBelowPod {
        /// The namespace's quota, in GB or slices.
        quota: u32,
        /// The limit for one pod, in GB or slices.
        pod: u32,
    },
    /// A weight is outside of 1 to 10000 percent.
    #[error("{0} percent is out of bounds; write 1 to 10000")]
    Weight(u32),
    /// The operator is none that tolerations have.
    #[error("{0:?} is no operator of a toleration; write Exists or Equal")]
    Operator(String),
    /// The effect is none that taints have.
    #[error(
        "{0:?} is no effect of a taint; write NoSchedule, PreferNoSchedule or NoExecute, or leave it out for all"
    )]
    Effect(String),
    /// A toleration with `Exists` has a value.
    #[error("Exists tolerates every value; remove the value, or write operator: Equal")]
    ValueWithExists,
    /// A toleration without a key has another operator than `Exists`.
    #[error("without a key only operator: Exists is allowed, which tolerates every taint; name a key")]
    NoKey,
    /// A rule or a model lists no kind.
    #[error("no kind is listed; list at least one, or leave the field out to allow all")]
    NoKindOfGpu,
    /// A setting is for a kind that the rule does not list.
    #[error(
        "this setting is for {kind}, which the rule's kinds do not list; add {kind} or remove the setting"
    )]
    WithoutKind {
        /// The kind that the setting is for.
        kind: Kind,
    },
    /// A rule shares GPU instances both as compute instances and by time slicing.
    #[error(
        "computeInstances stands beside it, and GPU instances are shared out in one way; remove one of the two"
    )]
    PartsAndTurns,
    /// A rule for managed nodes has fewer than two replicas.
    #[error("{0} replicas share nothing; write 2 or more, or remove it for slices by size")]
    Replicas(u32),
    /// No share has this size.
    #[error("no share has {size}; the nearest size with a name is {nearest}")]
    NoShare {
        /// The size of the share in the policy.
        size: SizeGb,
        /// The nearest size that shares can have.
        nearest: SizeGb,
    },
    /// A rule names GPUs by NVML index, which may name another GPU after a boot or a loss.
    #[error(
        "NVML's indexes shift when a GPU is lost or the machine boots, so no policy may name GPUs by them; write select.uuids \
         (GPU-...) or select.pciBusIds (0000:65:00.0), which `kerf nodes -o wide` and `kerf gpu list` print"
    )]
    Indexes,
    /// The text does not begin like a GPU's UUID.
    #[error(
        "{0} is no GPU's UUID; write one that begins with GPU-, as `kerf nodes -o wide` and `kerf gpu list` print it"
    )]
    NoUuid(GpuUuid),
    /// A rule comes after one that selects every GPU, so it is never used.
    #[error("spec.gpus[{0}] names every GPU, so this rule is never used; move it before that one")]
    RuleNeverUsed(usize),
    /// A warm entry has a count of zero.
    #[error("0 slices are kept ready without being named; write 1 or more, or remove the entry")]
    NoWarm,
    /// A warm entry asks for a kind that no rule of the node allows.
    #[error("{resource} is of kind {kind}, which no rule of spec.gpus allows; allow it, or remove the entry")]
    WarmKind {
        /// The resource name of the warm slices.
        resource: ResourceName,
        /// The kind of this resource name.
        kind: Kind,
    },
    /// A setting for managed nodes is set with a layout of NVIDIA's device plugin.
    #[error(
        "this is for kerf's own nodes, and spec.plugin for those that NVIDIA's device plugin serves; write two policies"
    )]
    BesidePlugin,
    /// A layout has both MPS and time slicing.
    #[error(
        "timeSlicing stands beside it, and NVIDIA's device plugin shares a node's GPUs in one way; remove one"
    )]
    TwoSharings,
    /// A layout has fewer than two replicas.
    #[error("{0} replicas share nothing; write 2 or more, or remove the field for whole GPUs")]
    FewReplicas(u32),
    /// A layout has more replicas than NVIDIA's device plugin can serve.
    #[error("{replicas} replicas are too many; write at most {most}")]
    ManyReplicas {
        /// The number of replicas in the policy.
        replicas: u32,
        /// The highest number that is possible.
        most: u32,
    },
    /// A layout has both MPS and MIG devices.
    #[error(
        "NVIDIA's device plugin has no MPS on MIG devices; write migStrategy: none, or timeSlicing instead of mps"
    )]
    MpsWithMig,
    /// A layout has GPUs cut into MIG devices that it does not offer.
    #[error(
        "with migStrategy none the plugin offers no MIG device; write migStrategy: single or mixed, or remove it"
    )]
    MigConfigWithoutStrategy,
    /// The policy's name is reserved for the configuration of nodes without a label.
    #[error(
        "default is the configuration of nodes that no policy with spec.plugin is for; choose another name"
    )]
    ReservedLayoutName,
    /// The policy's name is too long for a node's label with the suffixes that kerf appends.
    #[error(
        "{0:?} is too long for a node's label; write at most {most} characters",
        most = crate::plugin_layout::LAYOUT_NAME_LENGTH_LIMIT
    )]
    LongLayoutName(String),
}

impl PolicyFault {
    /// The mistake at a field of the document.
    #[must_use]
    pub fn at_field(self, field: Field) -> PolicyError {
        PolicyError { field, fault: self }
    }
}
