//! Warnings about requests that are accepted.

use crate::kind::IsolationClass;
use crate::resource::ResourceName;
use crate::units::{MemoryMib, SizeGb};
use std::fmt;

/// A warning about an accepted request; the webhook returns its text to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// No GPU of the cluster serves this request at present: container, name, size, class.
    NoSupply(String, ResourceName, SizeGb, IsolationClass),
    /// No set of different GPUs serves this request at present: container, and what to ask for instead.
    DistinctGpus(String, String),
    /// A container gets several MIG instances, and a process sees only one: container, count, name.
    SeveralInstances(String, u32, ResourceName),
    /// The slice has less memory than its nominal size says: container, size, name, real memory.
    LessThanNominal(String, SizeGb, ResourceName, MemoryMib),
    /// The size was rounded up to the next size with a name: container, asked, given.
    RoundedUp(String, SizeGb, SizeGb),
    /// The size was rounded up to the policy's next step: container, asked, given, step.
    Stepped(String, SizeGb, SizeGb, SizeGb),
    /// The policy forbids some models that the pod names, so the pod gets another of its models: models, policy.
    ModelsBeyond(String, String),
    /// The size was raised so that init and app containers share one slice: container, asked, given.
    Levelled(String, SizeGb, SizeGb),
    /// A dialect's key that has no meaning in kerf.
    Ignored(String),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSupply(container, resource, SizeGb::ANY, _) => write!(
                f,
                "container {container}: no GPU that the pod may have serves {resource} at present; the pod stays pending until one does"
            ),
            Self::NoSupply(container, _, size, class) => write!(
                f,
                "container {container}: no GPU that the pod may have serves {size} with isolation {class} at present; the pod stays pending until one does"
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
