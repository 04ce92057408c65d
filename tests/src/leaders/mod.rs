//! Replicas of the extender as processes, each with its own connection to the API server, and faults of their
//! leader.

mod door;
mod link;
mod rounds;
mod scheduler;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use rustix::process::Signal;
use serde_json::json;
use tokio::task::AbortHandle;

use crate::binaries;
use crate::cluster::{Cluster, NAMESPACE, start_scheduler, wait};
use crate::control_plane::{ControlPlane, ports};
use crate::gpu_nodes::{Manner, SimulatedAgents};
use crate::process::Child;
use door::Door;
pub use link::{Entered, Gate, Link};
pub use rounds::{Found, Rounds};
pub use scheduler::SchedulerClient;

const TIMEOUT: Duration = Duration::from_mins(1);
const LEASE: &str = "kerf-extender";
/// How often the Lease is read to route connections to the leader.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub struct Replica {
    name: String,
    child: Child,
    link: Link,
    address: SocketAddr,
    agents_address: SocketAddr,
}

impl Replica {
    /// Starts a replica of this name with these additional flags. It serves agents at this address.
    async fn start(
        plane: &ControlPlane,
        name: &str,
        agents_address: SocketAddr,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let account = plane.kubeconfig_for_service_account(NAMESPACE, "kerf-extender").await?;
        let link = Link::start(plane.client_as(&account).await?).await?;
        let kubeconfig = plane.dir().join(format!("{name}.kubeconfig"));
        write_kubeconfig(&kubeconfig, &link.url())?;
        let [port] = ports::free()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let file = plane.dir().join(format!("{name}.address"));
        let child = plane
            .program(name, binaries::ours("kerf-extender")?)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--admin-address", "127.0.0.1:0", "--identity", name])
            .args(["--tls-name=127.0.0.1", "--tls-name=kerf-extender.kerf-system.svc"])
            .args(["--log", "info,kerf_extender=debug", "--address", &address.to_string(), "--address-file"])
            .arg(&file)
            .arg(format!("--agents-address={agents_address}"))
            .args(flags)
            .spawn()?;
        let listening = wait(TIMEOUT, "the replica to listen", async || Ok(file.exists())).await;
        listening.with_context(|| child.log_tail())?;
        Ok(Self { name: name.to_owned(), child, link, address, agents_address })
    }

    /// Its identity in the Lease.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address that it serves to kube-scheduler.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    #[must_use]
    pub fn log_tail(&self) -> String {
        self.child.log_tail()
    }

    /// Waits until its log has this text, after its first `from` bytes.
    pub async fn logs(&self, text: &str, from: usize) -> anyhow::Result<()> {
        self.logs_times(text, 1, from).await
    }

    /// Waits until its log has this text `times` times, after its first `from` bytes.
    pub async fn logs_times(&self, text: &str, times: usize, from: usize) -> anyhow::Result<()> {
        let path = self.child.log().to_owned();
        let found = async || {
            let log = std::fs::read_to_string(&path)?;
            Ok(log.get(from..).is_some_and(|log| log.matches(text).count() >= times))
        };
        let what = format!("{} to log {text:?} {times} times", self.name);
        wait(TIMEOUT, &what, found).await.with_context(|| self.log_tail())
    }

    /// The current length of its log, in bytes.
    pub fn logged(&self) -> anyhow::Result<usize> {
        Ok(std::fs::read_to_string(self.child.log())?.len())
    }
}

/// Writes a kubeconfig without credentials, for a link, which adds them, or for a stand-in that needs none.
pub fn write_kubeconfig(path: &Path, url: &str) -> anyhow::Result<()> {
    let document = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    std::fs::write(path, document.to_string()).with_context(|| format!("failed to write {}", path.display()))
}

/// A fault of the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    Killed,
    /// It is stopped for a while, and then continued.
    Frozen,
    /// It cannot reach the API server for a while; requests that it has sent arrive late.
    CutOff,
    /// It is asked to end.
    Terminated,
}

impl Blow {
    pub const ALL: [Self; 4] = [Self::Killed, Self::Frozen, Self::CutOff, Self::Terminated];
}

/// Two replicas. kube-scheduler's calls reach the one that leads.
pub struct Leaders {
    pub replicas: Vec<Replica>,
    leases: Api<Lease>,
    door: Door,
    following: AbortHandle,
}

impl Leaders {
    /// Starts two replicas, `one` and `two`, for simulated agents.
    pub async fn start(plane: &ControlPlane, flags: &[&str]) -> anyhow::Result<Self> {
        let [one, two, door] = ports::free()?.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        Self::start_at(plane, door, &[one, two], &[flags, &["--agents-unauthenticated"]].concat()).await
    }

    /// Starts two replicas in place of a cluster's extender. Agents must dial [two
    /// addresses](crate::cluster::ClusterOptions::two_extenders).
    pub async fn take_over(cluster: &mut Cluster, flags: &[&str]) -> anyhow::Result<Self> {
        // The door takes the extender's address, because kube-scheduler calls only that one.
        let door = std::fs::read_to_string(cluster.plane().dir().join("kerf-extender.address"))?;
        let door = door.trim().parse().context("the extender has no address")?;
        cluster.extender().terminate(Duration::from_secs(10))?;
        let policy = format!("--policy={}", cluster.policy_file().display());
        let flags = [flags, &[policy.as_str()]].concat();
        Self::start_at(cluster.plane(), door, cluster.agents_addresses(), &flags).await
    }

