//! The managed nodes: each needs an agent that is ready, a GpuNode that the agent writes, and healthy GPUs.

use super::resources::keeps_neutral_names;
use super::{Finding, Observed, Seen, unknown};
use crate::check::observed::{AGENT, is_ready, name_of, trouble_of};
use crate::counted::counted;
use kerf_core::contract::{Condition, ConditionStatus, GpuNodeSpec, GpuNodeStatus, GpuStatus, ModeChange};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine;
use std::collections::BTreeSet;

pub fn judge(seen: &Observed) -> Vec<Finding> {
    if let Seen::Unknown(why) = &seen.nodes {
        return vec![unknown("the Nodes", why)];
    }
    let names: BTreeSet<&str> = seen.managed().into_iter().map(name_of).collect();
    if names.is_empty() {
        let label = keys::MANAGED;
        let none = Finding::warning(
            format!("no node is kerf's: none has the label {label}=true"),
            format!("kubectl label node NAME {label}=true"),
        );
        return [none].into_iter().chain(left_over(seen, &names)).collect();
    }
    let mut findings: Vec<Finding> = Vec::new();
    let mut good = Vec::new();
    for name in &names {
        let of_node = node(seen, name);
        if of_node.is_empty() {
            good.push(*name);
        }
        findings.extend(of_node);
    }
    if !good.is_empty() {
        findings.insert(0, Finding::fine(format!("{}: agent ready, GPUs well", listed(&good))));
    }
    findings.extend(user_namespaces(seen));
    findings.extend(without_neutral_names(seen));
    findings.extend(left_over(seen, &names));
    findings
}

/// Which nodes with MPS shares can run pods in user namespaces, and why the others cannot.
fn user_namespaces(seen: &Observed) -> Vec<Finding> {
    let status = |node: &GpuNode| node.read_status().ok().flatten();
    let has_mps = |status: GpuNodeStatus| status.gpus.iter().any(|gpu| gpu.kinds.contains(&Kind::Mps));
    let sharing = seen.gpu_nodes.all().iter().filter(|node| status(node).is_some_and(has_mps));
    let sharing: BTreeSet<String> = sharing.map(|node| node.name().to_string()).collect();
    let (mut able, mut findings) = (Vec::new(), Vec::new());
    for node in seen.managed().into_iter().filter(|node| sharing.contains(name_of(*node))) {
        let status = node.status.as_ref();
        let handlers = status.and_then(|status| status.runtime_handlers.as_deref());
        let kernel = status.and_then(|status| Some(status.node_info.as_ref()?.kernel_version.as_str()));
        match machine::user_namespaces(handlers, kernel) {
            Ok(()) => able.push(name_of(node)),
            Err(why) => findings.push(Finding::warning(
                format!("{}: no user namespaces: {why}; pods that may run as root get no MPS share", name_of(node)),
                "upgrade the node, or let pods run as another user (runAsNonRoot: true, allowPrivilegeEscalation: false), or set spec.mps.rootContainers in the GpuPolicy",
            )),
        }
    }
    if !able.is_empty() {
        findings
            .insert(0, Finding::fine(format!("{}: pods with MPS shares get user namespaces", listed(&able))));
    }
    findings
}

fn without_neutral_names(seen: &Observed) -> Option<Finding> {
    // A CRD that prunes the field hides what the agents report, so it must not be reported as the agents' fault. It is
    // a finding of its own.
    if seen.crd.found().is_some_and(|crd| !keeps_neutral_names(crd)) {
        return None;
    }
    let is_old = |node: &&GpuNode| {
        let status = node.read_status().ok().flatten();
        status.is_some_and(|status| {
            let serves = status.gpus.iter().any(|gpu| !gpu.kinds.is_empty());
            status.is_ready() && serves && status.neutral_up_to.is_none()
        })
    };
    let old: Vec<String> =
        seen.gpu_nodes.all().iter().filter(is_old).map(|node| node.name().to_string()).collect();
    let names: Vec<&str> = old.iter().map(String::as_str).collect();
    let namespace = &seen.namespace;
    (!names.is_empty()).then(|| {
        Finding::warning(
            format!(
                "{}: ready, and without status.neutralUpToGb: the agent is of the version before, and the node takes no pod that asks by kerf.dev/gpu-<N>gb",
                listed(&names)
            ),
            format!(
                "update the agents: helm upgrade, then kubectl -n {namespace} rollout status daemonset/{AGENT}; if they are of this version, read the log of one: the kubelet has not registered the names"
            ),
        )
    })
}

