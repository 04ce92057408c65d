//! The connections of all nodes, and the role that each of them receives.

use super::connection::Connection;
use crate::limits::PROTOCOL;
use crate::wire::Role;
use kerf_core::names::NodeName;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct Registry(Mutex<State>);

#[derive(Debug)]
struct State {
    role: Role,
    last_id: u64,
    seats: BTreeMap<NodeName, Seat>,
}

/// A node's place, which one connection can have.
#[derive(Debug)]
struct Seat {
    claim: Claim,
    /// `None` until the previous connection has ended.
    connection: Option<Connection>,
}

/// The claim of a node's newest Hello to its place.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub id: u64,
    /// Ends the connection, because there is a newer Hello.
    pub replaced: CancellationToken,
    /// The node's connection holds this until its end is reported, so that the next one waits.
    pub turn: Arc<tokio::sync::Mutex<()>>,
}

impl Registry {
    pub fn new(identity: String) -> Self {
        let role = Role { protocol: PROTOCOL, leads: false, epoch: 0, identity };
        Self(Mutex::new(State { role, last_id: 0, seats: BTreeMap::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The lock is never poisoned, because no code panics while it holds it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a Hello the newest of its node, and ends the connection of the previous one.
    pub fn claim(&self, node: &NodeName) -> Claim {
        let mut state = self.lock();
        state.last_id += 1;
        let before = state.seats.remove(node);
        // The node's connections share one lock, so that the new one waits until the end of the old one is reported.
        let turn = before.as_ref().map(|seat| Arc::clone(&seat.claim.turn)).unwrap_or_default();
        if let Some(seat) = before {
            seat.claim.replaced.cancel();
        }
        let claim = Claim { id: state.last_id, replaced: CancellationToken::new(), turn };
        state.seats.insert(node.clone(), Seat { claim: claim.clone(), connection: None });
        claim
    }

    /// Sends the role to a connection, now and at each change, unless it has been replaced.
    pub fn open(&self, connection: &Connection) {
        let mut state = self.lock();
        let role = state.role.clone();
        let seat = state.seats.get_mut(connection.node());
        if let Some(seat) = seat.filter(|seat| seat.claim.id == connection.id()) {
            connection.send_role(role);
            seat.connection = Some(connection.clone());
        }
    }

    pub fn forget(&self, node: &NodeName, id: u64) {
        let mut state = self.lock();
        // A newer Hello may have the seat already, and must keep it.
        if state.seats.get(node).is_some_and(|seat| seat.claim.id == id) {
            state.seats.remove(node);
        }
    }

    pub fn set_role(&self, leads: bool, epoch: u64) {
        let mut state = self.lock();
        state.role = Role { leads, epoch, ..state.role.clone() };
        for connection in state.seats.values().filter_map(|seat| seat.connection.as_ref()) {
            connection.send_role(state.role.clone());
        }
    }
}
