//! Why a request is refused: one case each, with one text that names the field and the remedy.

use crate::keys::{GPU_MEMORY, SIZE_PREFIX};
use crate::kind::UnknownClass;
use crate::mig::UnknownComputeProfile;
use crate::policy::Dialect;
use crate::quantity::SizeError;
use crate::units::SizeGb;
use std::fmt;
use thiserror::Error;

/// Where in a pod something is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// An annotation.
    Annotation(String),
    /// A label.
    Label(String),
    /// A container's limit, or its request of that name.
    Limit {
        /// The container.
        container: String,
        /// The resource.
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
    /// An amount of memory is bad.
    #[error("{field}: {source}")]
    Size {
        /// Where it is written.
        field: Field,
        /// What is wrong.
        source: SizeError,
    },
    /// An amount in another system's unit is bad.
    #[error("{field}: {text:?} is no memory of a GPU; write a whole number of {unit} from 1 to {most}")]
    Amount {
        /// Where it is written.
        field: Field,
        /// What was written.
        text: String,
        /// The unit that the field has.
        unit: &'static str,
        /// The largest.
        most: u64,
    },
    /// A count is no positive integer.
    #[error("{field}: {text:?} is no number of slices; write a whole number from 1")]
    Count {
        /// Where it is written.
        field: Field,
        /// What was written.
        text: String,
    },
    /// A share of compute is none.
    #[error("{field}: {text:?} is no share of a GPU's compute; write percent, a whole number from 1 to 100")]
    Compute {
        /// Where it is written.
        field: Field,
        /// What was written.
        text: String,
    },
    /// A fraction is none.
    #[error(
        "{field}: {text:?} is no fraction of a GPU; write a number over 0 and under 1, like 0.5, and ask for whole GPUs by nvidia.com/gpu"
    )]
    Fraction {
        /// Where it is written.
        field: Field,
        /// What was written.
        text: String,
    },
    /// Nobody knows of what GPU a fraction is one.
    #[error(
        "{field}: a fraction of which GPU is not known, for the cluster has none at present; ask by memory, or ask an admin for fractionOfGb in the policy"
    )]
    FractionOfWhat {
        /// Where it is written.
        field: Field,
    },
    /// The exact profile is none.
    #[error("metadata.annotations[{key}]: {source}")]
    Profile {
        /// The annotation.
        key: String,
        /// What is wrong.
        source: UnknownComputeProfile,
    },
    /// One container asks twice.
    #[error(
        "container {container} asks by {first} and by {second}; ask once, by one limit or one annotation: for one larger slice, or in a container of its own for each slice"
    )]
    Twice {
        /// The container.
        container: String,
        /// The first ask.
        first: String,
        /// The second.
        second: String,
    },
    /// A container asks by a name that is not kerf's, in a pod that asks kerf. Nobody would account for both.
    #[error(
        "container {container}, resources.limits[{limit}]: a pod cannot mix kerf requests with this name; remove it, ask by kerf.dev/gpu-memory here too, or ask an admin to add {dialect} to spec.dialects of the policy"
    )]
    Everybodys {
        /// The container.
        container: String,
        /// The limit.
        limit: String,
        /// The dialect that has the name.
        dialect: Dialect,
    },
    /// The annotation could mean any of several containers.
    #[error("metadata.annotations[{key}]: the pod has several containers; name one, as in {key}.{first}")]
    Ambiguous {
        /// The annotation.
        key: String,
        /// One of the containers.
        first: String,
    },
    /// The annotation means the default container, and the pod has no such app container.
    #[error(
        "metadata.annotations[{default}]: the pod has no app container {container}; correct it, or name the container that is to have the slice, as in {key}.{first}"
    )]
    DefaultContainer {
        /// The annotation without a container's name.
        key: String,
        /// The key that names the default container.
        default: &'static str,
        /// The container that it names.
        container: String,
        /// One of the app containers.
        first: String,
    },
    /// The annotation is about a container of a pod that has none.
    #[error(
        "metadata.annotations[{key}]: the pod has no container in spec.containers; add the one that is to have the slice"
    )]
    NoContainers {
        /// The annotation.
        key: String,
    },
    /// The annotation names no container.
    #[error(
        "metadata.annotations[{key}]: the pod has no container {container}; correct the name, or remove the annotation"
    )]
    NoContainer {
        /// The annotation.
        key: String,
        /// The container that it names.
        container: String,
    },
    /// The annotation is about slices of a container that asks for none.
    #[error(
        "metadata.annotations[{key}]: {container} asks for no slice that this could be about; add kerf.dev/gpu-memory, or remove it"
    )]
    NothingAsked {
        /// The annotation.
        key: String,
        /// The container, or the pod.
        container: String,
    },
    /// A privileged container asks.
    #[error(
        "container {0} is privileged and would see every GPU of the node, not its slice; remove securityContext.privileged"
    )]
    Privileged(String),
    /// The class is unknown.
    #[error("metadata.annotations[kerf.dev/isolation]: {0}")]
    Isolation(#[from] UnknownClass),
    /// The mark is none.
    #[error(
        "metadata.annotations[kerf.dev/movable]: {0:?} is neither true nor false; write one of them, in quotes"
    )]
    Movable(String),
    /// The rule for sizes is none.
    #[error(
        "metadata.annotations[kerf.dev/memory-match]: {0:?} is neither nominal nor strict; write one of them"
    )]
    MemoryMatch(String),
    /// No GPU model is named.
    #[error(
        "metadata.annotations[{key}]: {text:?} names no GPU model; write short names as `kubectl get gpunodes` shows them, like H100-80GB, with commas between"
    )]
    Model {
        /// The annotation.
        key: String,
        /// What was written.
        text: String,
    },
    /// No GPU is named.
    #[error(
        "metadata.annotations[{key}]: {text:?} is no GPU's UUID; write them as `kerf gpu list` shows them, like GPU-5f2a…, with commas between"
    )]
    Uuid {
        /// The annotation.
        key: String,
        /// What was written.
        text: String,
    },
    /// A key of kerf's that does not exist.
    #[error("metadata.annotations[{key}]: kerf has no such key; the nearest is {nearest}")]
    UnknownKey {
        /// The annotation.
        key: String,
        /// The key that is spelled most alike.
        nearest: String,
    },
    /// A key by which annotations ask is a label.
    #[error(
        "metadata.labels[{key}] is {text:?}, and kerf reads requests from annotations, not from labels; move it to metadata.annotations[{key}]"
    )]
    Labelled {
        /// The label.
        key: String,
        /// Its value.
        text: String,
    },
    /// A label of kerf's that does not exist.
    #[error(
        "metadata.labels[{key}] is {text:?}, and kerf has no such label; remove it, the nearest that kerf reads is the annotation {nearest}"
    )]
    UnknownLabel {
        /// The label.
        key: String,
        /// Its value.
        text: String,
        /// The annotation that is spelled most alike.
        nearest: String,
    },
    /// A limit of kerf's that does not exist.
    #[error("{field} is {text:?}, and {remedy}")]
    UnknownLimit {
        /// Where it is written.
        field: Field,
        /// The amount.
        text: String,
        /// What to write instead.
        remedy: LimitRemedy,
    },
    /// Nobody could serve a model that the pod asks for.
    #[error(
        "metadata.annotations[{key}]: kerf knows no GPU model {model:?}, neither from its own list nor from the cluster's nodes and policies; the nearest is {nearest}; an admin makes a new model known by naming it in a policy"
    )]
    UnknownModel {
        /// The annotation.
        key: String,
        /// The model.
        model: String,
        /// The models that are spelled most alike.
        nearest: String,
    },
    /// A key is about slices, in a pod that asks for none.
    #[error("metadata.annotations[{key}]: the pod asks kerf for no slice that this could be about; {}", remedy(.others.as_ref()))]
    Idle {
        /// The annotation.
        key: String,
        /// A limit by which the pod asks somebody else, and the dialect that has it.
        others: Option<(String, Dialect)>,
    },
    /// The pod goes past the scheduler.
    #[error(
        "spec.nodeName is set, so no scheduler would reserve a slice; remove it and use a nodeSelector, or ask an admin for `nodeName: affinity` in the policy"
    )]
    NodeName,
}

/// What to write instead of a limit that kerf does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitRemedy {
    /// It is an annotation; its amount as a size, where it is one.
    Annotation {
        /// The annotation.
        key: String,
        /// The size.
        size: Option<SizeGb>,
    },
    /// The name has another group.
    Name(String),
    /// It was probably meant as this size, as far as one can be read.
    Size(Option<SizeGb>),
}

impl fmt::Display for LimitRemedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Any size shows the form.
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

/// What is to be done about a key that is about nothing.
fn remedy(others: Option<&(String, Dialect)>) -> String {
    match others {
        None => "add kerf.dev/gpu-memory, or remove it".to_owned(),
        Some((limit, dialect)) => format!(
            "ask by kerf.dev/gpu-memory instead of {limit}, ask an admin to add {dialect} to spec.dialects of the policy, or remove it"
        ),
    }
}
