//! The records of pods, from the API server or from a file.

use crate::failure::NotFound;
use crate::input::{self, InputError};
use crate::placement::Nodes;
use crate::plugin_nodes::{self, PluginNode};
use anyhow::Context;
use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::keys;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const AT_ONCE: usize = 8;

#[derive(Debug)]
pub struct Records {
    pub pods: Vec<Recorded>,
    /// The `GpuNodes`, which may have reservations for the pods; or why they could not be read.
    pub nodes: Result<Vec<GpuNode>, String>,
    /// The static nodes by name, or why they could not be read. Empty if all pods are bound.
    pub static_nodes: Result<BTreeMap<String, PluginNode>, String>,
    /// The Nodes, whose labels and taints keep pods away, or why they could not be read. Empty if all pods are bound.
    pub machines: Result<Vec<Machine>, String>,
    pub renames_unknown: Option<String>,
}

#[derive(Debug)]
pub struct Recorded {
    pub pod: Pod,
    /// The pod's Events, or why they could not be read. A failure is kept, because a user may have the right to read
    /// pods only.
    pub events: Result<Vec<Event>, String>,
}

#[derive(Debug)]
pub enum Wanted {
    Named { namespace: String, names: Vec<String> },
    Selected { namespace: Option<String>, selector: Option<String> },
}

impl Records {
    pub async fn fetch(client: Client, wanted: Wanted) -> anyhow::Result<Self> {
        let pods = pods(&client, wanted).await?;
        let pods = stream::iter(pods).map(|pod| Recorded::fetch(&client, pod)).buffered(AT_ONCE);
        let pods: Vec<Recorded> = pods.collect().await;
        let nodes = Api::<GpuNode>::all(client.clone()).list(&ListParams::default()).await;
        let nodes = nodes.map(|list| list.items).map_err(why);
        // Only pending pods need the Nodes and all pods, and both lists are long.
        let is_pending = pods.iter().any(|it| !is_bound(&it.pod));
        let machines = if is_pending { machines(&client).await.map_err(why) } else { Ok(Vec::new()) };
        let static_nodes = match (&nodes, &machines) {
            (Ok(nodes), Ok(machines)) => static_nodes(&client, nodes, machines).await.map_err(why),
            (Ok(_), Err(why)) => Err(why.clone()),
            (Err(_), _) => Err("only GpuNodes show which they are".to_owned()),
        };
        let mut records = Self { pods, nodes, static_nodes, machines, renames_unknown: None };
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

    pub fn nodes_for_pods(&self) -> Nodes {
        let nodes = Nodes::from_objects(self.nodes.as_deref().unwrap_or_default());
        let nodes = nodes.with_static(self.static_nodes.iter().flatten());
        nodes.with_machines(self.machines.iter().flatten().cloned())
    }

    /// Reads the records from a file of YAML documents or one JSON object. A List counts as its items.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let place = input::place(path);
        let objects =
            input::documents(path)?.into_iter().flat_map(|mut document| match document["items"].take() {
                Value::Array(items) => items,
                _ => vec![document],
            });
        let (mut pods, mut events, mut nodes) = (Vec::<Pod>::new(), Vec::<Event>::new(), Vec::new());
        let mut machines = Vec::<Machine>::new();
        for object in objects {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            let parsed = match kind.as_str() {
                "Pod" => serde_json::from_value(object).map(|pod| pods.push(pod)),
                "Event" => serde_json::from_value(object).map(|event| events.push(event)),
                "GpuNode" => serde_json::from_value(object).map(|node| nodes.push(node)),
                "Node" => serde_json::from_value(object).map(|machine| machines.push(machine)),
                _ => {
                    let what =
                        format!("kind {kind:?} is no record of a pod's; write Pod, Event, GpuNode or Node");
                    return Err(InputError::Bad(format!("{place}: {what}")));
                }
            };
            parsed.map_err(|error| InputError::Bad(format!("{place}: a {kind} cannot be read: {error}")))?;
        }
        if pods.is_empty() {
            return Err(InputError::Bad(format!("{place}: there is no Pod in it")));
        }
        let pods = pods.into_iter().map(|pod| Recorded::new(pod, Ok(events.clone()))).collect();
        let (nodes, static_nodes, machines) = (Ok(nodes), Ok(BTreeMap::new()), Ok(machines));
        Ok(Self { pods, nodes, static_nodes, machines, renames_unknown: None })
    }
}

