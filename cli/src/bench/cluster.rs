//! The cluster as a run uses it. The objects that a run creates carry its label, so that all of them can be deleted at
//! the end.

use super::args::RunArgs;
use super::objects;
use super::plan::Node;
use super::subject::Subject;
use crate::failure::NotFound;
use anyhow::Context as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kerf_core::inventory::NodeInventory;
use kerf_runtime::gpu_node::GpuNode;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use std::fmt::Debug;
use std::time::Duration;
use tokio::time::Instant;

pub const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The timeout for pods to go and for their slices of a GPU to become idle.
const LEAVE_TIMEOUT: Duration = Duration::from_mins(3);

/// The time in which the webhook's watch shows that a GPU is free. A pod that is created earlier could get the next
/// kind of its class, because the webhook would still count the GPU as taken.
const WATCH_DELAY: Duration = Duration::from_secs(1);

pub struct Cluster {
    client: Client,
    namespace: String,
    /// The value of the label that all objects of this run carry. It is unique by start time and process.
    pub run: String,
}

impl Cluster {
    pub async fn connect(args: &RunArgs) -> anyhow::Result<Self> {
        let client = args.connection.client().await?;
        let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string().to_lowercase();
        Ok(Self { client, namespace, run: format!("{now}-{}", std::process::id()) })
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn pod(&self, name: &str) -> anyhow::Result<Pod> {
        let found = self.pods().get_opt(name).await.with_context(|| format!("failed to read pod {name}"))?;
        let what = || format!("there is no pod {name} in namespace {}", self.namespace);
        Ok(found.ok_or_else(|| NotFound::new(what(), "-n names another namespace"))?)
    }

    pub fn pods(&self) -> Api<Pod> {
        self.api()
    }

    /// The managed nodes. A node whose GpuNode cannot be parsed is skipped, with a line on standard error, because
    /// other nodes may still be measured.
    pub async fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let found = Api::<GpuNode>::all(self.client.clone()).list(&ListParams::default()).await;
        let found = found.context("failed to list GpuNodes; is kerf installed, and may you read them?")?;
        let read = |node: GpuNode| {
            let name = node.name().to_string();
            let read = || anyhow::Ok((node.read_desired()?, node.read_status()?.unwrap_or_default()));
            match read() {
                Ok((spec, status)) => Some(Node { name, spec, status }),
                Err(error) => {
                    eprintln!("GpuNode {name} is left out: {error:#}");
                    None
                }
            }
        };
        Ok(found.items.into_iter().filter_map(read).collect())
    }

    /// Waits until no pod or process holds anything of a GPU, because only then can the GPU change its kind.
    pub async fn until_free(&self, uuid: &str) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut waited = false;
        loop {
            let nodes = self.nodes().await?;
            let gpus = nodes.iter().flat_map(|node| NodeInventory::from_spec(&node.spec, &node.status).gpus);
            let taken = gpus.filter(|gpu| gpu.uuid.as_str() == uuid).any(|gpu| gpu.taken().next().is_some());
            if !taken {
                // A GPU that was free at once needs no pause, because the webhook has seen it by now.
                if waited {
                    tokio::time::sleep(WATCH_DELAY).await;
                }
                return Ok(());
            }
            waited = true;
            anyhow::ensure!(
                begun.elapsed() < LEAVE_TIMEOUT,
                "{uuid} is not free after {LEAVE_TIMEOUT:?}; kubectl get gpunodes -o yaml shows whose its slices are"
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    pub async fn bring_files(&self, subject: &Subject) -> anyhow::Result<()> {
        if !subject.files {
            return Ok(());
        }
        create(&self.api::<ConfigMap>(), &objects::config_map(&self.run), "configmap").await
    }

    pub async fn deploy(&self, deployment: &Deployment) -> anyhow::Result<()> {
        create(&self.api::<Deployment>(), deployment, "deployment").await
    }

    /// Why a Deployment's pods cannot be created, such as a webhook's denial.
    pub async fn refusal(&self, name: &str) -> Result<Option<String>, kube::Error> {
        let conditions = self.api::<Deployment>().get_status(name).await?.status.and_then(|s| s.conditions);
        let failure = conditions
            .unwrap_or_default()
            .into_iter()
            .find(|c| c.type_ == "ReplicaFailure" && c.status == "True");
        Ok(failure.map(|condition| condition.message.unwrap_or_default()))
    }

    pub async fn pods_of(&self, name: &str) -> Result<Vec<Pod>, kube::Error> {
        let mine = ListParams::default().labels(&objects::pods_of(&self.run, name));
        Ok(self.pods().list(&mine).await?.items)
    }

    pub async fn events(&self, pod: &str) -> Vec<Event> {
        let about =
            ListParams::default().fields(&format!("involvedObject.kind=Pod,involvedObject.name={pod}"));
        // Events only explain another error, so a failure to read them is not reported.
        self.api::<Event>().list(&about).await.map(|events| events.items).unwrap_or_default()
    }

    /// Deletes the run's Deployments, and returns once their pods are gone, because pods that are left would falsify
    /// the next point.
    pub async fn remove_deployments(&self) -> anyhow::Result<()> {
        let mine = ListParams::default().labels(&objects::selector(&self.run));
        self.api::<Deployment>()
            .delete_collection(&DeleteParams::background(), &mine)
            .await
            .with_context(|| self.leftovers())?;
        let begun = Instant::now();
        while !self.pods().list(&mine).await.with_context(|| self.leftovers())?.items.is_empty() {
            anyhow::ensure!(
                begun.elapsed() < LEAVE_TIMEOUT,
                "pods are left after {LEAVE_TIMEOUT:?}; {}",
                self.leftovers()
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    pub async fn remove(&self) -> anyhow::Result<()> {
        self.remove_deployments().await?;
        let mine = ListParams::default().labels(&objects::selector(&self.run));
        let removed = self.api::<ConfigMap>().delete_collection(&DeleteParams::default(), &mine).await;
        removed.map(drop).with_context(|| self.leftovers())
    }

    fn leftovers(&self) -> String {
        format!(
            "failed to remove what the run has made: kubectl -n {} delete deployments,configmaps -l {}",
            self.namespace,
            objects::selector(&self.run)
        )
    }
}

async fn create<K>(api: &Api<K>, object: &K, kind: &str) -> anyhow::Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let name = object.meta().name.clone().unwrap_or_default();
    match api.create(&PostParams::default(), object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => anyhow::bail!(
            "there is a {kind} {name} already: another run, or what one left that was killed; wait for it, or kubectl delete {kind} {name}"
        ),
        Err(error) => Err(error).with_context(|| format!("failed to create {kind} {name}")),
    }
}
