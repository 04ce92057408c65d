//! Finds other GPU managers by `DaemonSets` and their pods, webhooks and `ResourceSlices`.

use super::{dynamic, list};
use crate::check::gpu_managers::{GpuManager, OtherManager, manager_of_daemon_set, manager_of_webhook};
use crate::check::observed::{Seen, name_of};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::collections::BTreeSet;

const DRIVER: &str = "gpu.nvidia.com";

pub async fn read(client: &Client) -> Seen<Vec<OtherManager>> {
    let mut found = Vec::new();
    match list(&Api::<DaemonSet>::all(client.clone())).await {
        Seen::Found(sets) => {
            for set in &sets {
                if let Some(program) = manager_of_daemon_set(set) {
                    found.push(from_daemon_set(client, program, set).await);
                }
            }
        }
        Seen::Absent => {}
        Seen::Unknown(why) => return Seen::Unknown(why),
    }
    for configuration in list(&Api::<MutatingWebhookConfiguration>::all(client.clone())).await.all() {
        let name = name_of(configuration);
        let evidence = format!("MutatingWebhookConfiguration {name}");
        found.extend(manager_of_webhook(name).map(|program| OtherManager {
            program,
            evidence,
            nodes: BTreeSet::new(),
        }));
    }
    found.extend(slices(client).await);
    Seen::Found(found)
}

async fn from_daemon_set(client: &Client, program: GpuManager, set: &DaemonSet) -> OtherManager {
    let namespace = set.namespace().unwrap_or_default();
    let labels = set.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone()).unwrap_or_default();
    let selector: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let pods = pods.list(&ListParams::default().labels(&selector.join(","))).await;
    let nodes = pods.map(|pods| pods.items.into_iter().filter_map(|pod| pod.spec?.node_name).collect());
    OtherManager {
        program,
        evidence: format!("DaemonSet {namespace}/{}", name_of(set)),
        nodes: nodes.unwrap_or_default(),
    }
}

/// The DRA driver, found by the `ResourceSlices` that it publishes.
async fn slices(client: &Client) -> Option<OtherManager> {
    let slices = list(&dynamic(client, "resource.k8s.io", "v1", "ResourceSlice")).await;
    let slices = slices.all().iter().map(|slice| json!(slice));
    let ours = slices.filter(|slice| slice["spec"]["driver"] == DRIVER);
    let nodes: BTreeSet<String> =
        ours.filter_map(|slice| slice["spec"]["nodeName"].as_str().map(str::to_owned)).collect();
    (!nodes.is_empty()).then(|| OtherManager {
        program: GpuManager::DraDriver,
        evidence: format!("ResourceSlices of {DRIVER}"),
        nodes,
    })
}