fn listed(names: &[&str]) -> String {
    const NAMES_LIMIT: usize = 8;
    if names.len() <= NAMES_LIMIT {
        names.join(", ")
    } else {
        format!("{} and {}", names[..NAMES_LIMIT].join(", "), counted(names.len() - NAMES_LIMIT, "more node"))
    }
}

fn node(seen: &Observed, name: &str) -> Vec<Finding> {
    let mut findings: Vec<Finding> = agent(seen, name).into_iter().collect();
    if let Seen::Unknown(why) = &seen.gpu_nodes {
        findings.push(unknown("the GpuNodes", why));
        return findings;
    }
    let log = logs(seen, name);
    let Some(object) = seen.gpu_nodes.all().iter().find(|node| node.name().as_str() == name) else {
        findings
            .push(Finding::failure(format!("{name}: there is no GpuNode: its agent has not come up"), log));
        return findings;
    };
    let (spec, status) = match (object.read_desired(), object.read_status()) {
        (Ok(spec), Ok(Some(status))) => (spec, status),
        (Ok(_), Ok(None)) => {
            findings.push(Finding::failure(format!("{name}: its agent has written no status yet"), log));
            return findings;
        }
        (Err(error), _) => {
            findings.push(Finding::failure(
                format!("{name}: GpuNode.spec cannot be read: {error}"),
                "update kerf's extender or correct the spec; the node counts as full until then",
            ));
            return findings;
        }
        (_, Err(error)) => {
            findings
                .push(Finding::failure(format!("{name}: {error}"), "run the same version of all programs"));
            return findings;
        }
    };
    findings.extend(status.conditions.iter().filter_map(|it| condition(name, it, &log)));
    findings.extend(never_connected(seen, name, &status));
    findings.extend(status.gpus.iter().filter_map(|gpu| sick(name, gpu)));
    // An agent cuts nothing while another program manages the GPUs, whatever policy and MIG mode say. So a GPU that
    // serves nothing is no finding of its own then.
    if !is_contested(&status) {
        findings.extend(status.gpus.iter().filter_map(|gpu| serves_nothing(name, gpu, &spec)));
    }
    findings
}

fn logs(seen: &Observed, node: &str) -> String {
    let namespace = &seen.namespace;
    let pod = pod_on(seen, node).map(|pod| name_of(pod).to_owned());
    match pod {
        Some(pod) => format!("kubectl -n {namespace} logs {pod}"),
        None => format!("kubectl -n {namespace} describe daemonset {AGENT}"),
    }
}

fn pod_on<'s>(seen: &'s Observed, node: &str) -> Option<&'s k8s_openapi::api::core::v1::Pod> {
    seen.pods_of(AGENT).find(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node))
}

fn agent(seen: &Observed, node: &str) -> Option<Finding> {
    let namespace = &seen.namespace;
    if let Seen::Unknown(why) = &seen.pods {
        return Some(unknown("the agents' pods", why));
    }
    match pod_on(seen, node) {
        None => Some(Finding::failure(
            format!("{node}: there is no agent's pod"),
            format!(
                "kubectl -n {namespace} describe daemonset {AGENT}; mostly a taint of the node that the DaemonSet does not tolerate; or managedNodes of the chart leaves the node out: kubectl label node {node} {}=false --overwrite",
                keys::MANAGED
            ),
        )),
        Some(pod) if !is_ready(pod) => Some(Finding::failure(
            format!("{node}: its agent {} is not ready: {}", name_of(pod), trouble_of(pod)),
            format!("kubectl -n {namespace} describe pod {}; {}", name_of(pod), logs(seen, node)),
        )),
        Some(_) => None,
    }
}

