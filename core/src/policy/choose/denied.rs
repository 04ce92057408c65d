//! Why a policy refuses a request: what was asked, what is allowed, and the nearest that would work.

use crate::kind::{IsolationClass, Kind};
use crate::resource::ResourceName;
use crate::units::SizeGb;
use thiserror::Error;

/// Why a policy refuses a request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Denied {
    /// The class is not allowed.
    #[error(
        "metadata.annotations[kerf.dev/isolation]: policy {policy} does not allow {class}; it allows {allowed}"
    )]
    Class {
        /// The policy.
        policy: String,
        /// What was asked.
        class: IsolationClass,
        /// What would be allowed.
        allowed: String,
    },
    /// The policy gives its pods nothing.
    #[error(
        "policy {policy} gives this pod no GPU: {reason}; ask an admin of the cluster, who writes kerf's policies"
    )]
    Nothing {
        /// The policy.
        policy: String,
        /// Why.
        reason: String,
    },
    /// The pod wants other models than are allowed.
    #[error("{}", beyond(asked, not, policy, allowed))]
    Models {
        /// The models that it names.
        asked: String,
        /// The models that it excludes.
        not: String,
        /// The policy.
        policy: String,
        /// The models that would be allowed.
        allowed: String,
    },
    /// No model that the pod may have is for what a container asks.
    #[error(
        "container {container}: policy {policy} allows no GPU model for {what} among those that the pod may have ({models}); ask for another isolation class, ask for one kind in all containers, or name other models in metadata.annotations[kerf.dev/gpu-model]"
    )]
    NoModel {
        /// The container.
        container: String,
        /// The kinds, or the name, that it asks for.
        what: String,
        /// The policy.
        policy: String,
        /// The models that are left.
        models: String,
    },
    /// The pod wants other nodes than are allowed.
    #[error(
        "spec.nodeSelector[{key}]: the pod selects nodes with {found:?}, and policy {policy} allows those with {wanted:?} only; remove it, or write {wanted:?}"
    )]
    Nodes {
        /// The label.
        key: String,
        /// What the pod says.
        found: String,
        /// What the policy says.
        wanted: String,
        /// The policy.
        policy: String,
    },
    /// Too many slices in one container.
    #[error(
        "container {container}: {count} slices are more than the {max} that policy {policy} allows; ask for {max} or fewer, or for larger ones"
    )]
    Count {
        /// The container.
        container: String,
        /// What was asked.
        count: u32,
        /// The most.
        max: u32,
        /// The policy.
        policy: String,
    },
    /// A slice is smaller than is allowed.
    #[error(
        "container {container}: {size} is less than the {min} that policy {policy} allows; ask for {min}"
    )]
    TooSmall {
        /// The container.
        container: String,
        /// What was asked.
        size: SizeGb,
        /// The least.
        min: SizeGb,
        /// The policy.
        policy: String,
    },
    /// A slice is larger than is allowed.
    #[error(
        "container {container}: {size} is more than the {max} that policy {policy} allows; ask for {max} or less"
    )]
    TooLarge {
        /// The container.
        container: String,
        /// What was asked.
        size: SizeGb,
        /// The most.
        max: SizeGb,
        /// The policy.
        policy: String,
    },
    /// Too much memory in one pod.
    #[error(
        "the pod asks for {memory} GB of GPU memory in all{counted}, more than the {max} GB that policy {policy} allows one pod; ask for {max} GB or less, or make several pods of it"
    )]
    PodMemory {
        /// What was asked, in nominal GB.
        memory: u32,
        /// How names without a size are counted; empty where there are none.
        counted: String,
        /// The most.
        max: u32,
        /// The policy.
        policy: String,
    },
    /// Too many slices in one pod.
    #[error(
        "the pod asks for {slices} slices in all, more than the {max} that policy {policy} allows one pod; ask for {max} or fewer, or make several pods of it"
    )]
    PodSlices {
        /// What was asked.
        slices: u32,
        /// The most.
        max: u32,
        /// The policy.
        policy: String,
    },
    /// The kind that the user named does not keep the class's promise.
    #[error(
        "container {container}: {resource} does not give isolation {class} under policy {policy}, which serves it by {kinds}; ask by size or for another class"
    )]
    Kind {
        /// The container.
        container: String,
        /// What was asked.
        resource: ResourceName,
        /// The class.
        class: IsolationClass,
        /// The policy.
        policy: String,
        /// The kinds that serve the class.
        kinds: String,
    },
    /// No kind of the class can hold this size on any GPU.
    #[error(
        "container {container}: no slice of kind {kinds} can have {size}; ask for {most} or less, or for another class"
    )]
    Size {
        /// The container.
        container: String,
        /// What was asked.
        size: SizeGb,
        /// The kinds that serve the class.
        kinds: String,
        /// The most that they can have.
        most: SizeGb,
    },
    /// No kind of the class fences compute.
    #[error(
        "container {container}: {percent} % of a GPU's compute needs kind mig or mps, and isolation {class} allows only {kinds}; ask for isolation memory or hardware, or for no share of compute"
    )]
    Compute {
        /// The container.
        container: String,
        /// What was asked.
        percent: u8,
        /// The class.
        class: IsolationClass,
        /// The kinds that serve the class.
        kinds: String,
    },
    /// Several replicas.
    #[error(
        "container {container}: {count} of {resource} ({kind}) give no more than one: {why}, and NVIDIA's device plugin refuses more than one where it is told to; ask for one, of the size that is needed",
        kind = Kind::label(.resource.kind()),
        why = if .resource.kind() == Some(Kind::Mig) { "a process uses one MIG device" } else { "each has a limit of its own" }
    )]
    Replicas {
        /// The container.
        container: String,
        /// What was asked.
        count: u32,
        /// The name.
        resource: ResourceName,
    },
    /// The scheduler serves the name by DRA.
    #[error(
        "container {container}: DeviceClass {class} maps {resource} to DRA (spec.extendedResourceName), so the scheduler would not ask kerf for it; ask by size, for instance by metadata.annotations[kerf.dev/gpu-memory], or ask an admin to remove the field from the class; while the chart's webhook.neutralNames is off, or no agent of this version runs, kerf has no other name for a size"
    )]
    Mapped {
        /// The container.
        container: String,
        /// What it would carry.
        resource: ResourceName,
        /// The `DeviceClass`.
        class: String,
    },
    /// Several GPUs, in another system's words, by kinds of which a process uses one slice.
    #[error(
        "container {container}: {by} asks for {count} different GPUs, and policy {policy} serves isolation {class} by {kinds}; a process uses one MIG instance or one MPS daemon{compute}; {instead}, or ask an admin to add {missing} to spec.isolation.{class}"
    )]
    DistinctGpus {
        /// The container.
        container: Box<str>,
        /// How many GPUs.
        count: u32,
        /// The key that asked and what it says.
        by: Box<str>,
        /// The class.
        class: IsolationClass,
        /// The policy.
        policy: Box<str>,
        /// The kinds that serve the class.
        kinds: Box<str>,
        /// Why time slices do not serve it, where that is so; else empty.
        compute: &'static str,
        /// What to ask for instead.
        instead: Box<str>,
        /// The kinds by which the class could serve it.
        missing: &'static str,
    },
}

/// Why the pod's models leave none of the policy's. kerf's keys hold beside HAMi's.
fn beyond(asked: &str, not: &str, policy: &str, allowed: &str) -> String {
    if asked.is_empty() {
        return format!(
            "metadata.annotations[kerf.dev/gpu-model-not], or HAMi's nvidia.com/nouse-gputype, excludes every model that policy {policy} allows ({allowed}); remove one of these from it"
        );
    }
    let without = if not.is_empty() { String::new() } else { format!(", without {not}") };
    format!(
        "metadata.annotations[kerf.dev/gpu-model], or HAMi's nvidia.com/use-gputype, names {asked}{without}, and policy {policy} allows {allowed}; name one of these, or remove the annotation"
    )
}
