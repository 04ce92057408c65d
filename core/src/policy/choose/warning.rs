//! What a user should know about an accepted request.

use crate::kind::IsolationClass;
use crate::resource::ResourceName;
use crate::units::{MemoryMib, SizeGb};
use std::fmt;

/// What a user should know about an accepted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// No GPU can serve it at present.
    NoSupply(String, ResourceName, SizeGb, IsolationClass),
    /// No GPUs can serve it at present, for they must be different ones; and what to ask for instead.
    DistinctGpus(String, String),
    /// Several MIG instances, of which a process sees one: container, count, name.
    SeveralInstances(String, u32, ResourceName),
    /// The slice has less memory than the size says.
    LessThanNominal(String, SizeGb, ResourceName, MemoryMib),
    /// The size was rounded up to the next that has a name.
    RoundedUp(String, SizeGb, SizeGb),
    /// The size was rounded up to the policy's next step: asked, given, step.
    Stepped(String, SizeGb, SizeGb, SizeGb),
    /// Models that the pod names and its policy does not allow: it gets another of those that it names.
    ModelsBeyond(String, String),
    /// The size was raised to that of an init container, or of the container that goes on with its slice: asked, given.
    Levelled(String, SizeGb, SizeGb),
    /// A key of a dialect's that kerf has nothing for.
    Ignored(String),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSupply(container, resource, SizeGb::ANY, _) => write!(
                f,
                "container {container}: no GPU that the pod may have serves {resource} at present; the pod waits for one"
            ),
            Self::NoSupply(container, _, size, class) => write!(
                f,
                "container {container}: no GPU that the pod may have serves {size} with isolation {class} at present; the pod waits for one"
            ),
            Self::DistinctGpus(container, instead) => write!(
                f,
                "container {container}: only whole GPUs and time slices are of different GPUs for one process; {instead}"
            ),
            Self::SeveralInstances(container, count, resource) => write!(
                f,
                "container {container}: a CUDA process sees one MIG instance; the {count} of {resource} {are} for as many processes, each with its own CUDA_VISIBLE_DEVICES",
                are = if resource.is_neutral() { "may be instances, which are" } else { "are" }
            ),
            Self::LessThanNominal(container, size, resource, memory) => write!(
                f,
                "container {container}: {resource} really has {memory}, less than the {}Mi of {} GiB",
                size.share_memory().0,
                size.0
            ),
            Self::RoundedUp(container, asked, given) => {
                write!(f, "container {container}: shares come in fixed sizes, {asked} takes {given}")
            }
            Self::Stepped(container, asked, given, step) => {
                write!(
                    f,
                    "container {container}: the policy's sizes are in steps of {step}, {asked} takes {given}"
                )
            }
            Self::ModelsBeyond(models, policy) => {
                write!(
                    f,
                    "policy {policy} does not allow {models}; the pod gets another of the GPU models that it names"
                )
            }
            Self::Levelled(container, asked, given) => write!(
                f,
                "container {container}: {asked} takes {given}, so that it shares one slice with another container of the pod before or after it, and the pod holds less in all"
            ),
            Self::Ignored(key) => {
                write!(f, "{key} is another system's and has no meaning here; it is ignored")
            }
        }
    }
}
