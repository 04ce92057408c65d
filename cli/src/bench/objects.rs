//! Builds the Kubernetes objects of a point. No I/O.

use super::plan::Planned;
use super::subject::{FILES, Subject};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kerf_core::keys;
use std::collections::BTreeMap;

/// The client's files. They are compiled in, so that the command needs no checkout.
const CLIENT_FILES: [(&str, &str); 4] = [
    ("client.py", include_str!("../../../deploy/examples/sharing/client/client.py")),
    ("metrics.py", include_str!("../../../deploy/examples/sharing/client/metrics.py")),
    ("sensors.py", include_str!("../../../deploy/examples/sharing/client/sensors.py")),
    ("workloads.py", include_str!("../../../deploy/examples/sharing/client/workloads.py")),
];

const NAME_LABEL: (&str, &str) = ("app.kubernetes.io/name", "kerf-bench");

/// The label with the run's name. At its end a run deletes only objects with this label, because another run may be
/// under way.
const RUN_LABEL: &str = "app.kubernetes.io/instance";

/// The label by which the Deployments of a run differ. Without it they would select each other's pods.
const POINT_LABEL: &str = "app.kubernetes.io/component";

pub fn selector(run: &str) -> String {
    format!("{}={},{RUN_LABEL}={run}", NAME_LABEL.0, NAME_LABEL.1)
}

pub fn pods_of(run: &str, name: &str) -> String {
    format!("{},{POINT_LABEL}={name}", selector(run))
}

fn labels(run: &str) -> BTreeMap<String, String> {
    [NAME_LABEL, (RUN_LABEL, run)].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

pub fn config_map(run: &str) -> ConfigMap {
    let data = CLIENT_FILES.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let metadata =
        ObjectMeta { name: Some(FILES.to_owned()), labels: Some(labels(run)), ..ObjectMeta::default() };
    ConfigMap { metadata, data: Some(data.into()), ..ConfigMap::default() }
}

/// A Deployment with `copies` replicas of a subject; `asks` are the annotations by which they ask kerf.
pub fn deployment(
    run: &str,
    name: &str,
    subject: &Subject,
    copies: u32,
    asks: &BTreeMap<String, String>,
) -> Deployment {
    let mut selected = labels(run);
    selected.insert(POINT_LABEL.to_owned(), name.to_owned());
    let mut template = subject.template.clone();
    let pods = template.metadata.get_or_insert_default();
    pods.labels.get_or_insert_default().extend(selected.clone());
    pods.annotations.get_or_insert_default().extend(asks.clone());
    Deployment {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(selected.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: i32::try_from(copies).ok(),
            selector: LabelSelector { match_labels: Some(selected), ..LabelSelector::default() },
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// The annotations by which the copies of a point ask kerf; they mean the same in every cluster. They name the GPU,
/// because kerf would otherwise spread time slices over several GPUs.
pub fn asks(point: &Planned, container: &str) -> BTreeMap<String, String> {
    let size = (format!("{}.{container}", keys::GPU_MEMORY), format!("{}Gi", point.size.0));
    let threads =
        point.threads.map(|threads| (format!("{}.{container}", keys::COMPUTE), threads.get().to_string()));
    let class = point.technology.isolation().to_string();
    [
        (keys::GPU_UUID.to_owned(), point.target.gpu.uuid.to_string()),
        (keys::ISOLATION.to_owned(), class),
        size,
    ]
    .into_iter()
    .chain(threads)
    .collect()
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
