//! A leader for tests of one node's agent: it serves the stream as the extender does, and sends the orders of
//! a test.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::HeaderMap;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{GpuNodeSpec, Reservation, Shape, WantedSlice};
use kerf_core::inventory::is_idle;
use kerf_core::keys::EXTENDER_AUTHORITY;
use kerf_core::ledger::{Answer, Change, NodeState, Order, OrderKind, Owner, Proposal, Rejection};
use kerf_core::names::{PodKey, PodUid, SliceId};
use kerf_core::packing::{Placed, Source};
use kerf_core::resource::ResourceName;
use kerf_protocol::convert::{Hello, Unreadable};
use kerf_protocol::limits::{HELLO_TIMEOUT, NOT_GREETED};
use kerf_protocol::server::{Agents, Caller, Connection, Denied, End, Server};
use kerf_runtime::serve::{self, UpgradeLimits, serve_upgrades};
use kerf_runtime::tls::{Clients, PublishedAuthority, ServingCertificate, TlsSecret, Wanted};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cluster::NAMESPACE;
use crate::control_plane::ControlPlane;

/// The epoch of this leader.
const EPOCH: u64 = 1;

/// Timeout for the agent to dial, to answer, and to accept what it cannot have at first.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Interval of retries of a rejected order.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The leader. It serves the agent of one node until it is dropped.
#[derive(Debug)]
pub struct StandInLeader {
    address: SocketAddr,
    token: PathBuf,
    copy: Arc<Copy>,
    _end: DropGuard,
}

/// The agent's state as it last reported it.
#[derive(Debug)]
struct Copy(watch::Sender<Node>);

#[derive(Debug, Default)]
struct Node {
    connection: Option<Connection>,
    state: NodeState,
}

impl Agents for Copy {
    async fn authenticate(&self, _: &HeaderMap) -> Result<Caller, Denied> {
        Ok(Caller::Anyone)
    }

    fn connected(&self, connection: &Connection, _: &Hello, state: Result<Change, Unreadable>) {
        self.0.send_modify(|node| {
            *node = Node { connection: Some(connection.clone()), ..Node::default() };
            if let Ok(state) = state {
                state.apply(&mut node.state);
            }
        });
    }

    fn changed(&self, _: &Connection, change: Result<Change, Unreadable>) -> Result<(), Unreadable> {
        let change = change?;
        self.0.send_modify(|node| change.apply(&mut node.state));
        Ok(())
    }

    fn disconnected(&self, _: &Connection, _: &End) {
        self.0.send_modify(|node| node.connection = None);
    }
}

impl StandInLeader {
    /// Serves agents of a cluster without an extender. It publishes the authority of its certificate, so that
    /// agents can verify it.
    pub async fn start(plane: &ControlPlane) -> anyhow::Result<Self> {
        let client = plane.client();
        let server_names = vec![format!("kerf-extender.{NAMESPACE}.svc")];
        let wanted = Wanted { server_names, client_name: None };
        let material = TlsSecret::ensure(&client, NAMESPACE, "kerf-extender-tls", &wanted).await?;
        let authority = PublishedAuthority::new(&client, NAMESPACE, EXTENDER_AUTHORITY);
        let before = authority.read().await?;
        ensure!(authority.write(before, &material.ca_pem).await?, "another has published an authority");
        let tls = ServingCertificate::new(&material)?.server_config(&material, Clients::Any)?;

        let (copy, stop) = (Arc::new(Copy(watch::Sender::default())), CancellationToken::new());
        let server = Server::new(Arc::clone(&copy), "stand-in", stop.clone());
        server.lead(EPOCH);
        let listener = serve::listen((Ipv4Addr::LOCALHOST, 0).into(), None).await?;
        let address = listener.local_addr()?;
        let limits = UpgradeLimits { connections: NOT_GREETED, timeout: HELLO_TIMEOUT };
        tokio::spawn(serve_upgrades(listener, Some(tls), limits, server.routes(), stop.clone()));
        let token = plane.dir().join("agent-token");
        std::fs::write(&token, "never-reviewed")?;
        Ok(Self { address, token, copy, _end: stop.drop_guard() })
    }

