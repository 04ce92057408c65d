//! Converts the introductions of both ends of a connection.

use super::{Unreadable, name, present, read_change, write_change};
use crate::limits::{PROTOCOL, WINDOW};
use crate::wire;
use kerf_core::ledger::Change;
use kerf_core::names::NodeName;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub node: NodeName,
    /// The UID of the Node, which distinguishes it from an earlier Node with the same name.
    pub node_uid: String,
    /// The kernel's boot id, which changes with each reboot.
    pub boot_id: String,
    /// The agent's version, only for logs.
    pub version: String,
    /// An id that is different in each process of the agent.
    pub instance: String,
    /// The highest epoch that the agent has received.
    pub epoch: u64,
    /// The number of orders that may be unanswered at once, from 1 to [`WINDOW`].
    pub window: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    pub leads: bool,
    /// The epoch in which it leads; 0 if it does not lead.
    pub epoch: u64,
    /// The replica's identity, only for logs.
    pub identity: String,
}

/// Parses a Hello. The state has a result of its own, because an agent stays connected even if its state cannot be
/// parsed.
pub fn read_hello(hello: wire::Hello) -> Result<(Hello, Result<Change, Unreadable>), Unreadable> {
    let at = |refusal: Unreadable| refusal.within("hello");
    serves(hello.protocol).map_err(at)?;
    let state = present("state", hello.state).map_err(at)?;
    // Without a place in the window no order could ever be sent to the node.
    if hello.window == 0 {
        return Err(Unreadable::broken("hello.window", "is 0; no order could be sent"));
    }
    let read = Hello {
        node: NodeName::new(name("node", hello.node).map_err(at)?),
        node_uid: name("node_uid", hello.node_uid).map_err(at)?,
        boot_id: name("boot_id", hello.boot_id).map_err(at)?,
        version: name("version", hello.version).map_err(at)?,
        instance: name("instance", hello.instance).map_err(at)?,
        epoch: hello.epoch,
        window: hello.window.min(WINDOW),
    };
    Ok((read, read_change(state).map_err(|refusal| refusal.within("hello.state"))))
}

#[must_use]
pub fn write_hello(hello: Hello, state: &Change) -> wire::Hello {
    let Hello { node, node_uid, boot_id, version, instance, epoch, window } = hello;
    wire::Hello {
        protocol: PROTOCOL,
        node: node.to_string(),
        node_uid,
        boot_id,
        version,
        instance,
        epoch,
        window,
        state: Some(write_change(0, state)),
    }
}

pub fn read_role(role: wire::Role) -> Result<Role, Unreadable> {
    let at = |refusal: Unreadable| refusal.within("role");
    serves(role.protocol).map_err(at)?;
    let identity = name("identity", role.identity).map_err(at)?;
    Ok(Role { leads: role.leads, epoch: role.epoch, identity })
}

fn serves(protocol: u32) -> Result<(), Unreadable> {
    let refused = || Unreadable::broken("protocol", format!("is {protocol}; this version speaks {PROTOCOL}"));
    (protocol == PROTOCOL).then_some(()).ok_or_else(refused)
}
