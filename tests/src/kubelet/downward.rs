//! The downward API: a pod's fields, and the resources of its containers (kubernetes v1.36, `pkg/fieldpath`
//! and `pkg/api/v1/resource`).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};

use super::node_resources::ResourceList;

/// The addresses of a pod.
#[derive(Debug, Clone)]
pub(super) struct Whereabouts {
    pub(super) pod: Ipv4Addr,
    pub(super) host: Ipv4Addr,
}

/// A field of the pod; `None` if there is no such field.
pub(super) fn field(pod: &Pod, whereabouts: &Whereabouts, path: &str) -> Option<String> {
    let (metadata, spec) = (&pod.metadata, pod.spec.clone().unwrap_or_default());
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let of = match map {
            "metadata.labels" => &metadata.labels,
            "metadata.annotations" => &metadata.annotations,
            _ => return None,
        };
        return Some(of.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "metadata.labels" => Some(lines(metadata.labels.as_ref())),
        "metadata.annotations" => Some(lines(metadata.annotations.as_ref())),
        "spec.nodeName" => spec.node_name,
        "spec.serviceAccountName" => spec.service_account_name,
        "status.podIP" | "status.podIPs" => Some(whereabouts.pod.to_string()),
        "status.hostIP" | "status.hostIPs" => Some(whereabouts.host.to_string()),
        _ => None,
    }
}

fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={value:?}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// A container's resource in units of the divisor, rounded up. Without a limit it is the node's.
pub(super) fn resource(
    containers: &[&Container],
    own: &str,
    node: &ResourceList,
    selector: &ResourceFieldSelector,
) -> Option<String> {
    let named = selector.container_name.as_deref().unwrap_or(own);
    let container = containers.iter().find(|container| container.name == named)?;
    let resources = container.resources.clone().unwrap_or_default();
    let (kind, name) = selector.resource.split_once('.')?;
    let of_node = || node.get(name);
    let quantity = match kind {
        "limits" => resources.limits.as_ref().and_then(|limits| limits.get(name)).or_else(of_node),
        "requests" => resources.requests.as_ref().and_then(|requests| requests.get(name)),
        _ => None,
    };
    let divisor = selector.divisor.as_ref().map_or(1000, |divisor| thousandths(&divisor.0).unwrap_or(1000));
    let amount = quantity.map_or(Some(0), |quantity| thousandths(&quantity.0))?;
    // The API server stores a missing divisor as 0.
    Some(amount.div_ceil(if divisor == 0 { 1000 } else { divisor }).to_string())
}

/// A quantity in thousandths. Finer fractions are cut off.
fn thousandths(quantity: &str) -> Option<u128> {
    const SUFFIXES: [(&str, u128); 13] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("Ei", 1 << 60),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
        ("E", 1_000_000_000_000_000_000),
        ("", 1),
    ];
    if let Some(number) = quantity.strip_suffix('m') {
        return number.parse().ok();
    }
    let (number, unit) =
        SUFFIXES.iter().find_map(|(suffix, unit)| Some((quantity.strip_suffix(suffix)?, unit)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction: u128 = format!("{:0<3}", fraction.get(..3).unwrap_or(fraction)).parse().ok()?;
    Some((whole.parse::<u128>().ok()? * 1000 + fraction) * unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_of_a_pod_are_returned() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "1", "b/c": "2\"3"}},
            "spec": {"nodeName": "node-1", "serviceAccountName": "sa", "containers": []},
        }))
        .unwrap();
        let at = Whereabouts { pod: Ipv4Addr::new(127, 64, 0, 9), host: Ipv4Addr::LOCALHOST };
        for (path, expected) in [
            ("metadata.name", Some("p")),
            ("metadata.labels['b/c']", Some("2\"3")),
            ("metadata.labels['none']", Some("")),
            ("metadata.labels", Some("a=\"1\"\nb/c=\"2\\\"3\"")),
            ("spec.nodeName", Some("node-1")),
            ("spec.serviceAccountName", Some("sa")),
            ("status.podIP", Some("127.64.0.9")),
            ("status.hostIP", Some("127.0.0.1")),
            ("status.phase", None),
        ] {
            assert_eq!(field(&pod, &at, path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn amounts_are_rounded_up_to_the_divisor() {
        let container: Container = serde_json::from_value(json!({
            "name": "c", "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "32Mi"}},
        }))
        .unwrap();
        let node: ResourceList = serde_json::from_value(json!({"memory": "1Ti"})).unwrap();
        for (resource_name, divisor, expected) in [
            ("limits.cpu", json!("0"), Some("2")),
            ("limits.cpu", json!("1m"), Some("1500")),
            ("requests.memory", json!("1Mi"), Some("32")),
            ("requests.memory", json!("1"), Some("33554432")),
            ("limits.memory", json!("1Gi"), Some("1024")),
            ("requests.cpu", json!("1"), Some("0")),
        ] {
            let selector = json!({"resource": resource_name, "divisor": divisor});
            let selector = serde_json::from_value(selector).unwrap();
            let reported = resource(&[&container], "c", &node, &selector);
            assert_eq!(reported.as_deref(), expected, "{resource_name} {divisor}");
        }
    }

    #[test]
    fn quantities_are_read() {
        for (text, expected) in
            [("1", 1000), ("1.5", 1500), ("250m", 250), ("2k", 2_000_000), ("1Ki", 1_024_000)]
        {
            assert_eq!(thousandths(text), Some(expected), "{text}");
        }
        assert_eq!(thousandths("one"), None);
    }
}
