//! Writes the Services' names into a hosts file.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};

use super::endpoints;

/// An address, and the names of its Service.
pub(super) type Named = (String, String);

/// The addresses of the Services. A headless one has those of its pods.
pub(super) fn names(services: &[Arc<Service>], pods: &[Arc<Pod>]) -> Vec<Named> {
    let mut named: Vec<Named> = services.iter().flat_map(|service| of_one(service, pods)).collect();
    named.sort();
    named
}

fn of_one(service: &Service, pods: &[Arc<Pod>]) -> Vec<Named> {
    let name = service.metadata.name.clone().unwrap_or_default();
    let namespace = service.metadata.namespace.clone().unwrap_or_default();
    let names = format!("{name}.{namespace}.svc.cluster.local {name}.{namespace}.svc {name}.{namespace}");
    let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.clone()).unwrap_or_default();
    let addresses = match address.as_str() {
        "" => Vec::new(),
        "None" => endpoints::serving(service, pods).iter().map(|(_, ip)| ip.to_string()).collect(),
        _ => vec![address],
    };
    addresses.into_iter().map(|address| (address, names.clone())).collect()
}

/// Writes the file in place, because containers have this very file mounted.
pub(super) fn write(file: &Path, named: &[Named]) -> io::Result<()> {
    let lines = named.iter().map(|(address, names)| format!("{address} {names}\n"));
    let text: String = std::iter::once("127.0.0.1 localhost\n".to_owned()).chain(lines).collect();
    fs::write(file, text)
}
