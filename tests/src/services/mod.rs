//! Services on this machine, in place of kube-proxy and the cluster's DNS.
//!
//! Every Service and every pod (`kubelet`) has an address in 127.0.0.0/8. The proxy listens on the Services'
//! addresses and forwards TCP connections to ready pods. A port that no pod serves refuses connections. Names
//! are in a hosts file. The proxy watches pods instead of `EndpointSlices`, because those do not allow
//! loopback addresses.

mod endpoints;
mod forward;
mod names;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt as _, reflector};
use kube::{Api, Client};
use tokio::task::JoinSet;

use endpoints::Endpoints;
pub use endpoints::may_serve;
use forward::{Connections, Forward};

/// A running proxy. Dropping it ends it and the connections through it.
#[derive(Debug)]
pub struct ServiceProxy {
    hosts: PathBuf,
    _tasks: JoinSet<()>,
}

impl ServiceProxy {
    /// Serves the Services of a cluster. Their names are written into the file `hosts` of `folder`.
    pub fn start(client: &Client, folder: &Path) -> anyhow::Result<Self> {
        Self::leading(client, folder, Endpoints::new())
    }

    /// Serves them, and forwards one Service without pods to a server: `kubernetes` to the API server.
    pub fn beside(
        client: &Client,
        folder: &Path,
        service: SocketAddr,
        server: SocketAddr,
    ) -> anyhow::Result<Self> {
        Self::leading(client, folder, [(service, [server].into())].into())
    }

    fn leading(client: &Client, folder: &Path, fixed: Endpoints) -> anyhow::Result<Self> {
        let hosts = folder.join("hosts");
        names::write(&hosts, &[]).with_context(|| format!("failed to write {}", hosts.display()))?;
        let (services, services_writer) = reflector::store();
        let (pods, pods_writer) = reflector::store();
        let changed = Arc::new(tokio::sync::Notify::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(follow::<Service>(Api::all(client.clone()), services_writer, Arc::clone(&changed)));
        tasks.spawn(follow::<Pod>(Api::all(client.clone()), pods_writer, Arc::clone(&changed)));
        let proxy = Proxy {
            services,
            pods,
            hosts: hosts.clone(),
            named: Vec::new(),
            fixed,
            ports: BTreeMap::new(),
            connections: Connections::default(),
        };
        tasks.spawn(proxy.run(changed));
        Ok(Self { hosts, _tasks: tasks })
    }

    /// The file of the Services' names, for `/etc/hosts`.
    #[must_use]
    pub fn hosts(&self) -> &Path {
        &self.hosts
    }
}

/// Keeps a store up to date, and notifies `changed`.
async fn follow<K>(api: Api<K>, writer: reflector::store::Writer<K>, changed: Arc<tokio::sync::Notify>)
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    // Managed fields are dropped, because they are large and nothing here reads them.
    let trimmed = watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(|object| object.meta_mut().managed_fields = None);
    let mut events = std::pin::pin!(reflector(writer, trimmed));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitApply(_) | Event::Init) => {}
            Ok(_) => changed.notify_one(),
            Err(error) => tracing::debug!(%error, "the stand-in for kube-proxy watches again"),
        }
    }
}

struct Proxy {
    services: reflector::Store<Service>,
    pods: reflector::Store<Pod>,
    hosts: PathBuf,
    /// The names in the hosts file.
    named: Vec<names::Named>,
    /// Targets of Services that select no pods.
    fixed: Endpoints,
    /// The ports with a listener.
    ports: BTreeMap<SocketAddr, Forward>,
    connections: Connections,
}

impl Proxy {
    async fn run(mut self, changed: Arc<tokio::sync::Notify>) {
        loop {
            changed.notified().await;
            self.adjust().await;
        }
    }

    async fn adjust(&mut self) {
        let (services, pods) = (self.services.state(), self.pods.state());
        let named = names::names(&services, &pods);
        if named != self.named {
            match names::write(&self.hosts, &named) {
                Ok(()) => self.named = named,
                Err(error) => tracing::warn!(%error, "the Services' names are not written"),
            }
        }
        let mut wanted = endpoints::endpoints(&services, &pods);
        // Without a listener the port refuses connections, as with kube-proxy.
        wanted.retain(|_, backends| !backends.is_empty());
        wanted.extend(self.fixed.clone());
        self.ports.retain(|address, _| wanted.contains_key(address));
        for (address, backends) in wanted {
            if let Some(forward) = self.ports.get(&address) {
                forward.lead_to(backends);
                continue;
            }
            match Forward::listen(address, backends, Connections::clone(&self.connections)).await {
                Ok(forward) => drop(self.ports.insert(address, forward)),
                // Ports below 1024 need privileges, and another control plane may use the address, so a
                // failure is only logged.
                Err(error) => tracing::warn!(%address, %error, "a Service is not served"),
            }
        }
    }
}
