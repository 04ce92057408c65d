//! The reasons why a policy refuses a request. Each text names the request, the allowed values and the nearest request
//! that would work.

use crate::kind::{IsolationClass, Kind};
use crate::resource::ResourceName;
use crate::units::SizeGb;
use thiserror::Error;

/// Why a policy refuses a request; the webhook returns its text to the user.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Denied {
    /// The policy forbids the isolation class that the pod asks for.
    #[error(
        "metadata.annotations[kerf.dev/isolation]: policy {policy} does not allow {class}; it allows {allowed}"
    )]
    Class {
        /// Name of the policy that matches the pod.
        policy: String,
        /// The class that the pod asks for, or the policy's default.
        class: IsolationClass,
        /// The classes that the policy allows, separated by commas.
        allowed: String,
    },
    /// The policy has `spec.deny`, so its pods get no GPU.
    #[error(
        "policy {policy} gives this pod no GPU: {reason}; ask an admin of the cluster, who writes kerf's policies"
    )]
    Nothing {
        /// Name of the policy that matches the pod.
        policy: String,
        /// The reason that the admin wrote into `spec.deny`.
        reason: String,
    },
    /// None of the GPU models that the pod accepts is allowed.
    #[error("{}", beyond(asked, not, policy, allowed))]
    Models {
        /// The models that the pod names, separated by commas; empty if it names none.
        asked: String,
        /// The models that the pod excludes, separated by commas.
        not: String,
        /// Name of the policy that matches the pod.
        policy: String,
        /// The models that the policy allows, separated by commas.
        allowed: String,
    },
    /// The policy's `kindsByModel` leaves no GPU model for a container's request.
    #[error(
        "container {container}: policy {policy} allows no GPU model for {what} among those that the pod may have ({models}); ask for another isolation class, ask for one kind in all containers, or name other models in metadata.annotations[kerf.dev/gpu-model]"
    )]
    NoModel {
        /// Name of the container that cannot be served.
        container: String,
        /// The kinds, or the resource name, that the container asks for.
        what: String,
        /// Name of the policy that matches the pod.
        policy: String,
        /// The models that the pod and its policy leave, or `any`.
        models: String,
    },
    /// The pod's `nodeSelector` contradicts the policy's.
    #[error(
        "spec.nodeSelector[{key}]: the pod selects nodes with {found:?}, and policy {policy} allows those with {wanted:?} only; remove it, or write {wanted:?}"
    )]
    Nodes {
        /// Key of the node label that both select by.
        key: String,
        /// The value in the pod's `spec.nodeSelector`.
        found: String,
        /// The value in the policy's `spec.nodeSelector`.
        wanted: String,
        /// Name of the policy that matches the pod.
        policy: String,
    },
    /// One container asks for more slices than `spec.maxCount`.
    #[error(
        "container {container}: {count} slices are more than the {max} that policy {policy} allows; ask for {max} or fewer, or for larger ones"
    )]
    Count {
        /// Name of the container that asks for them.
        container: String,
        /// The number of slices that the container asks for.
        count: u32,
        /// The policy's `spec.maxCount`, in slices.
        max: u32,
        /// Name of the policy that matches the pod.
        policy: String,
    },
    /// A slice is smaller than the policy's `sizes.minGb`.
    #[error(
        "container {container}: {size} is less than the {min} that policy {policy} allows; ask for {min}"
    )]
    TooSmall {
        /// Name of the container that asks for the slice.
        container: String,
        /// The nominal size that the container asks for.
        size: SizeGb,
        /// The smallest size that the policy allows.
        min: SizeGb,
        /// Name of the policy that matches the pod.
        policy: String,
    },
    /// A slice is larger than the policy's `sizes.maxGb`.
    #[error(
        "container {container}: {size} is more than the {max} that policy {policy} allows; ask for {max} or less"
    )]
    TooLarge {
        /// Name of the container that asks for the slice.
        container: String,
        /// The nominal size that the container asks for.
        size: SizeGb,
        /// The largest size that the policy allows.
        max: SizeGb,
        /// Name of the policy that matches the pod.
        policy: String,
    },
    /// The pod asks for more memory in all than `maxPerPod.memoryGb`.
    #[error(
        "the pod asks for {memory} GB of GPU memory in all{counted}, more than the {max} GB that policy {policy} allows one pod; ask for {max} GB or less, or make several pods of it"
    )]
    PodMemory {
        /// The memory of all slices that the pod holds at a time, in nominal GB.
        memory: u32,
        /// How the sum counts names without a size; empty if the pod has none.
        counted: String,
        /// The policy's `maxPerPod.memoryGb`, in nominal GB.
        max: u32,
        /// Name of the policy that matches the pod.
        policy: String,
    },
    /// The pod asks for more slices in all than `maxPerPod.slices`.
    #[error(
        "the pod asks for {slices} slices in all, more than the {max} that policy {policy} allows one pod; ask for {max} or fewer, or make several pods of it"
    )]
    PodSlices {
        /// The number of slices that the pod holds at a time.
        slices: u32,
        /// The policy's `maxPerPod.slices`, in slices.
        max: u32,
        /// Name of the policy that matches the pod.
        policy: String,
    },
    /// The kind that the container names isolates less than its class requires.
    #[error(
        "container {container}: {resource} does not give isolation {class} under policy {policy}, which serves it by {kinds}; ask by size or for another class"
    )]
    Kind {
        /// Name of the container that names the kind.
        container: String,
        /// The resource name that the container would get.
        resource: ResourceName,
        /// The isolation class that holds for the pod.
        class: IsolationClass,
        /// Name of the policy that matches the pod.
        policy: String,
        /// The kinds that serve the class under this policy, separated by commas.
        kinds: String,
    },
    /// No kind of the class can have this size on any GPU.
    #[error(
        "container {container}: no slice of kind {kinds} can have {size}; ask for {most} or less, or for another class"
    )]
    Size {
        /// Name of the container that asks for the size.
        container: String,
        /// The nominal size that the container asks for.
        size: SizeGb,
        /// The kinds that serve the class, separated by commas.
        kinds: String,
        /// The largest size that these kinds can have.
        most: SizeGb,
    },
    /// No kind of the class guarantees a share of compute.
    #[error(
        "container {container}: {percent} % of a GPU's compute needs kind mig or mps, and isolation {class} allows only {kinds}; ask for isolation memory or hardware, or for no share of compute"
    )]
    Compute {
        /// Name of the container that asks for compute.
        container: String,
        /// The share of a GPU's compute that it asks for, in percent.
        percent: u8,
        /// The isolation class that holds for the pod.
        class: IsolationClass,
        /// The kinds that serve the class, separated by commas.
        kinds: String,
    },
    /// One container asks for several replicas, which give it no more than one.
    #[error(
        "container {container}: {count} of {resource} ({kind}) give no more than one: {why}, and NVIDIA's device plugin refuses more than one where it is set to; ask for one, of the size that is needed",
        kind = Kind::label(.resource.kind()),
        why = if .resource.kind() == Some(Kind::Mig) { "a process uses one MIG device" } else { "each has a limit of its own" }
    )]
    Replicas {
        /// Name of the container that asks for them.
        container: String,
        /// The number of replicas that the container asks for.
        count: u32,
        /// The resource name of the replicas.
        resource: ResourceName,
    },
    /// A `DeviceClass` maps the name to DRA, so kube-scheduler would not call kerf for it.
    #[error(
        "container {container}: DeviceClass {class} maps {resource} to DRA (spec.extendedResourceName), so the scheduler would not ask kerf for it; ask by size, for instance by metadata.annotations[kerf.dev/gpu-memory], or ask an admin to remove the field from the class; while the chart's webhook.neutralNames is off, or no agent of this version runs, kerf has no other name for a size"
    )]
    Mapped {
        /// Name of the container that would carry the name.
        container: String,
        /// The resource name that the container would carry.
        resource: ResourceName,
        /// Name of the `DeviceClass` that maps the resource name.
        class: String,
    },
    /// A dialect's key asks for several different GPUs, and each kind of the class gives a process one slice only.
    #[error(
        "container {container}: {by} asks for {count} different GPUs, and policy {policy} serves isolation {class} by {kinds}; a process uses one MIG instance or one MPS daemon{compute}; {instead}, or ask an admin to add {missing} to spec.isolation.{class}"
    )]
    DistinctGpus {
        /// Name of the container that asks for several GPUs.
        container: Box<str>,
        /// The number of different GPUs that the container asks for.
        count: u32,
        /// The key that asks for them, with its value.
        by: Box<str>,
        /// The isolation class that holds for the pod.
        class: IsolationClass,
        /// Name of the policy that matches the pod.
        policy: Box<str>,
        /// The kinds that serve the class, separated by commas.
        kinds: Box<str>,
        /// Why time slices cannot serve it, if they cannot; else empty.
        compute: &'static str,
        /// A request that would work instead.
        instead: Box<str>,
        /// The kinds that an admin could add to the class.
        missing: &'static str,
    },
}

/// The text of [`Denied::Models`]. It names HAMi's annotations too, because a pod may select models by them.
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