impl Recorded {
    async fn fetch(client: &Client, pod: Pod) -> Self {
        let name = pod.name_any();
        let about =
            ListParams::default().fields(&format!("involvedObject.kind=Pod,involvedObject.name={name}"));
        let namespace = pod.namespace().unwrap_or_default();
        let events = Api::<Event>::namespaced(client.clone(), &namespace).list(&about).await;
        Self::new(pod, events.map(|list| list.items).map_err(why))
    }

    /// Keeps only the Events of this pod. Those of an earlier pod with the same name would be misleading.
    fn new(pod: Pod, mut events: Result<Vec<Event>, String>) -> Self {
        let ObjectMeta { name, namespace, uid, .. } = &pod.metadata;
        if let Ok(events) = &mut events {
            events.retain(|event| {
                let about = &event.involved_object;
                // An absent field matches everything, because a record in a file may lack it.
                let same = |a: &Option<String>, b: &Option<String>| a.is_none() || b.is_none() || a == b;
                about.name == *name && same(&about.namespace, namespace) && same(&about.uid, uid)
            });
        }
        Self { pod, events }
    }
}

async fn pods(client: &Client, wanted: Wanted) -> anyhow::Result<Vec<Pod>> {
    let (namespace, selector) = match wanted {
        Wanted::Named { namespace, names } => {
            let api = Api::<Pod>::namespaced(client.clone(), &namespace);
            let mut pods = Vec::new();
            for name in names {
                let what = || format!("there is no pod {name} in namespace {namespace}");
                let pod = api.get_opt(&name).await.with_context(|| format!("failed to read pod {name}"))?;
                pods.push(pod.ok_or_else(|| NotFound::new(what(), "-n names another namespace"))?);
            }
            return Ok(pods);
        }
        Wanted::Selected { namespace, selector } => (namespace, selector),
    };
    let api = match &namespace {
        Some(namespace) => Api::<Pod>::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    // Without labels the list would have every pod of the cluster, so only those that kerf has admitted are kept.
    let is_selected = selector.is_some();
    let params = ListParams { label_selector: selector, ..ListParams::default() };
    let mut pods = api.list(&params).await.context("failed to list pods")?.items;
    pods.retain(|pod| is_selected || pod.annotations().contains_key(keys::REQUEST));
    if pods.is_empty() {
        let place = namespace.map_or_else(|| "any namespace".to_owned(), |name| format!("namespace {name}"));
        let which = if is_selected { "has these labels" } else { "was admitted by kerf" };
        return Err(NotFound::new(format!("no pod of {place} {which}"), "-A looks in all namespaces").into());
    }
    Ok(pods)
}

fn why(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.trim().to_owned(),
        error => error.to_string(),
    }
}

pub fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

/// The Nodes. A failure is no error of the command, because a user who may read a pod may lack the right to list all
/// Nodes.
async fn machines(client: &Client) -> kube::Result<Vec<Machine>> {
    Ok(Api::<Machine>::all(client.clone()).list(&ListParams::default()).await?.items)
}

async fn static_nodes(
    client: &Client,
    managed: &[GpuNode],
    machines: &[Machine],
) -> kube::Result<BTreeMap<String, PluginNode>> {
    let is_managed = |machine: &Machine| managed.iter().any(|node| node.name() == machine.name());
    plugin_nodes::read(client, machines.iter().filter(|machine| !is_managed(machine))).await
}
