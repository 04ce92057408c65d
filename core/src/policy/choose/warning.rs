//! What a user should know about an accepted request.

use crate::contract::PassedOver;
use crate::kind::IsolationClass;
use crate::resource::ResourceName;
use crate::units::{MemoryMib, SizeGb};
use std::fmt;

/// What a user should know about an accepted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// No GPU can serve it at present.
    NoSupply(String, ResourceName, SizeGb, IsolationClass),
    /// A kind that the policy prefers was passed over for this name.
    FellBack(PassedOver, ResourceName),
    /// All kinds are full, and the pod waits for this one.
    Waits(PassedOver),
    /// The slice has less memory than the size says.
    LessThanNominal(String, SizeGb, ResourceName, MemoryMib),
    /// The size was rounded up to the next that has a name.
    RoundedUp(String, SizeGb, SizeGb),
    /// The size was rounded up to the policy's next step: asked, given, step.
    Stepped(String, SizeGb, SizeGb, SizeGb),
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
            Self::FellBack(passed, instead) => write!(f, "{passed}; it gets {instead} instead"),
            Self::Waits(passed) => write!(f, "{passed}; the pod waits for it"),
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
