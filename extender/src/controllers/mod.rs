//! The leader's controllers: tasks that run beside scheduling, as long as the replica leads.
//!
//! | module | what is in it |
//! |---|---|
//! | [`former_epoch`] | the epoch of a former leader |
//! | [`fresh`] | what a new leader reads again |
//! | [`confirm`] | whether pods that the index has not seen exist, and where they are bound |
//! | [`requeue`] | how the scheduler requeues refused pods that have room now |
//! | [`another_kind`] | which pending pods another kind of slice would serve if they were recreated |
//! | [`node_policies`] | what nodes may cut, by the admins' documents |
//! | [`plugin_layout`] | the configuration of NVIDIA's device plugin on the nodes that it serves |
//! | [`timers`] | reservations and requests that end by time alone |

pub mod another_kind;
pub mod confirm;
pub mod former_epoch;
pub mod fresh;
pub mod node_policies;
pub mod plugin_layout;
pub mod requeue;
pub mod timers;
