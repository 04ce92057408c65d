//! A control plane, the webhook's replicas and the proxy in front of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{AdmissionProxy, Load};
use crate::binaries;
use crate::cluster::{NAMESPACE, root, wait};
use crate::control_plane::{ControlPlane, ControlPlaneOptions, ports};
use crate::process::Child;

const NAME: &str = "kerf-webhook";
const CONFIGURATION: &str = "kerf";
const SECRET: &str = "kerf-webhook-tls";
/// How long a replica may take to become ready, or to exit.
const TIMEOUT: Duration = Duration::from_mins(1);

pub struct Replica {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
}

pub struct AdmissionScene {
    plane: ControlPlane,
    proxy: AdmissionProxy,
    replicas: Vec<Replica>,
    kubeconfig: PathBuf,
}

impl AdmissionScene {
    /// Starts a control plane with kerf's objects, without a replica.
    pub async fn start() -> anyhow::Result<Self> {
        let options = ControlPlaneOptions {
            scheduler: false,
            // The API server's queues would dominate the measurement.
            priority_and_fairness: false,
            ..ControlPlaneOptions::without_controller_manager()
        };
        let plane = ControlPlane::start(options).await?;
        let manifests = root().join("deploy/local").display().to_string();
        plane.kubectl(&["apply", "--server-side", "-k", &manifests]).await?;
        plane.definitions_established().await?;
        let kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, NAME).await?;
        let proxy = AdmissionProxy::start().await?;
        let scene = Self { plane, proxy, replicas: Vec::new(), kubeconfig };
        scene.call(scene.proxy.address()).await?;
        Ok(scene)
    }

    /// Starts another replica with these flags behind the proxy, and waits until it is ready.
    pub async fn add_replica(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        // The ports are fixed, so that a restarted replica has the same addresses.
        let [port, admin] = ports::free()?;
        let (address, admin) =
            (SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([127, 0, 0, 1], admin)));
        let name = format!("{NAME}-{}", self.replicas.len());
        let reported = flags.iter().any(|flag| flag.starts_with("--policy="));
        let shipped = format!("--policy={}", root().join("policies/default.yaml").display());
        let program = self
            .plane
            .program(&name, binaries::ours(NAME)?)
            .arg(format!("--address={address}"))
            .arg(format!("--admin-address={admin}"))
            .args((!reported).then_some(shipped))
            .arg("--tls-name=127.0.0.1")
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .args(flags);
        let replica = Replica { child: program.spawn()?, address, admin };
        self.proxy.add(address, admin);
        self.replicas.push(replica);
        self.is_ready(self.replicas.len() - 1).await
    }

    async fn is_ready(&self, number: usize) -> anyhow::Result<()> {
        let replica = self.replicas.get(number).context("there is no such replica")?;
        let ready = async || Ok(self.proxy.ready().contains(&replica.address));
        let waited = wait(TIMEOUT, &format!("replica {number} to be ready"), ready).await;
        waited.with_context(|| replica.child.log_tail())
    }

    /// Terminates a replica as Kubernetes does, and starts it again.
    pub async fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        self.end(number)?;
        let replica = self.replicas.get_mut(number).context("there is no such replica")?;
        replica.child.restart()?;
        self.is_ready(number).await
    }

    /// Terminates a replica as Kubernetes does, and fails if it does not exit by itself.
    pub fn end(&mut self, number: usize) -> anyhow::Result<()> {
        let replica = self.replicas.get_mut(number).context("there is no such replica")?;
        // Blocking here is announced to the runtime, because the proxy's tasks run on it too.
        let ended = tokio::task::block_in_place(|| replica.child.terminate(TIMEOUT))?;
        ensure!(ended, "replica {number} did not end by itself: {}", replica.child.log_tail());
        Ok(())
    }

    /// Ends all replicas, and deletes the Secret with their certificates, so that the next replica creates
    /// it.
    pub async fn begin_anew(&mut self) -> anyhow::Result<()> {
        for number in 0..self.replicas.len() {
            self.end(number)?;
        }
        self.replicas.clear();
        self.proxy = AdmissionProxy::start().await?;
        self.call(self.proxy.address()).await?;
        Api::<Secret>::namespaced(self.plane.client(), NAMESPACE)
            .delete(SECRET, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Makes the API server call the webhook at `address`.
    pub async fn call(&self, address: SocketAddr) -> anyhow::Result<()> {
        self.configure(json!({"service": null, "url": format!("https://{address}/mutate")})).await
    }

    /// Makes the API server trust these authorities (PEM), as cert-manager's ca-injector does.
    pub async fn trust(&self, authorities: &[&str]) -> anyhow::Result<()> {
        self.configure(json!({"caBundle": STANDARD.encode(authorities.concat())})).await
    }

    /// Writes into the `clientConfig` of every webhook.
    async fn configure(&self, client: Value) -> anyhow::Result<()> {
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.plane.client());
        let found = api.get(CONFIGURATION).await?;
        let webhooks = found.webhooks.unwrap_or_default();
        let webhooks: Vec<_> =
            webhooks.iter().map(|w| json!({"name": w.name, "clientConfig": client})).collect();
        // A strategic merge matches webhooks by name, so that their other fields stay.
        let patch = Patch::Strategic(json!({"webhooks": webhooks}));
        api.patch(CONFIGURATION, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The authorities of the configuration's `caBundle`, as PEM. It reads the first webhook, and fails if
    /// the others differ.
    pub async fn trusted(&self) -> anyhow::Result<Vec<String>> {
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.plane.client());
        let webhooks = api.get(CONFIGURATION).await?.webhooks.unwrap_or_default();
        let bundles: Vec<_> = webhooks.into_iter().map(|w| w.client_config.ca_bundle).collect();
        ensure!(bundles.windows(2).all(|pair| pair[0] == pair[1]), "the webhooks' caBundles differ");
        let first = bundles.into_iter().next().flatten().map(|bundle| bundle.0).unwrap_or_default();
        Ok(certificates(&String::from_utf8(first)?))
    }

    /// The server's certificate in the Secret, as PEM.
    pub async fn leaf(&self) -> anyhow::Result<String> {
        let secret = Api::<Secret>::namespaced(self.plane.client(), NAMESPACE).get(SECRET).await?;
        let leaf = secret.data.and_then(|mut data| data.remove("tls.crt")).context("there is no tls.crt")?;
        Ok(String::from_utf8(leaf.0)?)
    }

    #[must_use]
    pub fn load(&self, rate: u32) -> Load {
        Load { pods: Api::<Pod>::default_namespaced(self.plane.client()), rate }
    }

    #[must_use]
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    #[must_use]
    pub fn ready(&self) -> Vec<SocketAddr> {
        self.proxy.ready()
    }

    #[must_use]
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    #[must_use]
    pub fn proxy(&self) -> SocketAddr {
        self.proxy.address()
    }

    /// Ends the replicas before the control plane, because they call its API server.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        for number in 0..self.replicas.len() {
            self.end(number)?;
        }
        self.plane.stop().await
    }
}

impl Replica {
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address of the admin server, with readiness and metrics.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> std::io::Result<String> {
        std::fs::read_to_string(self.child.log())
    }
}

fn certificates(bundle: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    bundle.split_inclusive(END).filter(|block| block.ends_with(END)).map(|b| b.trim().to_owned()).collect()
}