/// A condition that the agent reports as not true. Its message has the remedy.
fn condition(node: &str, condition: &Condition, log: &str) -> Option<Finding> {
    if condition.status == ConditionStatus::True {
        return None;
    }
    let Condition { kind, reason, message, .. } = condition;
    let what = format!("{node}: {kind} is not true ({reason}): {message}");
    let remedy = format!("as the message says; kubectl describe gpunode {node}; {log}");
    Some(match (kind.as_str(), condition.status) {
        (
            Condition::READY | Condition::GPUS_HEALTHY | Condition::UNCONTESTED | Condition::CONNECTED,
            ConditionStatus::False,
        ) => Finding::failure(what, remedy),
        _ => Finding::warning(what, remedy),
    })
}

/// An agent of a version that does not connect to the extender. It is a failure, because the extender binds no pods to
/// its node.
fn never_connected(seen: &Observed, node: &str, status: &GpuNodeStatus) -> Option<Finding> {
    let namespace = &seen.namespace;
    status.condition(Condition::CONNECTED).is_none().then(|| {
        Finding::failure(
            format!("{node}: its agent is of a version that does not connect to the extender: the node takes no pods"),
            format!("update the agents: helm upgrade, then kubectl -n {namespace} rollout status daemonset/{AGENT}"),
        )
    })
}

fn is_contested(status: &GpuNodeStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|it| it.kind == Condition::UNCONTESTED && it.status != ConditionStatus::True)
}

fn sick(node: &str, gpu: &GpuStatus) -> Option<Finding> {
    let (index, message) = (gpu.index, gpu.message.as_ref()?);
    Some(Finding::failure(
        format!("{node}: GPU {index} ({}): {message}", gpu.uuid),
        format!(
            "as the message says; nvidia-smi -q -i {index} on the node; if it stays, drain the node and reset the GPU: nvidia-smi --gpu-reset -i {index}"
        ),
    ))
}

fn serves_nothing(node: &str, gpu: &GpuStatus, spec: &GpuNodeSpec) -> Option<Finding> {
    let index = gpu.index;
    if gpu.message.is_some() || !gpu.kinds.is_empty() {
        return None;
    }
    let rule = spec.policy.rule(index, &gpu.uuid, gpu.pci_bus_id.as_ref(), &gpu.model);
    let kinds: Vec<&str> = rule.kinds.iter().map(|kind| kind.as_str()).collect();
    let is_on = !gpu.profiles.is_empty();
    let (mode, switch) = if is_on { ("on", "0") } else { ("off", "1") };
    let only_mig = rule.kinds == [Kind::Mig];
    let may = match rule.mode_change {
        ModeChange::Never => "the policy's modeChange: never keeps the agent from switching it",
        ModeChange::WithoutReset | ModeChange::WithReset => "the agent switches it when the GPU is empty",
    };
    let what = format!(
        "{node}: GPU {index} serves nothing: policy allows {} and its MIG mode is {mode}; {may}",
        if kinds.is_empty() { "no kind".to_owned() } else { kinds.join(", ") }
    );
    let remedy = if only_mig || is_on {
        format!(
            "on the node, with the GPU empty: nvidia-smi -i {index} -mig {switch}; or set modeChange: without-reset in the node's GpuNodePolicy"
        )
    } else {
        "allow a kind that the GPU can serve in the node's GpuNodePolicy".to_owned()
    };
    Some(Finding::warning(what, remedy))
}

fn left_over(seen: &Observed, managed: &BTreeSet<&str>) -> Option<Finding> {
    let names: Vec<String> =
        seen.gpu_nodes.all().iter().map(GpuNode::name).map(|name| name.to_string()).collect();
    let left: Vec<&str> = names.iter().map(String::as_str).filter(|name| !managed.contains(name)).collect();
    (!left.is_empty()).then(|| {
        Finding::warning(
            format!("there are GpuNodes of nodes that are not kerf's: {}", listed(&left)),
            format!(
                "kerf release puts back what their agents set: kerf release --namespace {} NODE, node by node, which also deletes the \
                 GpuNode; where the node is no longer in the cluster: kubectl delete gpunode {}",
                seen.namespace,
                left.join(" ")
            ),
        )
    })
}
