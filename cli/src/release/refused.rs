//! Why a node is not given back, with the remedy.

use crate::uninstall::job::AGENT;
use thiserror::Error;

/// Why a node is not given back, or not yet. Finished steps stay, so that the next run continues from there.
#[derive(Debug, Error)]
pub(super) enum Refused {
    #[error(
        "node {0} is not kerf's: none of its labels says so, and it has no GpuNode; kubectl get gpunodes lists those that are"
    )]
    NotManaged(String),
    /// The node's kubelet would not start the Job.
    #[error(
        "node {0} is not ready, so nothing can be put back there; run this again when it is: kubectl get node {0}"
    )]
    NotReady(String),
    /// The Job has no template, because it is made of the agents' `DaemonSet`.
    #[error(
        "there is no DaemonSet {AGENT} in namespace {0}, which says how a node is left; name the namespace that kerf is installed in \
         by --kerf-namespace"
    )]
    NoAgents(String),
    #[error(
        "pods hold slices of node {node}, or have reservations there: {pods}. Drain it (kubectl drain {node} --ignore-daemonsets), or cordon \
         it and let them end: --wait=1h waits for that; then run this again. Nothing was done"
    )]
    Held { node: String, pods: String },
    #[error(
        "pods hold slices of node {node}, or have reservations there, and no agent is there to see them end: {pods}. Let it come back: \
         kubectl label node {node} kerf.dev/managed=true --overwrite; then drain the node (kubectl drain {node} --ignore-daemonsets), \
         and run this again"
    )]
    HeldUnseen { node: String, pods: String },
    #[error(
        "cannot read which pods hold slices of node {node}: {why}; mend the GpuNode: kubectl get gpunode {node} -o yaml"
    )]
    Unreadable { node: String, why: String },
    #[error(
        "the agent on node {node} has not ended: kubectl -n {namespace} get pods -l app.kubernetes.io/name={AGENT} -o wide. The affinity of \
         DaemonSet {AGENT} must leave out nodes with kerf.dev/managed=false, as the chart's does; then run this again"
    )]
    AgentStays { node: String, namespace: String },
    #[error(
        "not all was put back on node {node} in time. Why: kubectl -n {namespace} logs job/{job}; kubectl -n {namespace} describe job \
         {job}. The Job goes on; run this again"
    )]
    NotPutBack { node: String, namespace: String, job: String },
    #[error(
        "Job {job} of an earlier run does not go; what keeps it: kubectl -n {namespace} get job {job} -o yaml"
    )]
    EarlierJob { namespace: String, job: String },
}
