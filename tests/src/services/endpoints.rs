//! Computes which pods serve which port of which Service, without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::pods::is_ready;

/// The pods' addresses by the Services' addresses.
pub(super) type Endpoints = BTreeMap<SocketAddr, BTreeSet<SocketAddr>>;

/// The endpoints of each port of each Service.
pub(super) fn endpoints(services: &[Arc<Service>], pods: &[Arc<Pod>]) -> Endpoints {
    let mut endpoints = Endpoints::new();
    for service in services {
        let spec = service.spec.clone().unwrap_or_default();
        let Some(address) = spec.cluster_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok()) else {
            continue;
        };
        for port in
            spec.ports.iter().flatten().filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP")
        {
            let Ok(number) = u16::try_from(port.port) else { continue };
            let serving = serving(service, pods)
                .into_iter()
                .filter_map(|(pod, ip)| Some((ip, target(pod, port)?).into()));
            endpoints.insert((address, number).into(), serving.collect());
        }
    }
    endpoints
}

/// The pods that serve a Service, with their addresses.
pub(super) fn serving<'a>(service: &Service, pods: &'a [Arc<Pod>]) -> Vec<(&'a Pod, IpAddr)> {
    let spec = service.spec.clone().unwrap_or_default();
    let selector = spec.selector.unwrap_or_default();
    if selector.is_empty() {
        return Vec::new();
    }
    let any = spec.publish_not_ready_addresses == Some(true);
    let selected = pods.iter().map(AsRef::as_ref).filter(|pod| {
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        pod.metadata.namespace == service.metadata.namespace
            && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
            && (any || may_serve(pod))
    });
    let ip = |pod: &Pod| pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok();
    selected.filter_map(|pod| Some((pod, ip(pod)?))).collect()
}

/// Whether the pod is ready and not being deleted.
#[must_use]
pub fn may_serve(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && is_ready(pod)
}

/// The pod's port: a number, a name among its containers' ports, or the Service's own number.
fn target(pod: &Pod, port: &ServicePort) -> Option<u16> {
    let number = match &port.target_port {
        None => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
            let ports = |container: &Container| container.ports.clone().unwrap_or_default();
            containers.flat_map(ports).find(|port| port.name.as_ref() == Some(name))?.container_port
        }
    };
    u16::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, ip: &str, ready: &str) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": name, "namespace": "n", "labels": {"app": "a", "more": "x"}},
            "spec": {"containers": [{"name": "c", "ports": [{"name": "https", "containerPort": 9443}]}]},
            "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn leads(spec: &serde_json::Value, pods: &[Arc<Pod>]) -> Vec<String> {
        let service = json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec});
        let endpoints = endpoints(&[Arc::new(serde_json::from_value(service).unwrap())], pods);
        let lines = endpoints.iter().map(|(service, pods)| {
            let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
            format!("{service} -> {}", pods.join(","))
        });
        lines.collect()
    }

    #[test]
    fn a_port_leads_to_the_ready_pods_that_are_selected() {
        let pods =
            [pod("a", "127.64.0.1", "True"), pod("b", "127.64.0.2", "False"), pod("c", "127.64.0.3", "True")];
        let spec = json!({
            "clusterIP": "127.96.0.9", "selector": {"app": "a"},
            "ports": [{"port": 443, "targetPort": "https"}, {"port": 80, "targetPort": 8080}, {"port": 53, "protocol": "UDP"}],
        });
        assert_eq!(
            leads(&spec, &pods),
            [
                "127.96.0.9:80 -> 127.64.0.1:8080,127.64.0.3:8080",
                "127.96.0.9:443 -> 127.64.0.1:9443,127.64.0.3:9443"
            ]
        );
    }

    #[test]
    fn a_service_without_a_selector_or_an_address_leads_nowhere() {
        let pods = [pod("a", "127.64.0.1", "True")];
        let ports = json!([{"port": 443}]);
        assert_eq!(leads(&json!({"clusterIP": "127.96.0.9", "ports": ports}), &pods), ["127.96.0.9:443 -> "]);
        assert!(
            leads(&json!({"clusterIP": "None", "selector": {"app": "a"}, "ports": ports}), &pods).is_empty()
        );
        let other = json!({"clusterIP": "127.96.0.9", "selector": {"app": "b"}, "ports": ports});
        assert_eq!(leads(&other, &pods), ["127.96.0.9:443 -> "]);
    }
}
