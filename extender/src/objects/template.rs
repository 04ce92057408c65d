//! What the pods of one template have in common. A cluster has many pods and few templates, so the index has each
//! template once.

use crate::destinations::Destinations;
use crate::objects::compute::Compute;
use kerf_core::kind::KindLabel;
use kerf_core::request::PodFacts;
use kerf_core::static_node::Devices;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The facts of a pod that the other pods of its controller share.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Template {
    /// The CPU and memory that its containers ask for.
    pub compute: Compute,
    /// The devices of NVIDIA's plugin that it asks for, which it holds while it is on a node that has them.
    pub devices: Arc<Devices>,
    /// It asks for nothing that kerf serves.
    pub asks_for_nothing: bool,
    /// Where its replacement may run: its owner allows its eviction, and its controller recreates it. `None` if it must
    /// stay.
    pub movable_to: Option<Arc<Destinations>>,
    /// The nodes that it may go to. `None` once it has a node.
    pub pending_to: Option<Arc<Destinations>>,
    /// The text of its request document.
    pub request: Option<Arc<str>>,
    /// The policy that the document names.
    pub policy: Option<Arc<str>>,
    /// The kind of its first slice, as far as it is known.
    pub kind: KindLabel,
    /// Facts that select its policy, if the policy that the document names no longer exists.
    pub facts: Arc<PodFacts>,
}

/// Tolerations have no `Eq`, but they consist of texts and whole numbers.
impl Eq for Template {}

/// A part suffices, because templates that are equal in it are rare.
impl Hash for Template {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.request, &self.facts.namespace, &self.facts.labels).hash(state);
    }
}
