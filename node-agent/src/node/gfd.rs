//! The values of NVIDIA's labels for this node, from the agent's observations and the policy.

use super::rules::{self, Rules};
use super::slices::{Share, Slices};
use crate::gpu::{Gpu, MigMode};
use kerf_core::contract::{GpuRule, MigReplicas};
use kerf_core::gfd_labels::{
    GfdLabels, InstanceProfile, LabelledDriver, LabelledGpu, LabelledInstance, labels,
};
use kerf_core::kind::Kind;
use kerf_core::mig::ComputeProfile;
use std::collections::BTreeMap;

/// The values of NVIDIA's labels, whether or not another manager writes them.
pub(super) fn gfd_labels(rules: Rules<'_>, slices: &Slices) -> GfdLabels {
    let gpus: Vec<_> = rules.all().map(|(gpu, rule)| labelled(gpu, &rule, slices)).collect();
    let turns = |rule: &GpuRule| rule.mig.time_slicing.map(MigReplicas::get);
    let instances: Vec<_> = rules.all().flat_map(|(gpu, rule)| instances(gpu, turns(&rule))).collect();
    let first = rules.inventory.gpus().first();
    let driver =
        first.map(|gpu| LabelledDriver { version: gpu.driver.version.clone(), cuda: gpu.driver.cuda });
    labels(&gpus, &instances, driver.as_ref())
}

fn labelled(gpu: &Gpu, rule: &GpuRule, slices: &Slices) -> LabelledGpu {
    let mut shares = BTreeMap::new();
    let is_share = |share: &&Share| share.gpu == gpu.uuid && share.shape.instance().is_none();
    for share in slices.shares().values().filter(is_share) {
        *shares.entry(share.shape.kind()).or_default() += 1;
    }
    LabelledGpu {
        product: gpu.product.clone(),
        memory: gpu.memory,
        capability: gpu.capability,
        pci_class: gpu.pci_class,
        mig_capable: gpu.mig != MigMode::Unsupported,
        mig_on: gpu.mig.is_on(),
        fixed: fixed_shares(rule, &shares),
        kinds: rules::kinds(gpu, rule),
        shares,
    }
}

/// The number of shares that the policy fixes: for the kind that the GPU has shares of, else for the first allowed
/// kind.
fn fixed_shares(rule: &GpuRule, shares: &BTreeMap<Kind, u32>) -> Option<u32> {
    let allowed = Kind::ALL.iter().filter(|kind| rule.kinds.contains(kind));
    let replicas = shares.keys().chain(allowed).find_map(|kind| rule.replicas(*kind));
    replicas.or_else(|| Some(rule.layout.iter().map(|slices| slices.count).sum()).filter(|sum| *sum > 0))
}

fn instances(gpu: &Gpu, turns: Option<u8>) -> impl Iterator<Item = LabelledInstance> + '_ {
    gpu.instances.iter().flat_map(move |instance| {
        instance.devices().filter_map(move |(part, _, device)| {
            let profile = instance.instance.profile;
            let profile = match part {
                Some(part) => InstanceProfile::Part(ComputeProfile::new(part.compute, profile)?),
                None => InstanceProfile::Full(profile),
            };
            let attributes = gpu.attributes.get(device).copied();
            let turns = turns.filter(|_| part.is_none());
            Some(LabelledInstance { product: gpu.product.clone(), profile, turns, attributes })
        })
    })
}
