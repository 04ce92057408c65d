//! What is recorded of a pod: from the API server, or from a file.

use crate::plugin_nodes::{self, PluginNode};
use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A pod and what is recorded beside it.
#[derive(Debug)]
pub struct Records {
    /// The pod.
    pub pod: Pod,
    /// Events about it, or why they are not known. Who may see a pod need not see all that is recorded of it.
    pub events: Result<Vec<Event>, String>,
    /// The nodes on which something may be promised to it, or why they are not known.
    pub nodes: Result<Vec<GpuNode>, String>,
    /// The nodes that NVIDIA's device plugin serves, by name, or why they are not known. For a pod that is bound nobody has asked.
    pub static_nodes: Result<BTreeMap<String, PluginNode>, String>,
    /// Why it is not known on which of these MIG devices are getting other names.
    pub renames_unknown: Option<String>,
}

impl Records {
    /// Asks the API server.
    pub async fn fetch(client: Client, namespace: &str, name: &str) -> anyhow::Result<Self> {
        let pod = Api::<Pod>::namespaced(client.clone(), namespace).get_opt(name).await?;
        let pod = pod
            .with_context(|| format!("there is no pod {name} in namespace {namespace}; -n names another"))?;
        let about =
            ListParams::default().fields(&format!("involvedObject.kind=Pod,involvedObject.name={name}"));
        let events = Api::<Event>::namespaced(client.clone(), namespace).list(&about).await;
        let nodes = Api::<GpuNode>::all(client.clone()).list(&ListParams::default()).await;
        let (events, nodes) = (events.map(|list| list.items), nodes.map(|list| list.items).map_err(why));
        // They matter to a pod that waits: the list of all pods is long.
        let static_nodes = match &nodes {
            _ if is_bound(&pod) => Ok(BTreeMap::new()),
            Ok(nodes) => static_nodes(&client, nodes).await.map_err(why),
            Err(_) => Err("only GpuNodes tell which they are".to_owned()),
        };
        let mut records = Self { static_nodes, ..Self::of(pod, events.map_err(why), nodes) };
        let unknown = records.close_renamed(&client).await.err();
        records.renames_unknown =
            unknown.map(|error| error.downcast().map_or_else(|other| other.to_string(), why));
        Ok(records)
    }

    async fn close_renamed(&mut self, client: &Client) -> anyhow::Result<()> {
        let Some(nodes) = self.static_nodes.as_mut().ok().filter(|nodes| !nodes.is_empty()) else {
            return Ok(());
        };
        let now = u64::try_from(Timestamp::now().as_second())?;
        if let Some(policy) = plugin_nodes::cluster_policy(client).await? {
            plugin_nodes::close_renamed(nodes, &policy, now);
        }
        Ok(())
    }

    /// Reads a file of YAML documents or one JSON object; a List is what it has.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
            .with_context(|| format!("failed to parse {}", path.display()))?;
        let objects = documents.into_iter().flat_map(|mut document| match document["items"].take() {
            Value::Array(items) => items,
            _ => vec![document],
        });
        let (mut pod, mut events, mut nodes) = (None, Vec::new(), Vec::new());
        for object in objects {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            let parsed = match kind.as_str() {
                "Pod" if pod.is_some() => bail!("{}: there are two Pods; leave one", path.display()),
                "Pod" => serde_json::from_value(object).map(|found| pod = Some(found)),
                "Event" => serde_json::from_value(object).map(|event| events.push(event)),
                "GpuNode" => serde_json::from_value(object).map(|node| nodes.push(node)),
                _ => bail!(
                    "{}: kind {kind:?} is no record of a pod's; write Pod, Event or GpuNode",
                    path.display()
                ),
            };
            parsed.with_context(|| format!("{}: a {kind} cannot be read", path.display()))?;
        }
        let pod = pod.with_context(|| format!("{}: there is no Pod in it", path.display()))?;
        Ok(Self::of(pod, Ok(events), Ok(nodes)))
    }

    /// Only what is about this pod, and not about a namesake.
    fn of(pod: Pod, mut events: Result<Vec<Event>, String>, nodes: Result<Vec<GpuNode>, String>) -> Self {
        let (name, uid) = (pod.metadata.name.clone(), pod.metadata.uid.clone());
        if let Ok(events) = &mut events {
            events.retain(|event| {
                let about = &event.involved_object;
                about.name == name && (about.uid.is_none() || uid.is_none() || about.uid == uid)
            });
        }
        Self { pod, events, nodes, static_nodes: Ok(BTreeMap::new()), renames_unknown: None }
    }
}

/// Why something is not known, in a line.
fn why(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.trim().to_owned(),
        error => error.to_string(),
    }
}

/// Whether the pod has its node.
pub fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

/// Who may see a pod need not see all Nodes and all pods.
async fn static_nodes(client: &Client, managed: &[GpuNode]) -> kube::Result<BTreeMap<String, PluginNode>> {
    let machines = Api::<Machine>::all(client.clone()).list(&ListParams::default()).await?.items;
    let is_managed = |machine: &Machine| managed.iter().any(|node| node.name() == machine.name());
    plugin_nodes::read(client, machines.iter().filter(|machine| !is_managed(machine))).await
}
