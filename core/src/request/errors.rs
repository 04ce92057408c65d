//! The reasons why a request is refused. Each is one variant with one text, which names the field and the remedy.

use super::Dialect;
use crate::keys::{GPU_MEMORY, SIZE_PREFIX};
use crate::kind::UnknownClass;
use crate::mig::UnknownComputeProfile;
use crate::quantity::SizeError;
use crate::units::SizeGb;
use std::fmt;
use thiserror::Error;

/// The place in a pod where something is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// An annotation of the pod, by its key.
    Annotation(String),
    /// A label of the pod, by its key.
    Label(String),
    /// A container's limit, or its request under the same name.
    Limit {
        /// Name of the container in the pod.
        container: String,
        /// The resource name of the limit.
        limit: String,
    },
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation(key) => write!(f, "metadata.annotations[{key}]"),
            Self::Label(key) => write!(f, "metadata.labels[{key}]"),
            Self::Limit { container, limit } => write!(f, "container {container}, resources.limits[{limit}]"),
        }
    }
}

/// Why a pod's request is refused. Each message names the field and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AskError {
    /// An amount of memory is not valid.
    #[error("{field}: {source}")]
    Size {
        /// The field that has the amount.
        field: Field,
        /// The mistake in the amount.
        source: SizeError,
    },
    /// An amount in another system's unit is not valid.
    #[error("{field}: {text:?} is no memory of a GPU; write a whole number of {unit} from 1 to {most}")]
    Amount {
        /// The field that has the amount.
        field: Field,
        /// The text that the user wrote.
        text: String,
        /// The unit of this field, as the message names it.
        unit: &'static str,
        /// The largest valid amount, in this unit.
        most: u64,
    },
    /// A count is not a positive integer.
    #[error("{field}: {text:?} is no number of slices; write a whole number from 1")]
    Count {
        /// The field that has the count.
        field: Field,
        /// The text that the user wrote.
        text: String,
    },
    /// A share of compute is not a percentage from 1 to 100.
    #[error("{field}: {text:?} is no share of a GPU's compute; write percent, a whole number from 1 to 100")]
    Compute {
        /// The field that has the share.
        field: Field,
        /// The text that the user wrote.
        text: String,
    },
    /// A fraction is not a number between 0 and 1.
    #[error(
        "{field}: {text:?} is no fraction of a GPU; write a number over 0 and under 1, like 0.5, and ask for whole GPUs by nvidia.com/gpu"
    )]
    Fraction {
        /// The field that has the fraction.
        field: Field,
        /// The text that the user wrote.
        text: String,
    },
    /// A fraction has no size to refer to, because the policy names none and the cluster has no GPU.
    #[error(
        "{field}: a fraction of which GPU is not known, for the cluster has none at present; ask by memory, or ask an admin for fractionOfGb in the policy"
    )]
    FractionOfWhat {
        /// The field that has the fraction.
        field: Field,
    },
    /// The profile in an annotation does not exist.
    #[error("metadata.annotations[{key}]: {source}")]
    Profile {
        /// Key of the annotation with the profile.
        key: String,
        /// The mistake in the profile.
        source: UnknownComputeProfile,
    },
    /// One container asks in two ways that cannot be merged.
    #[error(
        "container {container} asks by {first} and by {second}; ask once, by one limit or one annotation: for one larger slice, or in a container of its own for each slice"
    )]
    Twice {
        /// Name of the container that asks twice.
        container: String,
        /// The first key that asks, with its value.
        first: String,
        /// The second key that asks, with its value.
        second: String,
    },
    /// A container asks by a dialect's name that the policy does not accept, in a pod that asks kerf. No program would
    /// account for both.
    #[error(
        "container {container}, resources.limits[{limit}]: a pod cannot mix kerf requests with this name; remove it, ask by kerf.dev/gpu-memory here too, or ask an admin to add {dialect} to spec.dialects of the policy"
    )]
    Everybodys {
        /// Name of the container with the limit.
        container: String,
        /// The resource name of the limit.
        limit: String,
        /// The dialect that has this resource name.
        dialect: Dialect,
    },
    /// An annotation without a container's name could mean any of several containers.
    #[error("metadata.annotations[{key}]: the pod has several containers; name one, as in {key}.{first}")]
    Ambiguous {
        /// Key of the annotation without a container's name.
        key: String,
        /// Name of the first container that it could mean.
        first: String,
    },
    /// The annotation means the default container, and the pod has no such app container.
    #[error(
        "metadata.annotations[{default}]: the pod has no app container {container}; correct it, or name the container that is to have the slice, as in {key}.{first}"
    )]
    DefaultContainer {
        /// Key of the annotation without a container's name.
        key: String,
        /// The key that names the default container.
        default: &'static str,
        /// Name of the default container, which the pod does not have.
        container: String,
        /// Name of the first app container, as an example.
        first: String,
    },
    /// The annotation is about a container, and the pod has no app containers.
    #[error(
        "metadata.annotations[{key}]: the pod has no container in spec.containers; add the one that is to have the slice"
    )]
    NoContainers {
        /// Key of the annotation without a container's name.
        key: String,
    },
    /// The annotation names a container that the pod does not have.
    #[error(
        "metadata.annotations[{key}]: the pod has no container {container}; correct the name, or remove the annotation"
    )]
    NoContainer {
        /// Key of the annotation with the container's name.
        key: String,
        /// The container's name in the key.
        container: String,
    },
    /// The annotation is about slices of a container that asks for none.
    #[error(
        "metadata.annotations[{key}]: {container} asks for no slice that this could be about; add kerf.dev/gpu-memory, or remove it"
    )]
    NothingAsked {
        /// Key of the annotation that is of no use.
        key: String,
        /// The container, or the pod, as the message names it.
        container: String,
    },
    /// A privileged container asks for a slice.
    #[error(
        "container {0} is privileged and would see every GPU of the node, not its slice; remove securityContext.privileged"
    )]
    Privileged(String),
    /// The annotation names an isolation class that does not exist.
    #[error("metadata.annotations[kerf.dev/isolation]: {0}")]
    Isolation(#[from] UnknownClass),
    /// The annotation `kerf.dev/movable` is neither true nor false.
    #[error(
        "metadata.annotations[kerf.dev/movable]: {0:?} is neither true nor false; write one of them, in quotes"
    )]
    Movable(String),
    /// The annotation `kerf.dev/memory-match` is neither nominal nor strict.
    #[error(
        "metadata.annotations[kerf.dev/memory-match]: {0:?} is neither nominal nor strict; write one of them"
    )]
    MemoryMatch(String),
    /// A list of GPU models contains something that is no model's name.
    #[error(
        "metadata.annotations[{key}]: {text:?} names no GPU model; write short names as `kubectl get gpunodes` shows them, like H100-80GB, with commas between"
    )]
    Model {
        /// Key of the annotation with the list.
        key: String,
        /// The text that the user wrote.
        text: String,
    },
    /// A list of GPUs contains something that is no UUID.
    #[error(
        "metadata.annotations[{key}]: {text:?} is no GPU's UUID; write them as `kerf gpu list` shows them, like GPU-5f2a…, with commas between"
    )]
    Uuid {
        /// Key of the annotation with the list.
        key: String,
        /// The text that the user wrote.
        text: String,
    },
    /// An annotation of kerf's group does not exist.
    #[error("metadata.annotations[{key}]: kerf has no such key; the nearest is {nearest}")]
    UnknownKey {
        /// Key of the annotation that does not exist.
        key: String,
        /// The existing key that is spelled most alike.
        nearest: String,
    },
    /// A key of an annotation is used as a label.
    #[error(
        "metadata.labels[{key}] is {text:?}, and kerf reads requests from annotations, not from labels; move it to metadata.annotations[{key}]"
    )]
    Labelled {
        /// Key of the label in the pod.
        key: String,
        /// Value of the label in the pod.
        text: String,
    },
    /// A label of kerf's group does not exist.
    #[error(
        "metadata.labels[{key}] is {text:?}, and kerf has no such label; remove it, the nearest that kerf reads is the annotation {nearest}"
    )]
    UnknownLabel {
        /// Key of the label that does not exist.
        key: String,
        /// Value of the label in the pod.
        text: String,
        /// The annotation that is spelled most alike.
        nearest: String,
    },
    /// A limit of kerf's group does not exist.
    #[error("{field} is {text:?}, and {remedy}")]
    UnknownLimit {
        /// The field that has the limit.
        field: Field,
        /// The amount that the user wrote.
        text: String,
        /// What the user should write instead.
        remedy: LimitRemedy,
    },
    /// The pod asks for a GPU model that is neither in the catalog nor on a node or in a policy.
    #[error(
        "metadata.annotations[{key}]: unknown GPU model {model:?}, neither from its own list nor from the cluster's nodes and policies; the nearest is {nearest}; an admin makes a new model known by naming it in a policy"
    )]
    UnknownModel {
        /// Key of the annotation with the model.
        key: String,
        /// The model that the user wrote.
        model: String,
        /// The known models that are spelled most alike.
        nearest: String,
    },
    /// A key is about slices, in a pod that asks for none.
    #[error("metadata.annotations[{key}]: the pod asks kerf for no slice that this could be about; {}", remedy(.others.as_ref()))]
    Idle {
        /// Key of the annotation that is of no use.
        key: String,
        /// A limit by which the pod asks in a dialect that the policy does not accept, with this dialect; `None` if
        /// there is none.
        others: Option<(String, Dialect)>,
    },
    /// The pod names its node, so it bypasses the scheduler.
    #[error(
        "spec.nodeName is set, so no scheduler would reserve a slice; remove it and use a nodeSelector, or ask an admin for `nodeName: affinity` in the policy"
    )]
    NodeName,
}

