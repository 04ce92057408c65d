//! Reads what a pod asks for from its annotations and limits. One reader serves every spelling, and every error names
//! the field and the remedy.

mod annotations;
mod ask;
mod dialect;
mod dialects;
mod errors;
mod facts;
mod known;
mod limits;
mod models;
mod node_selection;
mod phases;
mod read;
mod requested;
mod selection;
mod selectors;
mod view;

pub use ask::{ContainerAsk, DEFAULT_SIDECARS, PodAsk, Reading, Want};
pub use dialect::Dialect;
pub use dialects::{Words, dialect_of, is_scheduler_of};
pub use errors::{AskError, Field, LimitRemedy};
pub use facts::{Namespace, PodFacts, SelectingFields};
pub use limits::{AskedLimits, asked_limits, asks_by};
pub use models::{KnownModels, UnknownModel, resolve_models};
pub use node_selection::{AffinityView, NodeLabel, NodeSelection};
pub use phases::{Claim, Role, devices, has_ended, held};
pub use read::read;
pub use requested::{PodRequests, RequestingContainer};
pub use selection::GpuSelection;
pub use selectors::models_named;
pub use view::{ContainerView, PodView, ResourcesView, SpecView};

#[cfg(test)]
mod lost_request_tests;
#[cfg(test)]
mod sidecar_tests;
