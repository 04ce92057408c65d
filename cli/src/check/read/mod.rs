//! Reads everything that is checked from the API server. It judges nothing, so that the judgement can be tested without
//! one.

mod gpu_managers;
mod probe;
mod rights;

use super::observed::{Observed, Seen};
use crate::connection::Connected;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ResourceQuota, Secret, Service};
use kerf_runtime::cluster_policy;
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;
use tokio::time::sleep;

const APIS: [&str; 4] = [
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "coordination.k8s.io/v1",
    "events.k8s.io/v1",
];

/// The page size of lists. A page of Nodes is a few MB.
const PAGE: u32 = 500;

/// Reads a cluster: with `pre` what matters before the installation, otherwise everything of kerf.
pub async fn read(connected: Connected, namespace: &str, pre: bool) -> Observed {
    let Connected { client, url, version, now, skew } = connected;
    let mut seen =
        Observed { namespace: namespace.to_owned(), url, version, now, skew, ..Observed::default() };
    let nodes = Api::<Node>::all(client.clone());
    (seen.apis, seen.nodes, seen.device_classes, seen.other_managers) =
        tokio::join!(apis(&client), list(&nodes), device_classes(&client), gpu_managers::read(&client));
    if pre {
        seen.rights = rights::for_installer(&client, namespace).await;
        seen.crd = crd(&client).await;
        seen.cluster_policy = cluster_policy(&client).await;
    } else {
        installed(&client, &mut seen).await;
        Box::pin(programs(&client, &mut seen)).await;
    }
    seen
}

async fn installed(client: &Client, seen: &mut Observed) {
    let namespace = seen.namespace.clone();
    (seen.crd, seen.guards, seen.guards_bound, seen.webhook, seen.config_maps, seen.deployments) = tokio::join!(
        crd(client),
        guards(client),
        guards_bound(client),
        get(Api::<MutatingWebhookConfiguration>::all(client.clone()), "kerf"),
        async { list(&Api::<ConfigMap>::namespaced(client.clone(), &namespace)).await },
        async { list(&Api::<Deployment>::namespaced(client.clone(), &namespace)).await },
    );
    // The Deployments are read first, because they have the names of the Secrets.
    for name in super::judge::secrets(seen) {
        let secret = get(Api::<Secret>::namespaced(client.clone(), &namespace), &name).await;
        seen.secrets.insert(name, secret);
    }
    seen.rights = rights::for_programs(client, seen).await;
}

async fn programs(client: &Client, seen: &mut Observed) {
    let namespace = seen.namespace.clone();
    let leases = Api::<Lease>::namespaced(client.clone(), &namespace);
    (
        seen.pods,
        seen.gpu_nodes,
        seen.node_leases,
        seen.lease,
        seen.extender_service,
        seen.main_schedulers,
        seen.resource_quotas,
        seen.probe,
    ) = tokio::join!(
        async { list(&Api::<Pod>::namespaced(client.clone(), &namespace)).await },
        async { list(&Api::<GpuNode>::all(client.clone())).await },
        async { list(&Api::<Lease>::namespaced(client.clone(), "kube-node-lease")).await },
        get(leases.clone(), "kerf-extender"),
        get(Api::<Service>::namespaced(client.clone(), &namespace), "kerf-extender"),
        main_schedulers(client),
        async { list(&Api::<ResourceQuota>::all(client.clone())).await },
        probe::show(client),
    );
    // The leader's clock may be slow, so only another renewal proves that the leader is alive.
    if let Some(rest) = seen.lease.found().and_then(|lease| super::judge::overdue(lease, seen.now)) {
        sleep(Duration::from_secs(rest.min(15))).await;
        seen.lease_later = get(leases, "kerf-extender").await.found().cloned();
    }
}

/// Only kubeadm's static pods are found, by the label that they have.
async fn main_schedulers(client: &Client) -> Seen<Vec<Pod>> {
    let params = ListParams::default().labels("component=kube-scheduler");
    seen(
        Api::<Pod>::namespaced(client.clone(), "kube-system")
            .list(&params)
            .await
            .map(|list| Some(list.items)),
    )
}

