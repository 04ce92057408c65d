//! The cluster as a run uses it: its `GpuNodes`, and objects that carry the run's label and go with it.

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

/// How often the cluster is asked how things are.
pub const POLL: Duration = Duration::from_millis(500);

/// How long pods, and what they had of a GPU, may take to go.
const LEAVE_WITHIN: Duration = Duration::from_mins(3);

/// How long the webhook may take to see that a GPU is free: else it would choose the next kind of the class.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// A cluster, one namespace of it, and a run.
pub struct Cluster {
    client: Client,
    namespace: String,
    /// The run's name, in labels.
    pub run: String,
}

impl Cluster {
    /// Connects.
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

    /// A pod of the namespace by its name.
    pub async fn pod(&self, name: &str) -> anyhow::Result<Pod> {
        let found = self.pods().get_opt(name).await.with_context(|| format!("failed to read pod {name}"))?;
        let what = || format!("there is no pod {name} in namespace {}", self.namespace);
        Ok(found.ok_or_else(|| NotFound::new(what(), "-n names another namespace"))?)
    }

    /// Pods of the namespace.
    pub fn pods(&self) -> Api<Pod> {
        self.api()
    }

    /// The nodes that kerf knows. One whose documents cannot be read is left out, and that is told.
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

    /// Waits until nobody has anything of a GPU, so that it can change its kind.
    pub async fn until_free(&self, uuid: &str) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut waited = false;
        loop {
            let nodes = self.nodes().await?;
            let gpus = nodes.iter().flat_map(|node| NodeInventory::of(&node.spec, &node.status).gpus);
            let taken = gpus.filter(|gpu| gpu.uuid.as_str() == uuid).any(|gpu| gpu.taken().next().is_some());
            if !taken {
                if waited {
                    tokio::time::sleep(SEEN_WITHIN).await;
                }
                return Ok(());
            }
            waited = true;
            anyhow::ensure!(
                begun.elapsed() < LEAVE_WITHIN,
                "{uuid} is not free after {LEAVE_WITHIN:?}; kubectl get gpunodes -o yaml shows whose its slices are"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Brings the client's files, where the subject needs them.
    pub async fn bring_files(&self, subject: &Subject) -> anyhow::Result<()> {
        if !subject.files {
            return Ok(());
        }
        create(&self.api::<ConfigMap>(), &objects::config_map(&self.run), "configmap").await
    }

    /// Makes a Deployment.
    pub async fn deploy(&self, deployment: &Deployment) -> anyhow::Result<()> {
        create(&self.api::<Deployment>(), deployment, "deployment").await
    }

    /// What is in the way of a Deployment's pods before they exist, such as a webhook's refusal.
    pub async fn refusal(&self, name: &str) -> Result<Option<String>, kube::Error> {
        let conditions = self.api::<Deployment>().get_status(name).await?.status.and_then(|s| s.conditions);
        let failure = conditions
            .unwrap_or_default()
            .into_iter()
            .find(|c| c.type_ == "ReplicaFailure" && c.status == "True");
        Ok(failure.map(|condition| condition.message.unwrap_or_default()))
    }

    /// The pods of a Deployment of this run, those that go included.
    pub async fn pods_of(&self, name: &str) -> Result<Vec<Pod>, kube::Error> {
        let mine = ListParams::default().labels(&objects::pods_of(&self.run, name));
        Ok(self.pods().list(&mine).await?.items)
    }

    /// What was told of a pod.
    pub async fn events(&self, pod: &str) -> Vec<Event> {
        let about =
            ListParams::default().fields(&format!("involvedObject.kind=Pod,involvedObject.name={pod}"));
        // They explain an error: that they cannot be had is none of its own.
        self.api::<Event>().list(&about).await.map(|events| events.items).unwrap_or_default()
    }

    /// Removes the run's Deployments, and waits until their pods are gone.
    pub async fn remove_deployments(&self) -> anyhow::Result<()> {
        let mine = ListParams::default().labels(&objects::selector(&self.run));
        self.api::<Deployment>()
            .delete_collection(&DeleteParams::background(), &mine)
            .await
            .with_context(|| self.leftovers())?;
        let begun = Instant::now();
        while !self.pods().list(&mine).await.with_context(|| self.leftovers())?.items.is_empty() {
            anyhow::ensure!(
                begun.elapsed() < LEAVE_WITHIN,
                "pods are left after {LEAVE_WITHIN:?}; {}",
                self.leftovers()
            );
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Removes all that the run has made.
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
