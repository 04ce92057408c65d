//! The scheduler extender: kube-scheduler's requests and the answers to them.
//!
//! | module | what is in it |
//! |---|---|
//! | [`wire`], [`routes`] | the requests and answers, as JSON and over HTTPS |
//! | [`filter`] | which nodes fit and in what order |
//! | [`preempt`] | where the scheduler may evict pods for a pod |
//! | [`bind`], [`binding`] | the steps from the choice of a pod's node to its Binding |

pub mod bind;
pub mod binding;
pub mod filter;
pub mod preempt;
pub mod routes;
pub mod wire;
