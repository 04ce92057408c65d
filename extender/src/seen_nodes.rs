//! The Nodes that layouts may concern, as the watch shows them. They are kept for the process's life, so that a new
//! leader begins with them and then receives their changes.

use crate::objects::node_view::{NodeView, is_of_interest};
use kerf_core::names::NodeName;
use kerf_core::plugin_layout::SeenNode;
use kube::runtime::watcher::Event;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Nodes, each with its resource version.
pub type Versioned = BTreeMap<NodeName, (SeenNode, String)>;

/// A change in the Nodes that are kept.
#[derive(Debug, Clone)]
pub enum NodeChange {
    /// A list is complete: these are all the Nodes.
    All(Versioned),
    /// A Node that was added or changed.
    Shown(NodeName, Box<(SeenNode, String)>),
    /// A Node that was deleted, or that layouts no longer concern.
    Hidden(NodeName),
}

impl From<NodeView> for NodeChange {
    fn from(node: NodeView) -> Self {
        let (name, seen, version) = node.into_seen();
        if is_of_interest(&seen) { Self::Shown(name, Box::new((seen, version))) } else { Self::Hidden(name) }
    }
}

/// The Nodes, and the channel to the leader's keeper.
#[derive(Debug, Default)]
pub struct SeenNodes {
    /// Whether layouts can ever be applied in this process.
    are_kept: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    nodes: Versioned,
    listing: Versioned,
    is_listed: bool,
    leader: Option<UnboundedSender<NodeChange>>,
}

impl SeenNodes {
    /// No Nodes yet. If layouts are never applied, none are kept.
    #[must_use]
    pub fn new(are_kept: bool) -> Self {
        Self { are_kept, state: Mutex::default() }
    }

    /// Keeps what an event of the watch shows, and passes it on to a keeper of layouts if there is one.
    pub fn show(&self, event: &Event<NodeView>) {
        if !self.are_kept {
            return;
        }
        let mut state = self.lock();
        let change = match event {
            Event::Init => return state.listing.clear(),
            Event::InitApply(node) => {
                if let NodeChange::Shown(name, node) = node.clone().into() {
                    state.listing.insert(name, *node);
                }
                return;
            }
            Event::InitDone => {
                state.nodes = std::mem::take(&mut state.listing);
                state.is_listed = true;
                NodeChange::All(state.nodes.clone())
            }
            Event::Apply(node) => node.clone().into(),
            Event::Delete(node) => NodeChange::Hidden(node.clone().into_seen().0),
        };
        match &change {
            NodeChange::All(_) => {}
            NodeChange::Shown(name, node) => drop(state.nodes.insert(name.clone(), (**node).clone())),
            NodeChange::Hidden(name) => drop(state.nodes.remove(name)),
        }
        if let Some(leader) = &state.leader {
            // The send fails if that term has ended, which is fine.
            let _sent = leader.send(change);
        }
    }

    /// Returns a channel with all Nodes, once they are listed, and then their changes. The former receiver gets nothing
    /// more.
    pub fn follow(&self) -> UnboundedReceiver<NodeChange> {
        let (leader, changes) = unbounded_channel();
        let mut state = self.lock();
        if state.is_listed {
            // The send cannot fail, because the receiver is held here.
            let _sent = leader.send(NodeChange::All(state.nodes.clone()));
        }
        state.leader = Some(leader);
        changes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn view(name: &str, labels: &serde_json::Value) -> NodeView {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    fn names(change: Option<NodeChange>) -> Vec<String> {
        match change {
            Some(NodeChange::All(nodes)) => nodes.keys().map(|name| format!("={name}")).collect(),
            Some(NodeChange::Shown(name, _)) => vec![format!("+{name}")],
            Some(NodeChange::Hidden(name)) => vec![format!("-{name}")],
            None => vec!["ended".to_owned()],
        }
    }

    #[tokio::test]
    async fn a_leader_gets_all_nodes_of_interest_and_then_their_changes() {
        let nodes = SeenNodes::new(true);
        let gpu = &json!({"nvidia.com/gpu.present": "true"});
        let mut early = nodes.follow();
        nodes.show(&Event::Init);
        for node in [view("a", gpu), view("b", gpu), view("plain", &json!({}))] {
            nodes.show(&Event::InitApply(node));
        }
        nodes.show(&Event::InitDone);
        assert_eq!(names(early.recv().await), ["=a", "=b"], "one that came before the list waits for it");
        nodes.show(&Event::Delete(view("b", gpu)));
        nodes.show(&Event::Apply(view("c", gpu)));
        let mut late = nodes.follow();
        assert_eq!(names(late.recv().await), ["=a", "=c"]);
        nodes.show(&Event::Apply(view("c", &json!({}))));
        nodes.show(&Event::Apply(view("a", gpu)));
        assert_eq!(names(late.recv().await), ["-c"]);
        assert_eq!(names(late.recv().await), ["+a"]);
        assert_eq!(
            (names(early.recv().await), names(early.recv().await)),
            (vec!["-b".into()], vec!["+c".into()])
        );
        assert_eq!(names(early.recv().await), ["ended"]);
    }
}
