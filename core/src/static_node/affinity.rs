//! The labels of static nodes that may serve a pod, by GPU feature discovery. They only keep the scheduler's sample
//! small; the extender decides whether a node serves the pod.

use crate::contract::{ContainerRequest, RequestDocument};
use crate::keys;
use crate::kind::Kind;
use crate::mig::Profile;
use crate::nvidia_keys::{self, attribute};
use crate::resource::{PluginName, ResourceName};
use crate::units::SizeGb;
use serde_json::{Value, json};

/// The label expressions (`matchExpressions` of a node selector term) of static nodes that may serve a pod with this
/// document; `None` if only managed nodes may.
#[must_use]
pub fn label_expressions(document: &RequestDocument) -> Option<Vec<Value>> {
    let asks_the_plugin = || document.containers.iter().any(|container| container.resource.is_plugins());
    if !document.static_nodes && !asks_the_plugin() {
        return None;
    }
    // A single expression cannot express all of `managed`, so this one only excludes the nodes with the label.
    let unmanaged = json!({"key": keys::MANAGED, "operator": "NotIn", "values": ["true"]});
    let mut expressions = vec![unmanaged];
    for expression in document.containers.iter().filter_map(for_container) {
        if !expressions.contains(&expression) {
            expressions.push(expression);
        }
    }
    Some(expressions)
}

/// `None` if a node without labels serves the container too: it asks by the plugin's name only and may get a time
/// slice. Only labels show that devices are whole GPUs or MIG instances.
fn for_container(request: &ContainerRequest) -> Option<Value> {
    let some = |key: String| json!({"key": key, "operator": "Gt", "values": ["0"]});
    let is = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let instances = |profile: Profile| some(nvidia_keys::label(PluginName::Mig(profile), attribute::COUNT));
    match (request.resource, request.resource.plugin_name()?) {
        (_, PluginName::Mig(profile) | PluginName::MigShared(profile)) => Some(instances(profile)),
        (ResourceName::Plugin(_, Kind::Mps), _) => Some(is(nvidia_keys::SHARING_STRATEGY, "mps")),
        (ResourceName::Plugin(_, Kind::Mig), _) => Some(is(nvidia_keys::MIG_STRATEGY, "single")),
        (ResourceName::Whole, _) => Some(some(nvidia_keys::COUNT.to_owned())),
        (_, PluginName::Gpu | PluginName::Shared) => {
            (request.size_gb != SizeGb::ANY).then(|| some(nvidia_keys::COUNT.to_owned()))
        }
    }
}
