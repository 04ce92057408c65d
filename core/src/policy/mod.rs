//! Which kinds of slice may serve a request: an admin's policy, what the cluster can cut, and the choice between them.

mod choose;
mod document;
mod supply;

pub use choose::{Choice, Denied, Warning, choose, verify};
pub use document::{Metadata, Policy, PolicyDocument, PolicyError, PolicySpec, Toleration};
pub use supply::Supply;
