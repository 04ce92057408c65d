//! Who leads: one replica at a time, by a Lease, each leader with an epoch above all before it.
//!
//! The Lease keeps two leaders from working at once in the ordinary case. What makes it safe in every case on managed nodes is the
//! epoch: an agent obeys the highest that it has heard, so no clock decides whether a promise is kept.
//!
//! Where the Lease was lost, or set back, a leader's epoch is above those that its replica has seen, and rises over those that it
//! finds until it answers: of agents, and in the ConfigMap of the former leader.
//!
//! | module | what it decides |
//! |---|---|
//! | `election` | when a Lease may be taken, from what was seen of it and when |
//! | `lease` | reading and writing it |
//! | `deadline` | until when a leader may write |
//! | `role` | to which replica the Service leads |

mod deadline;
mod election;
mod lease;
mod role;

pub use deadline::{Deadline, Overdue};
pub use election::{Decision, Election, Former, Record};
pub use lease::{Candidate, Held, LeaseSettings};
pub use role::OwnPod;
