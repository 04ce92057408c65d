//! Limits of the stream. Beyond one of them a connection ends and its node counts as full.

use std::time::Duration;

/// The version of the protocol that both ends speak.
pub const PROTOCOL: u32 = 1;
/// Bytes of a message of an agent.
pub const FROM_AGENT: usize = 1 << 20;
/// Bytes of a message of the extender.
pub const TO_AGENT: usize = 256 << 10;
/// Orders that may be unanswered at once on a connection.
pub const WINDOW: u32 = 64;
/// GPUs of a node.
pub const GPUS: usize = 64;
/// Slices in a change, and slices that a change removes.
pub const SLICES: usize = 4096;
/// Places of a pod, slices that one place destroys, and pods that one waits for.
pub const PLACES: usize = 64;
/// Bytes of a name, a UID or an id.
pub const NAME: usize = 253;
/// Bytes of a text for people. Longer ones are cut before they are sent.
pub const TEXT: usize = 1024;
/// How long an agent may take to send its Hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a replica may take to answer with its Role: it reviews the agent's token before.
pub const ROLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a peer is pinged, and how long it may take to answer a ping.
pub const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Connections of which the Hello was not read yet.
pub const NOT_GREETED: usize = 256;
