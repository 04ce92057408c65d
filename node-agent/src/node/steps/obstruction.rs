//! Why the planner refuses a desired slice.

use crate::node::facts::Facts;
use crate::node::spared;
use kerf_core::kind::Kind;
use kerf_core::names::SliceId;
use kerf_core::planner::Obstacle;

/// Why a desired slice is not reached, or not served.
#[derive(Debug, Clone)]
pub(in crate::node) struct Obstruction {
    pub(in crate::node) text: String,
    /// Whether the slice has failed, because this has lasted too long.
    pub(in crate::node) is_final: bool,
}

impl Obstruction {
    /// The obstacle of a desired slice. `is_overdue` is whether it has lasted too long.
    pub(super) fn new(facts: &Facts, id: &SliceId, obstacle: &Obstacle, is_overdue: bool) -> Self {
        let wanted = facts.reservations.desired().iter().find(|w| w.id == *id);
        // A mode that is about to be switched is no obstacle.
        let switching = wanted.is_some_and(|w| facts.rules().is_switching(&w.gpu));
        let gpu = wanted.and_then(|w| facts.inventory.gpu(&w.gpu));
        let is_outside = *obstacle == Obstacle::NotAllowed(Kind::Whole)
            && gpu.is_some_and(|gpu| facts.is_kept_by_outside_memory(gpu));
        let outside = is_outside.then(|| "processes that hold no slice use the GPU's memory".to_owned());
        let at_once = matches!(obstacle, Obstacle::NoSuchGpu(_))
            || matches!(obstacle, Obstacle::WrongMode | Obstacle::NotAllowed(_) | Obstacle::NoReplicas)
                && !switching;
        let is_spared = wanted.is_some_and(|wanted| facts.is_spared(wanted));
        let is_final = (at_once && !is_outside || is_overdue) && !is_spared;
        let trouble = gpu.and_then(|gpu| facts.inventory.trouble(gpu)).or(outside);
        let trouble = trouble.or_else(|| is_spared.then(|| spared::TEXT.to_owned()));
        Self { text: trouble.unwrap_or_else(|| obstacle.to_string()), is_final }
    }
}
