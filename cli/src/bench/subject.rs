//! What is measured: a pod template, and the container in it whose log has the client's lines. The template comes from
//! the client's flags or from a user's pod. No I/O.

use super::args::{PodArgs, WorkloadName};
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, ContainerPort, EnvVar, Pod, PodSpec, PodTemplateSpec, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::contract::RequestDocument;
use kerf_core::keys;
use kerf_core::quantity::parse_size;
use kerf_core::resource::{ResourceName, asked_size};
use kerf_core::units::SizeGb;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

pub const CLIENT: &str = "client";

pub const FILES: &str = "kerf-bench-client";

const FOLDER: &str = "/kerf-bench";

const SCRIPT: &str = "client.py";

/// The prefix of the volume in which the API server mounts a service account's token. A pod that is copied must not
/// name it, because the API server adds it again.
const TOKEN: &str = "kube-api-access-";

#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    pub template: PodTemplateSpec,
    pub container: String,
    pub files: bool,
}

#[derive(Debug, Error)]
pub enum SubjectError {
    #[error("--template: it cannot be read; write a pod template with `metadata` and `spec`")]
    Template(#[source] anyhow::Error),
    #[error("--template: there is no {0:?} in a pod template; write `metadata` and `spec`")]
    TemplateKey(String),
    #[error(
        "no image: name one by --image, or in --template's container `client`; it must have Python, and torch and transformers but for --workload command"
    )]
    NoImage,
    #[error("--workload command: write the command behind --, as in `-- sleep 0.1`")]
    NoCommand,
    #[error("a command behind -- is for --workload command only")]
    StrayCommand,
    #[error("the pod has no spec")]
    NoSpec,
    #[error("--container {0}: the pod has no such container; it has {1}")]
    UnknownContainer(String, String),
    #[error(
        "the pod has several containers: {0}; name by --container the one that asks for the GPU and prints the client's lines"
    )]
    Several(String),
}

pub fn client(args: &PodArgs, template: Option<&str>, warm_up: Duration) -> Result<Subject, SubjectError> {
    match args.workload {
        WorkloadName::Command if args.command.is_empty() => return Err(SubjectError::NoCommand),
        WorkloadName::Command => {}
        _ if !args.command.is_empty() => return Err(SubjectError::StrayCommand),
        _ => {}
    }
    let mut template = template.map(read_template).transpose()?.unwrap_or_default();
    let spec = template.spec.get_or_insert_default();
    let host_network = spec.host_network == Some(true);
    let position = spec.containers.iter().position(|container| container.name == CLIENT);
    let mut container = position.map(|position| spec.containers.remove(position)).unwrap_or_default();
    fill(&mut container, args, warm_up, host_network)?;
    let files = args.client_path.is_none();
    if files {
        mount(spec, &mut container);
    }
    spec.containers.insert(position.unwrap_or(0), container);
    Ok(Subject { template, container: CLIENT.to_owned(), files })
}

fn read_template(text: &str) -> Result<PodTemplateSpec, SubjectError> {
    let parse = |error| SubjectError::Template(error);
    let mut value: Value = serde_saphyr::from_str(text).map_err(|error| parse(error.into()))?;
    let fields = value.as_object_mut().ok_or_else(|| parse(anyhow::anyhow!("it is no mapping")))?;
    fields.retain(|key, _| !matches!(key.as_str(), "apiVersion" | "kind"));
    if let Some(key) = fields.keys().find(|key| !matches!(key.as_str(), "metadata" | "spec")) {
        return Err(SubjectError::TemplateKey(key.clone()));
    }
    // A template may have no containers, because the client is added to them.
    if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) {
        spec.entry("containers").or_insert_with(|| Value::Array(Vec::new()));
    }
    serde_json::from_value(value).map_err(|error| parse(error.into()))
}

fn fill(
    container: &mut Container,
    args: &PodArgs,
    warm_up: Duration,
    host_network: bool,
) -> Result<(), SubjectError> {
    CLIENT.clone_into(&mut container.name);
    container.image = args.image.clone().or_else(|| container.image.take());
    if container.image.is_none() {
        return Err(SubjectError::NoImage);
    }
    let folder = args.client_path.as_deref().unwrap_or(FOLDER).trim_end_matches('/');
    let mut command = container
        .command
        .take()
        .filter(|command| !command.is_empty())
        .unwrap_or_else(|| vec!["python3".to_owned()]);
    command.push(format!("{folder}/{SCRIPT}"));
    container.command = Some(command);
    let dashes = (!args.command.is_empty()).then(|| "--".to_owned());
    container.args = Some(dashes.into_iter().chain(args.command.iter().cloned()).collect::<Vec<_>>())
        .filter(|args| !args.is_empty());
    let ours = [
        ("WORKLOAD", args.workload.as_str().to_owned()),
        ("WARM_UP", warm_up.as_secs_f64().to_string()),
        // 0 seconds means without end, because the kubelet would restart a client that ends by itself.
        ("SECONDS", "0".to_owned()),
    ];
    let env = container.env.get_or_insert_default();
    env.retain(|variable| ours.iter().all(|(name, _)| *name != variable.name));
    env.extend(ours.map(|(name, value)| variable(name, value)));
    // Copies on the host's network share its ports, so only one of them could serve /metrics.
    match env.iter().find(|variable| variable.name == "PORT") {
        Some(_) => {}
        None if host_network => env.push(variable("PORT", "0".to_owned())),
        None => {
            let port = ContainerPort {
                name: Some("metrics".to_owned()),
                container_port: 8000,
                ..Default::default()
            };
            container.ports.get_or_insert_default().push(port);
        }
    }
    Ok(())
}

