//! The agent's end of the streams to the extender's replicas, which the agent dials.

use crate::event::{Event, Events};
use crate::node_object;
use k8s_openapi::api::core::v1::Node;
use kerf_core::ledger::{Answer, NodeState, Order};
use kerf_core::names::NodeName;
use kerf_protocol::client::{self, Network};
use kerf_protocol::convert::{Hello, Role};
use kerf_protocol::limits::WINDOW;
use kube::Api;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What the process sends of itself in its `Hello`.
#[derive(Debug, Clone)]
pub struct Process {
    pub node: NodeName,
    /// The kernel's id of the current boot.
    pub boot_id: String,
    /// The highest epoch that an earlier process received.
    pub epoch: u64,
}

/// Keeps a connection to each replica until `stop`. It waits for the first report, because a leader would read an empty
/// report as the release of every reservation.
pub async fn run<N: Network>(
    process: Process,
    nodes: Api<Node>,
    network: N,
    mut state: watch::Receiver<Arc<NodeState>>,
    events: Events,
    stop: CancellationToken,
) {
    if !matches!(stop.run_until_cancelled(state.changed()).await, Some(Ok(()))) {
        return;
    }
    let Some(Some(node_uid)) = stop.run_until_cancelled(uid_of(&nodes, &process.node)).await else { return };
    let instance = format!("{}-{}", std::process::id(), jiff::Timestamp::now().as_nanosecond());
    let hello = Hello {
        node: process.node,
        node_uid,
        boot_id: process.boot_id,
        version: kerf_runtime::VERSION.to_owned(),
        instance,
        epoch: process.epoch,
        window: WINDOW,
    };
    let agent = Link { hello, state, events, replicas: Mutex::default() };
    client::run(Arc::new(agent), Arc::new(network), stop).await;
}

/// Reads the Node's UID, with retries until there is one.
async fn uid_of(nodes: &Api<Node>, node: &NodeName) -> Option<String> {
    loop {
        match node_object::owner(nodes, node.as_str()).await {
            Ok(Some(owner)) => return Some(owner.uid),
            Ok(None) => tracing::warn!(%node, "there is no such Node; the extender is dialled once there is"),
            Err(error) => tracing::warn!(%error, "failed to read the Node; trying again"),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

struct Link {
    hello: Hello,
    state: watch::Receiver<Arc<NodeState>>,
    events: Events,
    replicas: Mutex<Replicas>,
}

/// What the replicas have reported of themselves.
#[derive(Debug, Default)]
struct Replicas {
    /// The epochs of the connected replicas that lead.
    leading: BTreeMap<SocketAddr, u64>,
    /// The highest epoch of any replica, also of one that no longer leads.
    epoch: u64,
}

impl Link {
    fn replicas(&self) -> MutexGuard<'_, Replicas> {
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl client::Agent for Link {
    fn hello(&self) -> Hello {
        let hello = self.hello.clone();
        Hello { epoch: hello.epoch.max(self.replicas().epoch), ..hello }
    }

    fn state(&self) -> watch::Receiver<Arc<NodeState>> {
        self.state.clone()
    }

    fn role(&self, extender: SocketAddr, role: Option<&Role>) {
        let mut replicas = self.replicas();
        let before = replicas.leading.values().max().copied();
        match role.filter(|role| role.leads) {
            Some(Role { epoch, identity, .. }) => {
                tracing::info!(%extender, identity, epoch, "connected to the extender's leader");
                replicas.epoch = replicas.epoch.max(*epoch);
                replicas.leading.insert(extender, *epoch);
            }
            None => drop(replicas.leading.remove(&extender)),
        }
        // Two replicas may report that they lead; the leader is the one with the highest epoch.
        let leader = replicas.leading.values().max().copied();
        if leader != before {
            self.events.send(Event::Leader(leader));
        }
    }

    fn order(&self, order: Order) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        self.events.send(Event::Order(order, sender));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in;
    use kerf_protocol::client::Agent as _;
    use serde_json::json;
    use std::collections::BTreeSet;
    use std::io;
    use tokio::io::DuplexStream;
    use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
    use tokio::time::timeout;

    fn link() -> (Link, UnboundedReceiver<Event>) {
        let (events, queue) = Events::channel();
        let text = || "text".to_owned();
        let hello = Hello {
            node: NodeName::new("n1"),
            node_uid: text(),
            boot_id: text(),
            version: text(),
            instance: text(),
            epoch: 4,
            window: WINDOW,
        };
        let (_, state) = watch::channel(Arc::default());
        (Link { hello, state, events, replicas: Mutex::default() }, queue)
    }

    fn reported(queue: &mut UnboundedReceiver<Event>) -> Vec<Option<u64>> {
        let mut reported = Vec::new();
        while let Ok(Event::Leader(leader)) = queue.try_recv() {
            reported.push(leader);
        }
        reported
    }

    /// A network without replicas that reports each look-up of them.
    struct Empty(UnboundedSender<()>);

    impl Network for Empty {
        type Stream = DuplexStream;

        async fn resolve(&self) -> io::Result<BTreeSet<SocketAddr>> {
            self.0.send(()).map_err(io::Error::other)?;
            Ok(BTreeSet::new())
        }

        async fn connect(&self, _: SocketAddr) -> io::Result<DuplexStream> {
            Err(io::ErrorKind::NotConnected.into())
        }

        async fn token(&self) -> io::Result<Option<String>> {
            Ok(None)
        }
    }

    #[tokio::test]
    async fn no_replica_is_dialled_before_the_first_report() {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u1"}});
        let (client, _) = api_stand_in::client(move |_| (200, node.clone()));
        let (report, state) = watch::channel(Arc::<NodeState>::default());
        let (asked, mut asks) = mpsc::unbounded_channel();
        let process = Process { node: NodeName::new("n1"), boot_id: "boot".to_owned(), epoch: 4 };
        let (events, _queue) = Events::channel();
        let stop = CancellationToken::new();
        let _end = stop.clone().drop_guard();
        tokio::spawn(run(process, Api::all(client), Empty(asked), state, events, stop));
        assert!(timeout(Duration::from_millis(200), asks.recv()).await.is_err(), "it has nothing to say");
        report.send_modify(|state| Arc::make_mut(state).closed = Some("it starts".to_owned()));
        assert_eq!(timeout(Duration::from_secs(20), asks.recv()).await, Ok(Some(())));
    }

    #[test]
    fn the_leader_is_the_connected_replica_with_the_highest_epoch() {
        let (link, mut queue) = link();
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let role = |leads, epoch| Role { leads, epoch, identity: "replica".to_owned() };
        link.role(at(1), Some(&role(false, 0)));
        assert_eq!((reported(&mut queue), link.hello().epoch), (vec![], 4));
        link.role(at(1), Some(&role(true, 6)));
        link.role(at(2), Some(&role(true, 5)));
        assert_eq!((reported(&mut queue), link.hello().epoch), (vec![Some(6)], 6));
        link.role(at(1), None);
        link.role(at(2), Some(&role(false, 0)));
        assert_eq!(reported(&mut queue), [Some(5), None]);
        assert_eq!(link.hello().epoch, 6, "the highest epoch stays in force");
    }
}
