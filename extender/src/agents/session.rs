//! What the index learns of an agent's connection.

use crate::term::Term;
use kerf_core::ledger::Change;
use kerf_protocol::convert::{Hello, Unreadable};
use kerf_protocol::limits::SLICES;
use kerf_protocol::server::{Agents, Caller, Connection, End};
use std::sync::Arc;
use std::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;

/// The agents of a term.
pub(super) struct Sessions(pub Arc<Term>);

impl Agents for Sessions {
    async fn authenticate(&self, _: &MetadataMap) -> Result<Caller, Status> {
        Ok(Caller::Anyone)
    }

    fn connected(&self, connection: &Connection, hello: &Hello, state: Result<Change, Unreadable>) {
        let (node, version) = (connection.node(), &hello.version);
        tracing::info!(%node, connection = connection.id(), version, "agent connected");
        self.0.agents.insert(connection);
        self.0.with(|index| index.hear_epoch(hello.epoch));
        self.show(connection, state);
    }

    fn changed(&self, connection: &Connection, change: Result<Change, Unreadable>) -> Result<(), Unreadable> {
        let slices = self.show(connection, change);
        if slices > SLICES {
            return Err(Unreadable::over_limit("slices", format_args!("{slices} entries"), SLICES));
        }
        Ok(())
    }

    fn disconnected(&self, connection: &Connection, end: &End) {
        let node = connection.node();
        tracing::info!(%node, connection = connection.id(), %end, "connection of an agent ended");
        self.0.agents.remove(connection);
        self.0.with(|index| index.end_copy(node, connection.id()));
    }
}

impl Sessions {
    /// Shows the index what an agent reports. How many slices its node has.
    fn show(&self, connection: &Connection, change: Result<Change, Unreadable>) -> usize {
        let (node, id) = (connection.node(), connection.id());
        self.0.with(|index| {
            match change {
                Ok(change) => index.show_copy(node, id, change),
                Err(error) => {
                    tracing::error!(%node, %error, "unreadable report of an agent, the node counts as full");
                    index.show_unreadable_copy(node, id);
                }
            }
            index.note_stages(node, Instant::now());
            index
                .node(node)
                .and_then(|node| Some(node.status.as_ref().ok()?.slices.len()))
                .unwrap_or_default()
        })
    }
}
