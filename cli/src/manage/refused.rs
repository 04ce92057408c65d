//! Why a node is not handed over, with the remedy.

use crate::uninstall::job::AGENT;
use thiserror::Error;

/// Why a node is not handed over, or not yet. Finished steps stay, so that the next run continues from there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Refused {
    #[error(
        "there is no DaemonSet {AGENT} in namespace {0}; install kerf first (kerf check --pre says how), or name the namespace that it is \
         installed in by --kerf-namespace"
    )]
    NoAgents(String),
    #[error(
        "DaemonSet {AGENT} in namespace {namespace} leaves out node {node} also with the label kerf.dev/managed=true; set \
         managedNodes.labelled=true in the chart's values, then run this again"
    )]
    NotSelected { node: String, namespace: String },
    /// The node's kubelet would not start the agent.
    #[error(
        "node {0} is not ready, so kerf's agent cannot start there; run this again when it is: kubectl get node {0}"
    )]
    NotReady(String),
    #[error(
        "node {node} is being given back by Job {job} in namespace {namespace}; let `kerf release {node}` end, then run this again"
    )]
    BeingReleased { node: String, namespace: String, job: String },
    #[error(
        "NVIDIA's MIG manager changes the GPUs of node {node} at the moment (label {label}={value}); run this again when it has ended: \
         kubectl get node {node} -L {label}"
    )]
    MigManagerBusy { node: String, label: String, value: String },
    #[error(
        "{programs} would go on to manage the GPUs of node {node}, and no label of GPU Operator keeps it away. Make it leave out nodes of \
         kerf, in the values that it was installed with, or by: {commands}. This restarts its own pods and ends no other. Then run this \
         again"
    )]
    Conflicting { node: String, programs: String, commands: String },
    #[error(
        "pods hold GPUs of node {node}: {pods}. Let them end: kerf manage {node} --cordon --wait=1h; or drain the node: kubectl drain \
         {node} --ignore-daemonsets; then run this again. The labels of the node are as they were"
    )]
    Held { node: String, pods: String },
    #[error(
        "{programs} has not left node {node}, though its labels keep it away; look at its pods (kubectl get pods -A --field-selector \
         spec.nodeName={node}), then run this again"
    )]
    ConflictingStays { node: String, programs: String },
    #[error(
        "node {node} has its labels, and kerf's agent does not serve it yet: {why}. kerf check says what is wrong; then run this again"
    )]
    NotServed { node: String, why: String },
}