    /// Starts the replicas, and a door for kube-scheduler at `door`.
    async fn start_at(
        plane: &ControlPlane,
        door: SocketAddr,
        agents: &[SocketAddr],
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let door = Door::open(door).await.context("failed to listen for kube-scheduler")?;
        ensure!(agents.len() == 2, "agents dial at {agents:?}");
        let mut replicas = Vec::new();
        for (name, address) in ["one", "two"].into_iter().zip(agents) {
            replicas.push(Replica::start(plane, name, *address, flags).await?);
        }
        let leases = Api::namespaced(plane.client(), NAMESPACE);
        let ways = replicas.iter().map(|replica| (replica.name.clone(), replica.address)).collect();
        let following = tokio::spawn(follow(leases.clone(), ways, door.target())).abort_handle();
        let leaders = Self { replicas, leases, door, following };
        leaders.leads_but(None).await?;
        Ok(leaders)
    }

    /// Starts a simulated agent for each existing and each later GpuNode, which dials both replicas.
    #[must_use]
    pub fn simulate_agents(&self, plane: &ControlPlane, manner: Manner) -> SimulatedAgents {
        let addresses = self.replicas.iter().map(|replica| replica.agents_address.to_string()).collect();
        SimulatedAgents::start(&plane.client(), addresses, manner)
    }

    /// Starts a kube-scheduler that calls the one that leads, for the pods that name it.
    pub async fn start_scheduler(&self, plane: &mut ControlPlane, name: &str) -> anyhow::Result<()> {
        start_scheduler(plane, name, &self.address().to_string()).await
    }

    /// The address that kube-scheduler calls.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.door.address()
    }

    /// The index of the replica that holds the Lease.
    pub async fn leader(&self) -> anyhow::Result<Option<usize>> {
        let holder = holder(&self.leases).await?;
        Ok(self.replicas.iter().position(|replica| Some(&replica.name) == holder.as_ref()))
    }

    /// How often the Lease has changed hands.
    pub async fn transitions(&self) -> anyhow::Result<u32> {
        let spec = self.leases.get(LEASE).await?.spec.context("the Lease is empty")?;
        Ok(u32::try_from(spec.lease_transitions.unwrap_or_default())?)
    }

    /// Waits until a replica leads, another than this one.
    pub async fn leads_but(&self, before: Option<usize>) -> anyhow::Result<usize> {
        let mut leader = None;
        let led = wait(TIMEOUT, "a replica to lead", async || {
            leader = self.leader().await?.filter(|leader| Some(*leader) != before);
            Ok(leader.is_some())
        });
        led.await.with_context(|| self.log_tails())?;
        leader.context("no replica leads")
    }

    /// The ends of the replicas' logs.
    #[must_use]
    pub fn log_tails(&self) -> String {
        self.replicas.iter().map(Replica::log_tail).collect::<Vec<_>>().join("\n---\n")
    }

    pub fn stop(&mut self) -> anyhow::Result<()> {
        for replica in &mut self.replicas {
            replica.child.terminate(Duration::from_secs(10))?;
        }
        Ok(())
    }

    /// Injects a fault into the leader, and waits until another replica leads. Then it restarts a killed
    /// leader, or ends the fault after `lasts`.
    pub async fn strike(&mut self, blow: Blow, lasts: Duration) -> anyhow::Result<()> {
        let leader = self.leads_but(None).await?;
        match blow {
            Blow::Killed => self.replicas[leader].child.kill()?,
            Blow::Terminated => self.replicas[leader].child.signal(Signal::TERM)?,
            Blow::Frozen => self.replicas[leader].child.signal(Signal::STOP)?,
            Blow::CutOff => self.replicas[leader].link.set(Gate::Cut),
        }
        let began = std::time::Instant::now();
        self.leads_but(Some(leader)).await?;
        if matches!(blow, Blow::Killed | Blow::Terminated) {
            return Ok(self.replicas[leader].child.restart()?);
        }
        tokio::time::sleep(lasts.saturating_sub(began.elapsed())).await;
        match blow {
            Blow::Killed | Blow::Terminated => {}
            Blow::Frozen => self.replicas[leader].child.signal(Signal::CONT)?,
            Blow::CutOff => self.replicas[leader].link.set(Gate::Open),
        }
        Ok(())
    }
}

impl Drop for Leaders {
    fn drop(&mut self) {
        self.following.abort();
    }
}

async fn holder(leases: &Api<Lease>) -> Result<Option<String>, kube::Error> {
    Ok(leases.get_opt(LEASE).await?.and_then(|lease| lease.spec?.holder_identity))
}

async fn follow(
    leases: Api<Lease>,
    ways: Vec<(String, SocketAddr)>,
    target: tokio::sync::watch::Sender<Option<SocketAddr>>,
) {
    loop {
        if let Ok(holder) = holder(&leases).await {
            let way = ways.iter().find(|(name, _)| Some(name) == holder.as_ref());
            target.send_replace(way.map(|(_, address)| *address));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
