//! NVIDIA's GPU Operator, before kerf is installed. Its `ClusterPolicy` shows whether it provides the driver and the
//! container toolkit, and so which values kerf's chart needs beside it.
//!
//! The effects of a `ClusterPolicy` are taken from the operator's source (v26.7): `controllers/object_controls.go`,
//! `TransformToolkit`, `transformToolkitCtrForCDI`, `setRuntimeClassName` and `setNRIPluginAnnotation`.

use super::{Finding, Observed, Seen, unknown};
use crate::check::observed::{label, name_of};
use k8s_openapi::api::core::v1::Node;
use kerf_core::nvidia_keys;
use serde_json::Value;
use std::collections::BTreeMap;

const FILE: &str = "deploy/values/gpu-operator.yaml";
const FILE_TEXT: &str = include_str!("../../../../deploy/values/gpu-operator.yaml");

const DRIVER_ROOT: &str = "nodeAgent.driverRoot";
const RUNTIME_CLASS: &str = "nodeAgent.runtimeClassName";
const KUBELET_DIR: &str = "nodeAgent.kubeletDir";
/// The annotation by which the toolkit's NRI plugin gives all GPUs to a container, as a path of the chart's values.
const NRI_ANNOTATION: &str = r"nodeAgent.podAnnotations.nvidia\.cdi\.k8s\.io/container\.node-agent";

/// Node label that GPU Operator's driver manager writes: [`PRE_INSTALLED`] if the driver is installed on the node
/// itself.
const DEPLOY_DRIVER: &str = "nvidia.com/gpu.deploy.driver";
const PRE_INSTALLED: &str = "pre-installed";

type Values = BTreeMap<String, String>;

pub fn judge(seen: &Observed) -> Vec<Finding> {
    match &seen.cluster_policy {
        Seen::Unknown(why) => vec![unknown("GPU Operator's ClusterPolicy", why)],
        Seen::Absent => vec![without_policy(seen)],
        Seen::Found(policy) => {
            let policy = Policy { object: policy, nodes: seen.nodes.all() };
            let values = policy.values();
            let mut findings = vec![
                Finding::fine(policy.origins()),
                Finding::fine(format!("kerf's chart needs {}", listed(&values))),
                Finding::fine(format!("install kerf with: {}", command(&seen.namespace, &values))),
            ];
            findings.extend(policy.warnings());
            findings
        }
    }
}

fn without_policy(seen: &Observed) -> Finding {
    let is_labelled = |node: &&Node| {
        let mut labels = node.metadata.labels.iter().flatten();
        labels.any(|(key, _)| key.starts_with(nvidia_keys::DEPLOY_PREFIX))
    };
    match seen.nodes.all().iter().find(is_labelled) {
        Some(node) => Finding::warning(
            format!(
                "node {} has labels of GPU Operator ({}*), and there is no ClusterPolicy",
                name_of(node),
                nvidia_keys::DEPLOY_PREFIX
            ),
            format!(
                "if a GPUCluster is there (kubectl get gpuclusters), install kerf with -f {FILE}, and set {DRIVER_ROOT} to its \
                 spec.hostPaths.driverInstallDir; if GPU Operator was uninstalled, remove the labels"
            ),
        ),
        None => Finding::fine(format!(
            "there is no ClusterPolicy, so the nodes bring the driver and the container toolkit; install kerf with: {}; where NVIDIA's \
             runtime is not the default one add --set {RUNTIME_CLASS}=nvidia",
            helm_install(&seen.namespace)
        )),
    }
}

struct Policy<'a> {
    object: &'a Value,
    nodes: &'a [Node],
}

