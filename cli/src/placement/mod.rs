//! Where a pod can go among the nodes of a snapshot, by the functions with which the extender decides. Pure.
//!
//! | module | what it has |
//! |---|---|
//! | `nodes` | the nodes, and what pods take of them |
//! | `choice` | what the nodes offer for a pod |

mod choice;
mod nodes;

pub use choice::{Choice, Placement, Taken, TakenSlice};
pub use nodes::Nodes;

pub fn listed<N: ToString>(names: &[N]) -> String {
    const NAMES_LIMIT: usize = 8;
    let shown = names.iter().take(NAMES_LIMIT).map(N::to_string).collect::<Vec<_>>().join(", ");
    if names.len() <= NAMES_LIMIT { shown } else { format!("{shown} and {} more", names.len() - NAMES_LIMIT) }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
