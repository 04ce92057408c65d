//! Where a pod can go among the nodes of a snapshot, by the functions with which the extender decides. Pure.
//!
//! | module | what it has |
//! |---|---|
//! | `nodes` | the nodes, and what pods take of them |
//! | `choice` | what the nodes offer for a pod |

mod choice;
mod nodes;

pub use choice::{Choice, Exclusion, Placement, Taken, TakenSlice};
pub use nodes::Nodes;

pub fn listed<N: ToString>(names: &[N]) -> String {
    const MOST: usize = 8;
    let shown = names.iter().take(MOST).map(N::to_string).collect::<Vec<_>>().join(", ");
    if names.len() <= MOST { shown } else { format!("{shown} and {} more", names.len() - MOST) }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
