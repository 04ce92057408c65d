//! The resources that NVIDIA's device plugin offers on static nodes, and the pods that have them. Pure.

use crate::columns::{Columns, or_dash};
use crate::plugin_nodes::PluginNode;
use kerf_core::kind::Kind;
use kerf_core::resource::PluginName;
use kerf_core::static_node::Devices;
use kerf_core::units::SizeGb;
use serde::Serialize;
use std::collections::BTreeSet;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offered {
    pub node: String,
    /// The short name of the GPUs' model; `None` if the node's labels do not say it.
    pub model: Option<String>,
    pub resource: String,
    /// The kind of slice for which a device counts; `None` if kerf gives it to no pod.
    pub kind: Option<Kind>,
    /// The nominal size of a device; `None` if it is unknown, so that it serves only requests by name.
    pub size_gb: Option<SizeGb>,
    pub devices: u64,
    pub used: u64,
    /// The pods that have these devices, as `namespace/name`.
    pub pods: Vec<String>,
}

pub fn offered(name: &str, PluginNode { node, pods }: &PluginNode) -> Vec<Offered> {
    let devices = node.devices.iter().filter(|(_, count)| **count > 0);
    let held: Vec<(String, Devices)> =
        pods.iter().map(|pod| (pod.key().to_string(), pod.devices())).collect();
    let of = |(plugin_name, devices): (&PluginName, &u32)| {
        let users: Vec<(&String, u32)> =
            held.iter().filter_map(|(pod, devices)| Some((pod, *devices.get(plugin_name)?))).collect();
        let offer = node.offer(*plugin_name);
        Offered {
            node: name.to_owned(),
            model: Some(node.model.clone()).filter(|model| !model.is_empty()),
            resource: plugin_name.to_string(),
            kind: offer.map(|offer| offer.kind),
            size_gb: offer.and_then(|offer| offer.size),
            devices: u64::from(*devices),
            used: users.iter().map(|(_, count)| u64::from(*count)).sum(),
            pods: users.into_iter().map(|(pod, _)| pod.clone()).collect(),
        }
    };
    devices.map(of).collect()
}

pub fn table(offered: &[Offered]) -> String {
    let mut columns = Columns::new(["NODE", "MODEL", "RESOURCE", "KIND", "SIZE", "USED", "PODS"]);
    for it in offered {
        let pods: BTreeSet<&str> = it.pods.iter().map(String::as_str).collect();
        let pods = Some(pods).filter(|pods| !pods.is_empty());
        columns.row([
            it.node.clone(),
            or_dash(it.model.as_ref()),
            it.resource.clone(),
            or_dash(it.kind),
            or_dash(it.size_gb),
            format!("{}/{}", it.used, it.devices),
            or_dash(pods.map(|pods| pods.into_iter().collect::<Vec<_>>().join(", "))),
        ]);
    }
    columns.write("")
}
