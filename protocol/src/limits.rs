//! Limits of the stream. A connection that exceeds one of them ends, and its node counts as full.

use std::time::Duration;

/// The version of the protocol that both ends must have.
pub const PROTOCOL: u32 = 1;
/// The largest message of an agent, in bytes. A Hello has the node's whole state, so it may be larger than an order.
pub const FROM_AGENT: usize = 1 << 20;
/// The largest message of the extender, in bytes.
pub const TO_AGENT: usize = 256 << 10;
/// The most orders that may be unanswered at once on a connection, so that answers need no longer queue.
pub const WINDOW: u32 = 64;
pub const GPUS: usize = 64;
/// The most slices in a change, and the most that a change may remove.
pub const SLICES: usize = 4096;
/// The most places of a pod, and the most slices that one place may destroy.
pub const PLACES: usize = 64;
/// The longest name, UID or id, in bytes.
pub const NAME: usize = 253;
/// The longest text for people, in bytes. Longer texts are cut before they are sent.
pub const TEXT: usize = 1024;
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout for a replica's Role, which includes the review of the agent's token.
pub const ROLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which the agent pings the extender, which answers.
pub const PING_INTERVAL: Duration = Duration::from_secs(5);
/// An end that has received nothing for this long ends the connection, because two pings or their answers are missing.
pub const RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most connections whose Hello is outstanding, because a stranger can open one.
pub const NOT_GREETED: usize = 256;