fn seen<T>(answer: Result<Option<T>, kube::Error>) -> Seen<T> {
    match answer {
        Ok(Some(found)) => Seen::Found(found),
        Ok(None) => Seen::Absent,
        Err(kube::Error::Api(status)) => Seen::Unknown(status.message.clone()),
        Err(error) => Seen::Unknown(format!("{:#}", anyhow::Error::from(error))),
    }
}

async fn get<K: Clone + DeserializeOwned + Debug>(api: Api<K>, name: &str) -> Seen<K> {
    seen(api.get_opt(name).await)
}

pub async fn list<K: Clone + DeserializeOwned + Debug>(api: &Api<K>) -> Seen<Vec<K>> {
    let mut all = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        match api.list(&params).await {
            Ok(page) => {
                all.extend(page.items);
                match page.metadata.continue_.filter(|next| !next.is_empty()) {
                    Some(next) => params = params.continue_token(&next),
                    None => return Seen::Found(all),
                }
            }
            Err(kube::Error::Api(status)) if status.code == 404 => return Seen::Absent,
            Err(error) => return seen(Err(error)),
        }
    }
}

async fn apis(client: &Client) -> BTreeMap<&'static str, Seen<Vec<String>>> {
    let mut apis = BTreeMap::new();
    for api in APIS {
        let answer = match client.list_api_group_resources(api).await {
            Ok(found) => Ok(Some(found.resources.into_iter().map(|resource| resource.name).collect())),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        };
        apis.insert(api, seen(answer));
    }
    apis
}

fn dynamic(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::all_with(client.clone(), &resource)
}

async fn crd(client: &Client) -> Seen<Value> {
    let name = format!("{}.{}", GpuNode::plural(&()), GpuNode::group(&()));
    match get(dynamic(client, "apiextensions.k8s.io", "v1", "CustomResourceDefinition"), &name).await {
        Seen::Found(object) => Seen::Found(json!(object)),
        Seen::Absent => Seen::Absent,
        Seen::Unknown(why) => Seen::Unknown(why),
    }
}

async fn cluster_policy(client: &Client) -> Seen<Value> {
    match list(&cluster_policy::api(client)).await {
        Seen::Found(all) => {
            cluster_policy::heeded(all).map_or(Seen::Absent, |policy| Seen::Found(json!(policy)))
        }
        Seen::Absent => Seen::Absent,
        Seen::Unknown(why) => Seen::Unknown(why),
    }
}

/// The `DeviceClasses`. They are absent on clusters without that API (before 1.34), which is no fault.
async fn device_classes(client: &Client) -> Seen<Vec<Value>> {
    match list(&dynamic(client, "resource.k8s.io", "v1", "DeviceClass")).await {
        Seen::Found(all) => Seen::Found(all.into_iter().map(|object| json!(object)).collect()),
        Seen::Absent => Seen::Absent,
        Seen::Unknown(why) => Seen::Unknown(why),
    }
}

async fn guards(client: &Client) -> Seen<Vec<String>> {
    match list(&Api::<ValidatingAdmissionPolicy>::all(client.clone())).await {
        Seen::Found(all) => Seen::Found(all.into_iter().filter_map(|policy| policy.metadata.name).collect()),
        Seen::Absent => Seen::Absent,
        Seen::Unknown(why) => Seen::Unknown(why),
    }
}

async fn guards_bound(client: &Client) -> Seen<Vec<String>> {
    match list(&Api::<ValidatingAdmissionPolicyBinding>::all(client.clone())).await {
        Seen::Found(all) => {
            Seen::Found(all.into_iter().filter_map(|binding| binding.spec?.policy_name).collect())
        }
        Seen::Absent => Seen::Absent,
        Seen::Unknown(why) => Seen::Unknown(why),
    }
}

/// The time of a Lease's last renewal, by the API server's clock.
pub fn written(lease: &Lease) -> Option<Timestamp> {
    let fields = lease.metadata.managed_fields.as_ref()?;
    fields.iter().filter_map(|field| field.time.as_ref()).map(|time| time.0).max()
}
