//! The stream between a node's agent and the extender: its messages, and both ends of a connection.
//!
//! The agent dials each replica of the extender, sends its node's state, and reports each change. The leader sends
//! orders, which the agent answers. The messages are those of `proto/agent.proto`; the programs use core's types only.
//!
//! | module | what it does |
//! |---|---|
//! | [`wire`] | the messages as they are sent |
//! | [`convert`] | reads messages into core's types and writes them, within the [`limits`] |
//! | [`client`] | the agent's end: finds the replicas, dials, reports, receives orders |
//! | [`server`] | the extender's end: accepts agents, receives changes, sends orders |
#![forbid(unsafe_code)]

pub mod client;
pub mod convert;
pub mod limits;
mod random;
pub mod server;
mod socket;

/// The messages, generated from `proto/agent.proto`.
#[expect(clippy::pedantic, reason = "generated code: the .proto file is the documentation")]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/kerf.agent.v1.rs"));
}
#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod socket_tests;
#[cfg(test)]
mod stand_ins;
