//! What the node writers ask of the index, and what they tell it.

use super::spec_state::SpecState;
use super::{ClusterIndex, IndexedNode, node};
use kerf_core::contract::GpuNodeSpec;
use kerf_core::names::NodeName;
use kerf_runtime::gpu_node::GpuNode;

/// What a writer found when it read the node again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reread {
    /// Nothing is left to write: what was wanted is there.
    Done,
    /// There is something to write on top of what was found.
    Again,
    /// A leader of a newer epoch has written.
    Deposed,
}

impl ClusterIndex {
    /// The next spec of a node, and the revision that it follows. `None` if there is nothing to write, or if a leader of
    /// a newer epoch has written: then this one writes no more.
    pub fn begin_write(&mut self, name: &NodeName) -> Option<(u64, GpuNodeSpec)> {
        let node = self.nodes.get_mut(name)?;
        if node.newest_epoch()? > self.epoch {
            return None;
        }
        let ignored = node.is_ignored();
        let spec = node.spec.as_mut().ok()?;
        let before = spec.committed().revision;
        let write = spec.begin(self.epoch, ignored).map(|next| (before, next.clone()));
        if write.is_none() {
            // Changes that cancelled each other are as good as written.
            self.effects.changed.insert(name.clone());
        }
        write
    }

    /// A node's spec of this revision was written.
    pub fn wrote(&mut self, name: &NodeName, revision: u64) {
        if let Some(Ok(spec)) = self.nodes.get_mut(name).map(|node| &mut node.spec) {
            spec.written(revision);
            self.note_lag(name);
            self.note_pending(name);
        }
    }

    /// A writer that does not know what became of its write, or that was refused, has read the node again.
    pub fn reread(&mut self, found: &GpuNode) -> Reread {
        let name = found.name();
        self.show_node(found);
        let Some(node) = self.nodes.get_mut(&name) else { return Reread::Done };
        if node.newest_epoch().is_some_and(|epoch| epoch > self.epoch) {
            return Reread::Deposed;
        }
        if node.keeps_ledger {
            return Reread::Done;
        }
        if let (Ok(spec), Ok(fresh)) = (&mut node.spec, node::read_spec(found)) {
            // Older than what we know would be a stale read; as old as what we know, the write has not happened.
            if fresh.revision >= spec.committed().revision {
                spec.rebase(fresh, node.status.as_ref().ok(), &self.fleet);
            }
        }
        self.settle(&name);
        if self.is_pending(&name) { Reread::Again } else { Reread::Done }
    }

    /// Gives up what was to be written on a node, because the API server refuses it for this reason.
    pub fn abandon(&mut self, name: &NodeName, reason: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let Ok(spec) = &mut node.spec else { return };
        spec.abandon();
        for uid in node.promised.difference(&node.promised_now()) {
            node.failures.insert(uid.clone(), format!("failed to write the GpuNode {name}: {reason}"));
        }
        self.settle(name);
    }

    /// Whether a node's spec is not yet what is wanted.
    #[must_use]
    pub fn is_pending(&self, name: &NodeName) -> bool {
        let is_pending = |n: &IndexedNode| n.is_ignored() || n.spec.as_ref().is_ok_and(SpecState::is_pending);
        self.nodes.get(name).is_some_and(is_pending)
    }

    pub(super) fn note_pending(&mut self, name: &NodeName) {
        if self.is_pending(name) {
            self.effects.unwritten.insert(name.clone());
        }
        self.effects.changed.insert(name.clone());
    }
}

impl IndexedNode {
    /// The epoch of the leader that wrote the spec last, or a newer one that the agent has seen.
    #[must_use]
    pub fn newest_epoch(&self) -> Option<u64> {
        self.spec.as_ref().ok().map(|spec| spec.committed().epoch.max(self.observed_epoch()))
    }

    /// Whether the agent takes no spec of the epoch that this one was written in: it has seen a newer. An etcd restore takes
    /// epochs back.
    #[must_use]
    pub fn is_ignored(&self) -> bool {
        self.spec.as_ref().is_ok_and(|spec| spec.committed().epoch < self.observed_epoch())
    }

    fn observed_epoch(&self) -> u64 {
        self.status.as_ref().map_or(0, |status| status.observed_epoch)
    }
}