    /// The agent's flags that name this leader, and a short interval for writing its status.
    #[must_use]
    pub fn agent_flags(&self) -> Vec<OsString> {
        vec![
            format!("--extender={}", self.address).into(),
            "--extender-token".into(),
            self.token.clone().into(),
            "--status-interval=100ms".into(),
        ]
    }

    /// The node as its agent last reported it.
    #[must_use]
    pub fn state(&self) -> NodeState {
        self.copy.0.borrow().state.clone()
    }

    /// Waits until the agent reports a node that satisfies `done`.
    pub async fn until(&self, what: &str, done: impl Fn(&NodeState) -> bool) -> anyhow::Result<NodeState> {
        let mut reports = self.copy.0.subscribe();
        let waiting = timeout(TIMEOUT, reports.wait_for(|node| done(&node.state))).await;
        let state = waiting.map(|node| node.map(|node| node.state.clone()));
        state
            .with_context(|| format!("waited for {what}: {:#?}", self.state()))?
            .context("no agent is served")
    }

    /// Sends an order, and again on the agent's next connection if this one ends before the answer.
    pub async fn order(&self, kind: OrderKind) -> anyhow::Result<Answer> {
        let order = Order { epoch: EPOCH, kind };
        let mut connections = self.copy.0.subscribe();
        let answered = async {
            loop {
                let connected = connections.wait_for(|node| node.connection.is_some()).await;
                let connection = connected.map(|node| node.connection.clone())?.context("it is connected")?;
                let sent = async { connection.slot().await.ok()?.send(&order).ok()?.await.ok() };
                if let Some(answer) = sent.await {
                    return anyhow::Ok(answer);
                }
                connections.changed().await?;
            }
        };
        timeout(TIMEOUT, answered).await.with_context(|| format!("the agent does not answer {order:?}"))?
    }

    /// Makes the agent desire these slices. Their ids must be those that the agent gives to new slices.
    /// Reservations that are not among them are released, and idle slices may be replaced. A proposal that
    /// the agent rejects at first is repeated.
    pub async fn want(&self, wanted: &[WantedSlice]) -> anyhow::Result<()> {
        for reservation in self.state().desired().slices.iter().filter_map(|slice| slice.reservation.as_ref())
        {
            if !wanted.iter().any(|slice| is_of(slice, &reservation.uid)) {
                self.release(&reservation.uid).await?;
            }
        }
        for slice in wanted {
            let may_change = |why: &Rejection| matches!(why, Rejection::Taken(_) | Rejection::Closed(_));
            let proposed = accepted(async || self.propose(slice, wanted).await, may_change).await;
            proposed.with_context(|| format!("{slice:?} is refused"))?;
        }
        Ok(())
    }

    /// Proposes one of the `wanted` slices once. A slice without a reservation is idle afterwards.
    pub async fn propose(
        &self,
        slice: &WantedSlice,
        wanted: &[WantedSlice],
    ) -> anyhow::Result<Result<(), Rejection>> {
        let desired = self.state().desired();
        let same = desired.slices.iter().find(|known| known.id == slice.id);
        if same.is_some_and(|known| slice.reservation.as_ref().is_none_or(|r| is_of(known, &r.uid))) {
            return Ok(Ok(()));
        }
        let reservation = slice.reservation.clone().unwrap_or_else(|| reservation_without_owner(slice));
        let source = match same {
            Some(idle) => Source::Idle(idle.id.clone()),
            None => Source::Cut(self.in_the_way(&desired, slice, wanted)),
        };
        let Reservation { container, resource, alone, .. } = reservation.clone();
        let place = Placed { container, resource, alone, gpu: slice.gpu.clone(), shape: slice.shape, source };
        let owner = Owner::from_reservation(&reservation);
        let uid = owner.uid.clone();
        let proposal = Proposal { owner, places: vec![place] };
        if let Err(rejection) = self.order(OrderKind::Reserve(proposal)).await? {
            return Ok(Err(rejection));
        }
        // The agent sends the report of an order before the answer.
        let desired = self.state().desired();
        let made =
            desired.slices.iter().find(|made| is_of(made, &uid)).context("it was taken back at once")?;
        ensure!(made.id == slice.id, "the agent calls {slice:?} {}", made.id);
        if slice.reservation.is_none() {
            self.release(&uid).await?;
        }
        Ok(Ok(()))
    }

