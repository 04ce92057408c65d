//! The isolation class that holds for a pod.

use crate::kind::{IsolationClass, Kind};
use crate::packing::Asked;
use crate::policy::{Policy, Supply};
use crate::request::{PodAsk, Want};
use crate::resource::{PluginName, ResourceName};
use crate::units::SizeGb;

/// The class in the pod's annotation. Without it, the strongest class that its resource names imply and that the policy
/// serves by them; otherwise the policy's default.
pub(super) fn class(policy: &Policy, supply: &Supply, ask: &PodAsk) -> IsolationClass {
    let serves_by = |class, kind| policy.kinds(class).is_some_and(|kinds| kinds.contains(&kind));
    let by_turns = |class| {
        let mut kinds = ask.containers.iter().filter_map(|container| match container.want {
            Want::Replica => Some(Kind::TimeSlicing),
            Want::MigReplica(_) => Some(Kind::Mig),
            _ => None,
        });
        kinds.all(|kind| serves_by(class, kind))
    };
    let implied = || match ask.implied_class() {
        Some(IsolationClass::None) => Some(IsolationClass::None).filter(|class| by_turns(*class)),
        Some(IsolationClass::Memory) => [IsolationClass::Memory, IsolationClass::None]
            .into_iter()
            .find(|class| serves_by(*class, Kind::Mps)),
        Some(IsolationClass::Hardware) => class_of_gpus(policy, supply, ask)
            .or_else(|| IsolationClass::ALL.into_iter().filter(|class| serves_by(*class, Kind::Whole)).max()),
        None => None,
    };
    ask.isolation.or_else(implied).unwrap_or(policy.default_isolation())
}

/// The strongest class in which some node serves `nvidia.com/gpu`.
///
/// A pod that asks for this name without an isolation class gets what nodes offer under the name. Where NVIDIA's device
/// plugin shares GPUs, that is a replica; where the node policy divides GPUs into equal MPS shares, it is one of these.
fn class_of_gpus(policy: &Policy, supply: &Supply, ask: &PodAsk) -> Option<IsolationClass> {
    let size = policy.spec().sizes.max_gb.unwrap_or(SizeGb::ANY);
    let is_served = |kind: &Kind| {
        let Some(gpus) = policy.gpus_for(*kind, &ask.gpus) else { return false };
        if *kind == Kind::Whole {
            return supply.has_whole(&Asked::for_size(size), &gpus);
        }
        let name = ResourceName::Plugin(PluginName::Gpu, *kind);
        let is_shared = || *kind == Kind::Mps && supply.has_mps_replica(None, &gpus);
        // Replicas may all be of one GPU, so they cannot serve a request for different GPUs.
        !ask.containers.iter().any(|container| container.distinct_gpus)
            && (is_shared() || supply.fixed_least(name, &Asked::for_size(SizeGb::ANY), &gpus).is_some())
    };
    let serves =
        |class: &IsolationClass| policy.kinds(*class).is_some_and(|kinds| kinds.iter().any(is_served));
    IsolationClass::ALL.into_iter().find(serves)
}
