//! Replicas of the extender as processes, each with a way of its own to the API server, and what can happen to their leader.

mod door;
mod link;
mod rounds;
mod scheduler;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use rustix::process::Signal;
use serde_json::json;
use tokio::task::AbortHandle;

use crate::binaries;
use crate::cluster::{NAMESPACE, wait};
use crate::control_plane::{ControlPlane, ports};
use crate::process::Child;
use door::Door;
pub use link::{Entered, Gate, Link};
pub use rounds::{Found, Rounds};
pub use scheduler::SchedulerClient;

const PATIENCE: Duration = Duration::from_mins(1);
const LEASE: &str = "kerf-extender";
/// How often the way to the leader is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A replica.
pub struct Replica {
    name: String,
    child: Child,
    link: Link,
    address: SocketAddr,
}

impl Replica {
    /// Starts a replica of this name, with these flags besides those that it needs.
    pub async fn start(plane: &ControlPlane, name: &str, flags: &[&str]) -> anyhow::Result<Self> {
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
            .args(["--admin-address", "127.0.0.1:0", "--tls-name", "127.0.0.1", "--identity", name])
            .args(["--log", "info,kerf_extender=debug", "--address", &address.to_string(), "--address-file"])
            .arg(&file)
            .args(flags)
            .spawn()?;
        let listening = wait(PATIENCE, "the replica to listen", async || Ok(file.exists())).await;
        listening.with_context(|| child.log_tail())?;
        Ok(Self { name: name.to_owned(), child, link, address })
    }

    /// Its name in the Lease.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it serves kube-scheduler.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its way to the API server.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Its process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The end of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.child.log_tail()
    }

    /// Waits until its log has this text, after its first `from` bytes.
    pub async fn logs(&self, text: &str, from: usize) -> anyhow::Result<()> {
        let path = self.child.log().to_owned();
        let found =
            async || Ok(std::fs::read_to_string(&path)?.get(from..).is_some_and(|log| log.contains(text)));
        wait(PATIENCE, &format!("{} to log {text:?}", self.name), found)
            .await
            .with_context(|| self.log_tail())
    }

    /// How long its log is now, in bytes.
    pub fn logged(&self) -> anyhow::Result<usize> {
        Ok(std::fs::read_to_string(self.child.log())?.len())
    }
}

/// No user: the way knows whom it speaks for.
fn write_kubeconfig(path: &Path, url: &str) -> anyhow::Result<()> {
    let document = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    std::fs::write(path, document.to_string()).with_context(|| format!("failed to write {}", path.display()))
}

/// What happens to a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// It is killed.
    Killed,
    /// It is stopped for a while, and goes on.
    Frozen,
    /// It reaches the API server no more for a while; what it has sent arrives late.
    CutOff,
}

impl Blow {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Killed, Self::Frozen, Self::CutOff];
}

/// Replicas, of which kube-scheduler calls the one that leads.
pub struct Leaders {
    /// The replicas.
    pub replicas: Vec<Replica>,
    leases: Api<Lease>,
    door: Door,
    following: AbortHandle,
}

impl Leaders {
    /// Starts two replicas, `one` and `two`, which kube-scheduler is to call at `door`; port 0 takes a free one.
    pub async fn start(plane: &ControlPlane, door: SocketAddr, flags: &[&str]) -> anyhow::Result<Self> {
        let door = Door::open(door).await.context("failed to listen for kube-scheduler")?;
        let replicas =
            vec![Replica::start(plane, "one", flags).await?, Replica::start(plane, "two", flags).await?];
        let leases = Api::namespaced(plane.client(), NAMESPACE);
        let ways = replicas.iter().map(|replica| (replica.name.clone(), replica.address)).collect();
        let following = tokio::spawn(follow(leases.clone(), ways, door.target())).abort_handle();
        let leaders = Self { replicas, leases, door, following };
        leaders.leads_but(None).await?;
        Ok(leaders)
    }

    /// Where kube-scheduler calls.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.door.address()
    }

    /// Which replica holds the Lease.
    pub async fn leader(&self) -> anyhow::Result<Option<usize>> {
        let holder = holder(&self.leases).await?;
        Ok(self.replicas.iter().position(|replica| Some(&replica.name) == holder.as_ref()))
    }

    /// Waits until a replica leads, another than this one.
    pub async fn leads_but(&self, before: Option<usize>) -> anyhow::Result<usize> {
        let mut leader = None;
        let led = wait(PATIENCE, "a replica to lead", async || {
            leader = self.leader().await?.filter(|leader| Some(*leader) != before);
            Ok(leader.is_some())
        });
        led.await.with_context(|| self.log_tails())?;
        leader.context("no replica leads")
    }

    /// What the replicas have logged last.
    #[must_use]
    pub fn log_tails(&self) -> String {
        self.replicas.iter().map(Replica::log_tail).collect::<Vec<_>>().join("\n---\n")
    }

    /// Does this to the leader, for this long where it lasts; then it is as before. Meanwhile another leads.
    pub async fn strike(&mut self, blow: Blow, lasts: Duration) -> anyhow::Result<()> {
        let leader = self.leads_but(None).await?;
        match blow {
            Blow::Killed => self.replicas[leader].child.kill()?,
            Blow::Frozen => self.replicas[leader].child.signal(Signal::STOP)?,
            Blow::CutOff => self.replicas[leader].link.set(Gate::Cut),
        }
        let began = std::time::Instant::now();
        self.leads_but(Some(leader)).await?;
        if blow == Blow::Killed {
            return Ok(self.replicas[leader].child.restart()?);
        }
        tokio::time::sleep(lasts.saturating_sub(began.elapsed())).await;
        match blow {
            Blow::Killed => {}
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
        tokio::time::sleep(LOOK).await;
    }
}
