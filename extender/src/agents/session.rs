//! Applies an agent's reports, which come over its connection, to the index.

use super::Access;
use crate::cluster::Cluster;
use axum::http::HeaderMap;
use kerf_core::ledger::Change;
use kerf_protocol::convert::{Hello, Unreadable};
use kerf_protocol::limits::SLICES;
use kerf_protocol::server::{Agents, Caller, Connection, Denied, End};
use std::sync::Arc;

pub(super) struct Sessions {
    pub cluster: Arc<Cluster>,
    pub access: Arc<Access>,
}

impl Agents for Sessions {
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Denied> {
        self.access.caller(headers).await
    }

    fn connected(&self, connection: &Connection, hello: &Hello, state: Result<Change, Unreadable>) {
        let (node, version) = (connection.node(), &hello.version);
        tracing::info!(%node, connection = connection.id(), version, "agent connected");
        self.cluster.agents.insert(connection);
        self.cluster.with(|index| index.leadership_mut().see_epoch(hello.epoch));
        self.show(connection, state);
    }

    fn changed(&self, connection: &Connection, change: Result<Change, Unreadable>) -> Result<(), Unreadable> {
        let slices = self.show(connection, change);
        // Each change is within the limit, but the changes of one connection could add up to more.
        if slices > SLICES {
            return Err(Unreadable::over_limit("slices", format_args!("{slices} entries"), SLICES));
        }
        Ok(())
    }

    fn disconnected(&self, connection: &Connection, end: &End) {
        let node = connection.node();
        tracing::info!(%node, connection = connection.id(), %end, "connection of an agent ended");
        self.cluster.agents.remove(connection);
        self.cluster.with(|index| index.nodes().agents().disconnect(node, connection.id()));
    }
}

impl Sessions {
    /// Applies an agent's report to the index, and returns the number of slices of its node.
    fn show(&self, connection: &Connection, change: Result<Change, Unreadable>) -> usize {
        let (node, id) = (connection.node(), connection.id());
        self.cluster.with(|index| {
            match change {
                Ok(change) => index.nodes().agents().report(node, id, change),
                Err(error) => {
                    tracing::error!(%node, %error, "unreadable report of an agent, the node counts as full");
                    index.nodes().agents().report_unreadable(node, id);
                }
            }
            index.managed().get(node).map_or(0, |node| node.status().slices.len())
        })
    }
}