impl Policy<'_> {
    fn spec(&self, pointer: &str) -> &Value {
        static NULL: Value = Value::Null;
        self.object["spec"].pointer(pointer).unwrap_or(&NULL)
    }

    fn is_on(&self, pointer: &str, default: bool) -> bool {
        self.spec(pointer).as_bool().unwrap_or(default)
    }

    fn text<'t>(&'t self, pointer: &str, default: &'t str) -> &'t str {
        self.spec(pointer).as_str().filter(|text| !text.is_empty()).unwrap_or(default)
    }

    fn has_driver_container(&self) -> bool {
        let (own, other) = self.by_driver();
        self.is_on("/driver/enabled", true) && (own.is_empty() || !other.is_empty())
    }

    fn by_driver(&self) -> (Vec<&str>, Vec<&str>) {
        let with = |is_own: bool| {
            let of = |node: &&Node| {
                label(node, DEPLOY_DRIVER).is_some_and(|value| (value == PRE_INSTALLED) == is_own)
            };
            self.nodes.iter().filter(of).map(name_of).collect()
        };
        (with(true), with(false))
    }

    fn has_cdi(&self) -> bool {
        // An absent field means on, because versions before v25.10 always write it, as `false`.
        self.is_on("/cdi/enabled", true)
    }

    fn has_nri_plugin(&self) -> bool {
        self.has_cdi() && self.is_on("/cdi/nriPluginEnabled", false)
    }

    fn is_crio(&self) -> bool {
        let runtime = |node: &Node| {
            node.status.as_ref()?.node_info.as_ref().map(|info| info.container_runtime_version.clone())
        };
        self.nodes.iter().filter_map(runtime).any(|version| version.starts_with("cri-o"))
    }

    fn driver_folder(&self) -> &str {
        self.text("/hostPaths/driverInstallDir", "/run/nvidia/driver")
    }

    fn values(&self) -> Values {
        let root = if self.has_driver_container() { self.driver_folder() } else { "/" };
        let has_runtime = !self.has_nri_plugin() && (self.has_cdi() || !self.is_crio());
        let class = if has_runtime { self.text("/operator/runtimeClass", "nvidia") } else { "" };
        let mut values = Values::from([
            (DRIVER_ROOT.to_owned(), root.to_owned()),
            (RUNTIME_CLASS.to_owned(), class.to_owned()),
        ]);
        if self.has_nri_plugin() {
            values.insert(NRI_ANNOTATION.to_owned(), "management.nvidia.com/gpu=all".to_owned());
        }
        let kubelet = self.text("/hostPaths/kubeletRootDir", "");
        if !matches!(kubelet, "" | "/var/lib/kubelet") {
            values.insert(KUBELET_DIR.to_owned(), kubelet.to_owned());
        }
        values
    }

    fn origins(&self) -> String {
        let name = self.object["metadata"]["name"].as_str().unwrap_or_default();
        let driver = if self.has_driver_container() {
            format!("GPU Operator installs the driver in a container ({})", self.driver_folder())
        } else {
            "the nodes have the driver".to_owned()
        };
        let toolkit = if self.is_on("/toolkit/enabled", true) {
            "GPU Operator installs the container toolkit"
        } else {
            "the nodes have the container toolkit"
        };
        let cdi = if self.has_cdi() { "on" } else { "off" };
        format!("ClusterPolicy {name}: {driver}, {toolkit}, CDI is {cdi}")
    }

    fn warnings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let (own, operators) = self.by_driver();
        if self.is_on("/driver/enabled", true) && !own.is_empty() && !operators.is_empty() {
            findings.push(Finding::warning(
                format!("the driver of {} is on the node itself, that of {} is in a container", own.join(", "), operators.join(", ")),
                format!("hand over nodes of one sort only, and set {DRIVER_ROOT} for it: / for the first, as above for the second"),
            ));
        }
        if !self.is_on("/toolkit/enabled", true) {
            findings.push(Finding::warning(
                "GPU Operator does not install the container toolkit, so its ClusterPolicy does not say how it is configured",
                format!("set {RUNTIME_CLASS} to the RuntimeClass of NVIDIA's runtime, or to nothing where that is the default runtime"),
            ));
        }
        findings
    }
}

fn listed(values: &Values) -> String {
    values
        .iter()
        .map(|(path, value)| format!("{path}={}", if value.is_empty() { r#""""# } else { value }))
        .collect::<Vec<_>>()
        .join(", ")
}

fn helm_install(namespace: &str) -> String {
    format!("helm install kerf deploy/chart --namespace {namespace} --create-namespace")
}

/// The command to install kerf, with the values file. It sets only the values that differ from the file, so that the
/// command stays short.
fn command(namespace: &str, values: &Values) -> String {
    let in_file = file_values();
    let differs = values.iter().filter(|(path, value)| in_file.get(*path) != Some(*value));
    let sets = differs.map(|(path, value)| format!(" --set '{path}={value}'"));
    format!("{} -f {FILE}{}", helm_install(namespace), sets.collect::<String>())
}

/// The values in the file. The default never applies, because a test parses the file.
fn file_values() -> Values {
    let file: Value = serde_saphyr::from_str(FILE_TEXT).unwrap_or_default();
    let agent = file["nodeAgent"].as_object().into_iter().flatten();
    agent.filter_map(|(key, value)| Some((format!("nodeAgent.{key}"), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
#[path = "gpu_operator_tests.rs"]
mod tests;
