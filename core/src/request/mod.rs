//! What a pod asks for, read from its annotations and limits. One parser for every spelling; every error names the
//! field and the remedy.

mod ask;
mod phases;
mod view;

pub use ask::{AskError, ContainerAsk, PodAsk, Want, read, read_admitted};
pub use phases::{Beyond, Claim, Role, beyond, held};
pub use view::{ContainerView, PodView, ResourcesView, SpecView};
