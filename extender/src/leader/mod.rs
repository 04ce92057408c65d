//! Leader election: one replica leads at a time, by a Lease, and each leader's epoch is above all earlier ones.
//!
//! The Lease prevents two leaders at once in the ordinary case. On managed nodes the epoch makes it safe in every case:
//! an agent obeys the highest epoch that it has received, so no clock decides whether a reservation is kept.
//!
//! If the Lease was lost or restored from a backup, a leader's epoch is above those that its replica has seen. Until it
//! answers, the epoch rises over those that it finds: of agents, and in the ConfigMap of the former leader.
//!
//! | module | what it does |
//! |---|---|
//! | `election` | decides when a Lease may be taken, from what was seen of it and when |
//! | `lease` | reads and writes the Lease |
//! | `deadline` | stops a leader's writes when its Lease may have expired |
//! | `role` | labels the pod that the Service selects |

mod deadline;
mod election;
mod lease;
mod role;

pub use deadline::Deadline;
pub use election::Former;
pub use lease::{Candidate, Held, LeaseSettings};
pub use role::OwnPod;
