//! The fingerprint of a world: two worlds with the same one have the same future.

use crate::world::World;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

#[derive(Default)]
struct Sink(DefaultHasher);

impl Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl World<'_> {
    /// Hashes the world. Ids of connections are left out, because they rise with each connection; whether a bind's
    /// connection is still its node's is included.
    pub fn fingerprint(&self) -> u64 {
        let mut sink = Sink::default();
        // Writing to a hash cannot fail.
        let _ = self.write(&mut sink);
        sink.0.finish()
    }

    fn write(&self, to: &mut Sink) -> fmt::Result {
        let phases = self.pods.iter().map(|pod| pod.phase).collect::<Vec<_>>();
        write!(
            to,
            "{:?}{phases:?}{:?}{:?}{:?}{}",
            self.now, self.bindings, self.lease, self.strays, self.upsets
        )?;
        for (between, connection) in &self.connections {
            write!(to, "{between:?}{:?}", connection.essence())?;
        }
        for it in &self.leaders {
            write!(to, "{:?}{}{}", it.term, it.frozen, it.overslept)?;
            for (node, copy) in &it.copies.0 {
                let (status, closed) = (&copy.state.status, &copy.state.closed);
                write!(to, "{node}{:?}{closed:?}{:?}{:?}", status.slices, copy.proposals, copy.releasing)?;
            }
            for bind in &it.binds {
                let is_its = it.copies.connection(bind.node) == Some(bind.connection);
                write!(
                    to,
                    "{}{}{:?}{is_its}{:?}{:?}",
                    bind.pod, bind.node, bind.progress, bind.order, bind.posted
                )?;
            }
        }
        for agent in &self.agents {
            write!(to, "{:?}{:?}{:?}", agent.node.ledger, agent.disk.epoch, agent.disk.desired.slices)?;
            write!(to, "{:?}{:?}{:?}{:?}", agent.waiting, agent.known, agent.look_ups, agent.failed)?;
            write!(to, "{:?}{:?}{:?}", agent.running, agent.report.status.slices, agent.report.closed)?;
            write!(to, "{}{:?}{:?}", agent.heard, agent.answered, agent.unknown)?;
            for gpu in agent.node.observed().gpus {
                write!(to, "{:?}{:?}", gpu.instances, gpu.shares)?;
            }
        }
        Ok(())
    }
}
