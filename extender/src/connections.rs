//! The connections of the nodes' agents. The server for agents adds and removes them, and a term sends orders on them.

use hashbrown::HashMap;
use kerf_core::names::NodeName;
use kerf_protocol::server::Connection;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The open connections, one for each node.
#[derive(Debug, Default)]
pub struct Connections(Mutex<HashMap<NodeName, Connection>>);

impl Connections {
    #[must_use]
    pub fn connection(&self, node: &NodeName) -> Option<Connection> {
        self.lock().get(node).cloned()
    }

    /// The nodes whose agents have left an order unanswered for at least `since`.
    #[must_use]
    pub fn unresponsive(&self, since: Duration) -> BTreeSet<NodeName> {
        let connections = self.lock();
        let is_unresponsive =
            |c: &&Connection| c.unanswered_since().is_some_and(|sent| sent.elapsed() >= since);
        connections.values().filter(is_unresponsive).map(|connection| connection.node().clone()).collect()
    }

    pub(crate) fn insert(&self, connection: &Connection) {
        self.lock().insert(connection.node().clone(), connection.clone());
    }

    pub(crate) fn remove(&self, connection: &Connection) {
        let mut all = self.lock();
        if all.get(connection.node()).is_some_and(|known| known.id() == connection.id()) {
            all.remove(connection.node());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Connection>> {
        // No code panics while it holds this lock, so a poisoned lock still has valid data.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