/// What to write instead of a limit that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitRemedy {
    /// The name is an annotation's key, so the user should move it there.
    Annotation {
        /// Key of the annotation that was meant.
        key: String,
        /// The amount as a size; `None` if it is none.
        size: Option<SizeGb>,
    },
    /// The name exists in another group.
    Name(String),
    /// The limit probably means this size; `None` if the name has no number.
    Size(Option<SizeGb>),
}

impl fmt::Display for LimitRemedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Any size shows the form, so 10 GB is the example.
        let limit = |size: &Option<SizeGb>| format!("{SIZE_PREFIX}{}gb", size.unwrap_or(SizeGb(10)).0);
        match self {
            Self::Annotation { key, size } => {
                write!(f, "{key} is an annotation; move it to metadata.annotations")?;
                let is_size = key.starts_with(GPU_MEMORY);
                if is_size { write!(f, ", or as a limit write {}: 1", limit(size)) } else { Ok(()) }
            }
            Self::Name(name) => write!(f, "kerf has no such limit; write {name}: 1"),
            Self::Size(size) => write!(
                f,
                "kerf has no such limit; write {}: 1, with the GPU memory in GB in the name and the number of slices behind it",
                limit(size)
            ),
        }
    }
}

/// The remedy for a key about slices in a pod that asks for none.
fn remedy(others: Option<&(String, Dialect)>) -> String {
    match others {
        None => "add kerf.dev/gpu-memory, or remove it".to_owned(),
        Some((limit, dialect)) => format!(
            "ask by kerf.dev/gpu-memory instead of {limit}, ask an admin to add {dialect} to spec.dialects of the policy, or remove it"
        ),
    }
}
