//! Assembles a container's environment as the kubelet does (kubernetes v1.36, `makeEnvironmentVariables` in
//! `pkg/kubelet/kubelet_pods.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, Service, ServicePort};
use kube::api::{Api, ListParams};

use super::downward;
use super::expansion::expand;
use super::volumes::{Entries, MountContext, MountError, config_map, containers, secret};

pub(super) type Variables = BTreeMap<String, String>;

/// The variables of the container's own `env` and `envFrom`. They may refer to earlier ones and to
/// `services`.
pub(super) async fn own(
    context: &MountContext<'_>,
    container: &Container,
    services: &Variables,
) -> Result<Variables, MountError> {
    let mut own = Variables::new();
    for source in container.env_from.iter().flatten() {
        let entries = if let Some(map) = &source.config_map_ref {
            config_map(context, &map.name, map.optional.unwrap_or_default()).await?
        } else if let Some(found) = &source.secret_ref {
            secret(context, &found.name, found.optional.unwrap_or_default()).await?
        } else {
            Entries::new()
        };
        let prefix = source.prefix.as_deref().unwrap_or_default();
        own.extend(entries.iter().map(|(key, value)| (format!("{prefix}{key}"), text(value))));
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = value(context, container, variable, services, &own).await? {
            own.insert(variable.name.clone(), value);
        }
    }
    Ok(own)
}

/// A variable's value; `None` if it comes from a missing optional source.
async fn value(
    context: &MountContext<'_>,
    container: &Container,
    variable: &EnvVar,
    services: &Variables,
    before: &Variables,
) -> Result<Option<String>, MountError> {
    if let Some(source) = &variable.value_from {
        return reported(context, container, source).await;
    }
    let known: Variables = services.iter().chain(before).map(|(k, v)| (k.clone(), v.clone())).collect();
    Ok(Some(expand(variable.value.as_deref().unwrap_or_default(), &known)))
}

async fn reported(
    context: &MountContext<'_>,
    container: &Container,
    source: &EnvVarSource,
) -> Result<Option<String>, MountError> {
    if let Some(field) = &source.field_ref {
        let value = downward::field(context.pod, context.whereabouts, &field.field_path);
        return value.map(Some).ok_or_else(|| MountError::NoKey(field.field_path.clone()));
    }
    if let Some(field) = &source.resource_field_ref {
        let value = downward::resource(&containers(context.pod), &container.name, context.node, field);
        return value.map(Some).ok_or_else(|| MountError::NoKey(field.resource.clone()));
    }
    let (entries, key, optional) = if let Some(of) = &source.config_map_key_ref {
        let optional = of.optional.unwrap_or_default();
        (config_map(context, &of.name, optional).await?, &of.key, optional)
    } else if let Some(of) = &source.secret_key_ref {
        let optional = of.optional.unwrap_or_default();
        (secret(context, &of.name, optional).await?, &of.key, optional)
    } else {
        return Err(MountError::Unsupported);
    };
    match entries.get(key) {
        Some(value) => Ok(Some(text(value))),
        None if optional => Ok(None),
        None => Err(MountError::NoKey(key.clone())),
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// The variables of the Services in the pod's namespace, unless its spec disables them (same release,
/// `FromServices` in `pkg/kubelet/envvars/envvars.go`).
pub(super) async fn of_services(context: &MountContext<'_>) -> Result<Variables, MountError> {
    if context.pod.spec.as_ref().and_then(|spec| spec.enable_service_links) == Some(false) {
        return Ok(Variables::new());
    }
    let api: Api<Service> = Api::namespaced(context.client.clone(), &context.namespace());
    let found = api.list(&ListParams::default()).await.map_err(|error| MountError::Api(error.into()))?;
    Ok(found.items.iter().flat_map(of_service).collect())
}

fn of_service(service: &Service) -> Variables {
    let spec = service.spec.clone().unwrap_or_default();
    let Some(address) = spec.cluster_ip.filter(|address| !address.is_empty() && address != "None") else {
        return Variables::new();
    };
    let name = upper(service.metadata.name.as_deref().unwrap_or_default());
    let ports = spec.ports.unwrap_or_default();
    let mut variables: Variables = [(format!("{name}_SERVICE_HOST"), address.clone())].into();
    if let Some(first) = ports.first() {
        variables.insert(format!("{name}_SERVICE_PORT"), first.port.to_string());
        variables.insert(format!("{name}_PORT"), url(first, &address));
    }
    for port in &ports {
        if let Some(port_name) = &port.name {
            variables.insert(format!("{name}_SERVICE_PORT_{}", upper(port_name)), port.port.to_string());
        }
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let prefix = format!("{name}_PORT_{}_{protocol}", port.port);
        variables.insert(format!("{prefix}_PROTO"), protocol.to_lowercase());
        variables.insert(format!("{prefix}_PORT"), port.port.to_string());
        variables.insert(format!("{prefix}_ADDR"), address.clone());
        variables.insert(prefix, url(port, &address));
    }
    variables
}

fn url(port: &ServicePort, address: &str) -> String {
    format!("{}://{address}:{}", port.protocol.as_deref().unwrap_or("TCP").to_lowercase(), port.port)
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_services_variables_have_its_name() {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "kerf-webhook"},
            "spec": {"clusterIP": "127.96.0.7", "ports": [{"name": "https", "port": 9443}]},
        }))
        .unwrap();
        let variables = of_service(&service);
        assert_eq!(variables["KERF_WEBHOOK_SERVICE_HOST"], "127.96.0.7");
        assert_eq!(variables["KERF_WEBHOOK_SERVICE_PORT_HTTPS"], "9443");
        assert_eq!(variables["KERF_WEBHOOK_PORT_9443_TCP"], "tcp://127.96.0.7:9443");
        assert_eq!(variables.len(), 8);
    }
}
