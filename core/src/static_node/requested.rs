//! The devices of NVIDIA's device plugin that pods of any scheduler hold.

use super::Devices;
use crate::kind::Kind;
use crate::quantity::parse_count;
use crate::request::{Claim, PodRequests, held};
use crate::resource::{PluginName, ResourceName};

/// The devices of NVIDIA's device plugin that a pod with these requests holds over its whole life.
#[must_use]
pub fn requested_devices(pod: PodRequests<'_>) -> Devices {
    let claims = pod.in_order().flat_map(|(container, role)| {
        container.requests().filter_map(move |(name, amount)| {
            let name: PluginName = name.parse().ok()?;
            let resource = name.plain().unwrap_or(ResourceName::Plugin(name, Kind::TimeSlicing));
            let count = u32::try_from(parse_count(amount)?).unwrap_or(u32::MAX);
            Some(Claim { role, resource, count })
        })
    });
    let claims: Vec<Claim> = claims.collect();
    let mut devices = Devices::new();
    for (claim, held) in claims.iter().zip(held(&claims)).filter(|(_, held)| *held > 0) {
        if let Some(name) = claim.resource.plugin_name() {
            let sum = devices.entry(name).or_default();
            *sum = sum.saturating_add(held);
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestingContainer;
    use serde_json::json;

    #[test]
    fn a_sidecars_devices_add_to_the_containers_and_an_init_containers_do_not() {
        let container =
            |count: &str| json!({"name": "c", "resources": {"requests": {"nvidia.com/gpu": count}}});
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = json!("Always");
        let containers: [RequestingContainer; 1] = serde_json::from_value(json!([container("1")])).unwrap();
        for (init, held) in [(container("1"), 1), (sidecar, 2), (container("3"), 3)] {
            let inits: [RequestingContainer; 1] = serde_json::from_value(json!([init])).unwrap();
            let pod = PodRequests { init_containers: &inits, containers: &containers };
            assert_eq!(requested_devices(pod), [(PluginName::Gpu, held)].into(), "{init}");
        }
    }
}
