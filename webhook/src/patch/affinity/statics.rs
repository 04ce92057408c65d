//! Static nodes, by the labels of GPU feature discovery. These expressions only keep the scheduler's sample small; the
//! extender decides whether a node serves the pod.

use kerf_core::contract::{ContainerRequest, RequestDocument};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::mig::Profile;
use kerf_core::nvidia_keys::{self, attribute};
use kerf_core::resource::{PluginName, ResourceName};
use kerf_core::units::SizeGb;
use serde_json::{Value, json};

pub(super) fn expressions(document: &RequestDocument) -> Vec<Value> {
    // A single expression cannot express all of `kerf_core::managed`, so this one only excludes the nodes with the
    // label.
    let not_kerfs = json!({"key": keys::MANAGED, "operator": "NotIn", "values": ["true"]});
    let mut expressions = vec![not_kerfs];
    for expression in document.containers.iter().filter_map(of_container) {
        if !expressions.contains(&expression) {
            expressions.push(expression);
        }
    }
    expressions
}

/// `None` if a node without labels serves the container too: it asks by the plugin's name only and may get a time
/// slice. Only labels show that devices are whole GPUs or MIG instances.
fn of_container(request: &ContainerRequest) -> Option<Value> {
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
