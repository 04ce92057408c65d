//! The agents' ends of the streams. They report their nodes once, and then only answer pings.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kerf_core::keys::EXTENDER_AUTHORITY;
use kerf_core::ledger::{Answer, NodeState, Order, Rejection};
use kerf_core::names::NodeName;
use kerf_protocol::client::{self, Secured};
use kerf_protocol::convert::{Hello, Role};
use kerf_protocol::limits::WINDOW;
use kerf_runtime::tls::PublishedAuthority;
use kerf_tests::cluster::{NAMESPACE, wait};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::api::Api;
use super::extender::{Extender, SERVICE};
use super::population::{Population, node_name, node_state};
use super::tokens::As;

/// Agents that dial at once. The extender refuses more than 256 that have not said hello.
const AT_ONCE: usize = 64;
const TIMEOUT: Duration = Duration::from_mins(2);

/// All agents. Dropping it ends them.
#[derive(Debug)]
pub struct Agents {
    counts: Arc<Counts>,
    _end: DropGuard,
}

#[derive(Debug, Default)]
struct Counts {
    /// Connections whose extender has reported that it leads.
    greeted: AtomicUsize,
    ended: AtomicUsize,
    orders: AtomicUsize,
}

impl Agents {
    /// Connects an agent of each node.
    pub async fn connect(population: Population, api: &Api, extender: &Extender) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let agents = Self { counts: Arc::default(), _end: stop.clone().drop_guard() };
        let published = PublishedAuthority::new(&api.client()?, NAMESPACE, EXTENDER_AUTHORITY);
        let authority = move || {
            let published = published.clone();
            async move { published.client_config().await.map_err(io::Error::other) }
        };
        let address = extender.agents_address()?.to_string();
        // Every agent has a token of its own, so the file for one is not read.
        let secured = Arc::new(Secured::new(vec![address], SERVICE, "/dev/null".into(), authority)?);
        let places = Arc::new(Semaphore::new(AT_ONCE));
        for number in 0..population.nodes {
            let state = Arc::new(node_state(number, population.pods_per_node)?);
            let agent = Agent {
                name: node_name(number),
                state: watch::Sender::new(state),
                counts: Arc::clone(&agents.counts),
                place: Mutex::new(Some(Arc::clone(&places).acquire_owned().await?)),
            };
            let network = As::agent(&agent.name, Arc::clone(&secured));
            tokio::spawn(client::run(Arc::new(agent), Arc::new(network), stop.clone()));
        }
        let greeted = async || Ok(agents.greeted() == population.nodes);
        wait(TIMEOUT, "the leader to greet all agents", greeted).await?;
        Ok(agents)
    }

    fn greeted(&self) -> usize {
        self.counts.greeted.load(Ordering::Relaxed)
    }

    /// Whether no connection has ended since, and no order has come.
    pub fn are_undisturbed(&self) -> bool {
        let none = |count: &AtomicUsize| count.load(Ordering::Relaxed) == 0;
        none(&self.counts.ended) && none(&self.counts.orders)
    }
}

struct Agent {
    name: String,
    state: watch::Sender<Arc<NodeState>>,
    counts: Arc<Counts>,
    /// Its place among those that dial, until it is connected.
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl client::Agent for Agent {
    fn hello(&self) -> Hello {
        Hello {
            node: NodeName::new(&self.name),
            node_uid: "0c6e4b1d-0000-4000-8000-000000000001".to_owned(),
            boot_id: "d1a3c7e2-0000-4000-8000-000000000001".to_owned(),
            version: kerf_runtime::VERSION.to_owned(),
            instance: self.name.clone(),
            epoch: 1,
            window: WINDOW,
        }
    }

    fn state(&self) -> watch::Receiver<Arc<NodeState>> {
        self.state.subscribe()
    }

    fn role(&self, _: SocketAddr, role: Option<&Role>) {
        match role {
            Some(role) if role.leads => self.counts.greeted.fetch_add(1, Ordering::Relaxed),
            Some(_) => return,
            None => self.counts.ended.fetch_add(1, Ordering::Relaxed),
        };
        drop(self.place.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn order(&self, _: Order) -> oneshot::Receiver<Answer> {
        self.counts.orders.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        // The receiver exists, so the send cannot fail.
        let _ = sender.send(Err(Rejection::Closed("the agent only reports".to_owned())));
        answer
    }
}