fn variable(name: &str, value: String) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() }
}

fn mount(spec: &mut PodSpec, container: &mut Container) {
    spec.volumes.get_or_insert_default().push(Volume {
        name: FILES.to_owned(),
        config_map: Some(ConfigMapVolumeSource { name: FILES.to_owned(), ..Default::default() }),
        ..Volume::default()
    });
    container.volume_mounts.get_or_insert_default().push(VolumeMount {
        name: FILES.to_owned(),
        mount_path: FOLDER.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    });
}

/// A user's pod. The fields that a cluster has set and its own GPU request are removed, because the copies get others.
pub fn pod(pod: Pod, container: Option<&str>) -> Result<Subject, SubjectError> {
    let mut spec = pod.spec.filter(|spec| !spec.containers.is_empty()).ok_or(SubjectError::NoSpec)?;
    let names: Vec<&str> = spec.containers.iter().map(|container| container.name.as_str()).collect();
    let container = match container {
        Some(name) if names.contains(&name) => name.to_owned(),
        Some(name) => return Err(SubjectError::UnknownContainer(name.to_owned(), names.join(", "))),
        None if names.len() == 1 => names.concat(),
        None => return Err(SubjectError::Several(names.join(", "))),
    };
    clear(&mut spec);
    let metadata = ObjectMeta {
        labels: pod.metadata.labels.map(|labels| without(labels, |key| key == keys::SLICED)),
        annotations: pod.metadata.annotations.map(|annotations| {
            without(annotations, |key| key.starts_with(keys::GROUP) || key.contains("last-applied"))
        }),
        ..ObjectMeta::default()
    };
    let template = PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) };
    Ok(Subject { template, container, files: false })
}

/// The GPU memory that a container asks for, by the recorded request, the annotations or the limits, in this order.
pub fn asked(pod: &Pod, container: Option<&str>) -> Option<SizeGb> {
    let spec = pod.spec.as_ref()?;
    let container = spec.containers.iter().find(|found| container.is_none_or(|name| found.name == name))?;
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let recorded = annotations.get(keys::REQUEST).and_then(|text| RequestDocument::parse(text).ok());
    let recorded = recorded.and_then(|request| {
        request.containers.iter().find(|asked| asked.name == container.name).map(|asked| asked.size_gb)
    });
    let written = [format!("{}.{}", keys::GPU_MEMORY, container.name), keys::GPU_MEMORY.to_owned()];
    let written = written.iter().find_map(|key| parse_size(annotations.get(key)?).ok());
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let limited = || {
        let by_limit = |name: &String| {
            asked_size(name).and_then(Result::ok).or_else(|| name.parse::<ResourceName>().ok()?.size())
        };
        limits?.keys().find_map(by_limit)
    };
    recorded.filter(|size| *size != SizeGb::ANY).or(written).or_else(limited)
}

fn without(map: BTreeMap<String, String>, gone: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    map.into_iter().filter(|(key, _)| !gone(key)).collect()
}

fn clear(spec: &mut PodSpec) {
    // A preset node would bypass the scheduler, and so kerf.
    spec.node_name = None;
    spec.scheduler_name = None;
    spec.priority = None;
    spec.preemption_policy = None;
    spec.service_account = None;
    // The policy is removed, because a Deployment's pods can have the default restart policy only.
    spec.restart_policy = None;
    if let Some(volumes) = &mut spec.volumes {
        volumes.retain(|volume| !volume.name.starts_with(TOKEN));
    }
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        if let Some(mounts) = &mut container.volume_mounts {
            mounts.retain(|mount| !mount.name.starts_with(TOKEN));
        }
        if let Some(resources) = &mut container.resources {
            for amounts in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
                amounts.retain(|name, _| name.parse::<ResourceName>().is_err() && asked_size(name).is_none());
            }
        }
    }
}

#[cfg(test)]
#[path = "subject_tests.rs"]
mod tests;