    /// Idle slices of the same GPU that are not in `wanted`.
    fn in_the_way(&self, desired: &GpuNodeSpec, slice: &WantedSlice, wanted: &[WantedSlice]) -> Vec<SliceId> {
        let status = self.state().status;
        let is_wanted = |known: &WantedSlice| wanted.iter().any(|wanted| wanted.id == known.id);
        let idle = desired.slices.iter().filter(|known| {
            known.gpu == slice.gpu
                && known.reservation.is_none()
                && !is_wanted(known)
                && is_idle(known, &status)
        });
        idle.map(|known| known.id.clone()).collect()
    }

    /// Releases the reservation of a pod, unless it may be bound.
    async fn release(&self, uid: &PodUid) -> anyhow::Result<()> {
        let why = "a test needs it no longer".to_owned();
        match self.order(OrderKind::Release { uid: uid.clone(), why }).await? {
            Ok(_) | Err(Rejection::BindingOpen) => Ok(()),
            Err(rejection) => anyhow::bail!("a release is refused: {rejection}"),
        }
    }

    #[must_use]
    pub fn has_reserved(&self, uid: &PodUid) -> bool {
        self.state().desired().slices.iter().any(|slice| is_of(slice, uid))
    }

    /// Orders the mark that the Binding of a pod is about to be sent, once the pod's slices are ready. The GpuNode may
    /// still show them ready when the agent knows better, for instance that the kubelet has restarted.
    pub async fn mark(&self, uid: &PodUid) -> anyhow::Result<()> {
        let mark = async || self.order(OrderKind::Mark { uid: uid.clone(), attempt: 1 }).await;
        let marked = accepted(mark, |why| *why == Rejection::NotReady).await;
        marked.with_context(|| format!("the Binding of {uid} must not be sent"))
    }

    /// Orders the outcome that the pod is bound.
    pub async fn bound(&self, uid: &PodUid) -> anyhow::Result<()> {
        let answer = self.order(OrderKind::Outcome { uid: uid.clone(), attempt: 1, bound: true }).await?;
        Ok(answer.map(drop)?)
    }
}

/// Gives an order until the agent accepts it, while what it is rejected for may change.
async fn accepted<T>(
    order: impl AsyncFn() -> anyhow::Result<Result<T, Rejection>>,
    may_change: impl Fn(&Rejection) -> bool,
) -> anyhow::Result<()> {
    let until = Instant::now() + TIMEOUT;
    while let Err(rejection) = order().await? {
        if !may_change(&rejection) || Instant::now() >= until {
            return Err(rejection.into());
        }
        sleep(RETRY_INTERVAL).await;
    }
    Ok(())
}

/// A reservation of one device of `resource` for the container `main` of a pod.
pub fn reservation(pod: &Pod, resource: &str) -> anyhow::Result<Reservation> {
    Ok(Reservation {
        uid: PodUid::new(pod.metadata.uid.clone().context("the pod has no UID")?),
        namespace: "default".to_owned(),
        pod: pod.metadata.name.clone().context("the pod has no name")?,
        container: "main".to_owned(),
        resource: resource.parse()?,
        alone: false,
        epoch: EPOCH,
    })
}

fn is_of(slice: &WantedSlice, uid: &PodUid) -> bool {
    slice.reservation.as_ref().is_some_and(|reservation| reservation.uid == *uid)
}

/// A reservation for a pod that does not exist. It makes the agent cut a slice, which is idle once the
/// reservation is released.
fn reservation_without_owner(slice: &WantedSlice) -> Reservation {
    let resource = match slice.shape {
        Shape::Mig { profile, .. } => ResourceName::Mig(profile),
        Shape::Whole { .. } => ResourceName::Whole,
        Shape::Mps { size_gb, .. } => ResourceName::Mps(size_gb),
        Shape::TimeSlicing { size_gb } => ResourceName::TimeSlicing(size_gb),
    };
    let PodKey { namespace, name } = PodKey::new("default", format!("nobody-{}", slice.id));
    let (uid, container) = (PodUid::new(&name), "main".to_owned());
    Reservation { uid, namespace, pod: name, container, resource, alone: false, epoch: EPOCH }
}
