//! A real control plane on this machine: etcd, kube-apiserver, kube-scheduler and kube-controller-manager as
//! child processes on loopback ports, in a folder of their own.
//!
//! It assembles a test's cluster, but has nothing of kerf: the caller starts the programs and applies the
//! documents under test. It never touches a cluster that it has not started.
//!
//! No kubelet runs here: a pod gets a node's name, but does not run unless a stand-in kubelet starts it.

mod access;
mod certificates;
mod definitions;
mod etcd;
mod folder;
mod jwt;
mod kubeconfig;
mod kubectl;
mod namespaces;
mod options;
pub mod ports;
mod programs;
mod readiness;
mod scheduler;
mod servers;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kube::Client;

pub use self::certificates::{Authority, KeyAndCertificate};
pub use self::kubeconfig::client;
pub use self::options::{ControlPlaneOptions, ServiceAddresses};
pub use self::programs::SERVICE_ACCOUNT_ISSUER;

use self::folder::Folder;
use self::kubeconfig::Credential;
use self::readiness::Probe;
use self::servers::Servers;
use crate::process::{Child, Program};

/// How often a start is tried if another process takes one of the chosen ports meanwhile.
const START_ATTEMPTS: u32 = 3;

/// A running control plane. A successful test calls [`ControlPlane::stop`]. Dropping it kills the programs,
/// schedulers first and etcd last, and keeps the folder with their logs.
pub struct ControlPlane {
    // Fields are dropped in this order: the programs must end before their folder is removed.
    servers: Servers,
    authority: Authority,
    url: String,
    admin: PathBuf,
    client: Client,
    controller_manager: bool,
    folder: Folder,
}

impl ControlPlane {
    /// Starts the programs and waits until all of them are ready. The error has the end of the failing
    /// program's log, and the folder is kept.
    pub async fn start(options: ControlPlaneOptions) -> anyhow::Result<Self> {
        for _ in 1..START_ATTEMPTS {
            match Self::try_start(&options).await {
                // No socket reserves the ports, so another process may take one before its program binds it.
                Err(error) if format!("{error:#}").contains("address already in use") => {
                    tracing::info!("a port was taken while the control plane started, trying others");
                }
                result => return result,
            }
        }
        Self::try_start(&options).await
    }

    async fn try_start(options: &ControlPlaneOptions) -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        let path = folder.path().to_path_buf();
        let started = Self::start_in(folder, options).await;
        started.with_context(|| format!("failed to start a control plane in {}", path.display()))
    }

    async fn start_in(folder: Folder, options: &ControlPlaneOptions) -> anyhow::Result<Self> {
        let [etcd_port, peer_port, apiserver_port] = ports::free()?;
        let url = format!("https://127.0.0.1:{apiserver_port}");
        let authority = Authority::new("kerf-tests")?;
        programs::write_pki(&folder, &authority, apiserver_port, options)?;
        let admin = authority.client("kerf-tests", Some("system:masters"))?;
        let admin = kubeconfig::write(&folder, "admin", &url, &authority, &Credential::Certificate(admin))?;
        let client = kubeconfig::client(&admin).await?;

        let mut servers = Servers::default();
        let etcd = programs::etcd(&folder, etcd_port, peer_port)?;
        servers.spawn(etcd, Probe::Connects(etcd_port))?;
        servers.ready().await?;
        let apiserver = programs::apiserver(&folder, etcd_port, apiserver_port, options)?;
        servers.spawn(apiserver, Probe::Answers(client.clone(), "/readyz"))?;
        servers.ready().await?;

        let controller_manager = options.controller_manager;
        let mut plane = Self { servers, authority, url, admin, client, controller_manager, folder };
        plane.start_controllers(options).await?;
        Ok(plane)
    }

    /// Starts the default scheduler and the controller manager side by side.
    async fn start_controllers(&mut self, options: &ControlPlaneOptions) -> anyhow::Result<()> {
        if options.controller_manager {
            self.spawn_controller_manager().await?;
        }
        if options.scheduler {
            self.spawn_scheduler(scheduler::DEFAULT, options.scheduler_configuration.as_deref()).await?;
        }
        self.servers.ready().await?;
        if options.controller_manager {
            self.wait_for_default_service_account("default").await?;
        }
        Ok(())
    }

    async fn spawn_controller_manager(&mut self) -> anyhow::Result<()> {
        let [port] = ports::free()?;
        let kubeconfig = self.kubeconfig_for("system:kube-controller-manager", None)?;
        let program = programs::controller_manager(&self.folder, port, &kubeconfig)?;
        let client = kubeconfig::client_to(&self.admin, &format!("https://127.0.0.1:{port}")).await?;
        self.servers.spawn(program, Probe::Answers(client, "/healthz"))
    }

    /// The base URL of kube-apiserver, `https://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The authority that signed every certificate here. It also signs those of webhooks and extenders under
    /// test.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The authority's certificate, as PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// The folder of this control plane. [`ControlPlane::stop`] removes it unless `KERF_KEEP` is set.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// A program that logs into this control plane's folder. The caller completes and spawns it.
    pub fn program(&self, name: &str, path: impl Into<PathBuf>) -> Program {
        Program::new(name, path, &self.folder.logs())
    }

    /// A program of the control plane, to signal or kill it: `etcd`, `kube-apiserver`,
    /// `kube-controller-manager`, or a scheduler's name (the default one's is `kube-scheduler`).
    pub fn child(&mut self, name: &str) -> anyhow::Result<&mut Child> {
        self.servers.child(name)
    }

    /// The text of a program's `/metrics`, by its name as in [`ControlPlane::child`].
    pub async fn metrics(&mut self, name: &str) -> anyhow::Result<String> {
        self.servers.get(name, "/metrics").await
    }

    /// Kills a program if it runs, starts it again and waits until it is ready.
    pub async fn restart(&mut self, name: &str) -> anyhow::Result<()> {
        self.servers.restart(name).await
    }

    /// Ends all programs in order, with some time for each to exit by itself, and removes the folder.
    pub async fn stop(self) -> anyhow::Result<()> {
        let Self { servers, folder, .. } = self;
        // Waiting for processes to exit would block a thread of the runtime.
        let stopped = tokio::task::spawn_blocking(|| servers.terminate()).await;
        stopped.context("failed to stop the control plane")??;
        folder.remove();
        Ok(())
    }
}
