//! What is due on a node without anybody asking: promises to pods that have ended or run elsewhere are given back,
//! promises follow what the kubelet did, slices that could not be made are taken out, and of idle slices there is what the
//! node's policy wants.
//!
//! It decides by what is known now, so that it may be asked after every event and again at any time.

use crate::cluster_index::{Change, IndexedNode, Released, Why};
use crate::pod::KnownPod;
use hashbrown::HashMap;
use kerf_core::contract::{GpuNodeStatus, SliceState, WantedSlice};
use kerf_core::names::{GpuUuid, NodeName, PodKey, PodUid};
use kerf_core::packing::Fleet;
use std::collections::{BTreeMap, BTreeSet};

/// Applies what is due to a node's working spec, and tells which promises were given back.
pub fn keep(
    name: &NodeName,
    node: &mut IndexedNode,
    pods: &HashMap<PodUid, KnownPod>,
    fleet: &Fleet,
) -> Vec<Released> {
    let released = give_back(name, node, pods, fleet);
    node.doubt();
    let Some(status) = node.status.as_ref().ok() else { return released };
    let mut due = Vec::new();
    if status.slices.iter().any(|s| s.holder.is_some()) {
        due.push(Change::FollowHolders { bound: bound_here(name, &node.promised_now(), pods) });
    }
    let failed = failures(node, status);
    if status.slices.iter().any(|s| s.state == SliceState::Failed) {
        due.push(Change::DropFailed);
    }
    due.push(Change::DropDisallowed);
    // One that fails at once would be cut again and again.
    let resting = node.resting.iter().cloned().chain(failed_idle(node, status)).collect();
    node.resting.clone_from(&resting);
    due.push(Change::KeepWarm { resting });
    let Ok((spec, status)) = node.readable() else { return released };
    for change in due {
        // Only reservations can be refused.
        let _unchanged = spec.push(change, Some(status), fleet);
    }
    let dropped =
        failed.iter().map(|(uid, (pod, _))| released_from(name, uid.clone(), pod.clone(), Why::SliceFailed));
    let released = released.into_iter().chain(dropped).collect();
    node.failures.extend(failed.into_iter().map(|(uid, (_, reason))| (uid, reason)));
    released
}

/// Gives back the promises to pods that have ended or are bound to another node.
fn give_back(
    name: &NodeName,
    node: &mut IndexedNode,
    pods: &HashMap<PodUid, KnownPod>,
    fleet: &Fleet,
) -> Vec<Released> {
    let mut released = Vec::new();
    for uid in node.promised_now() {
        let Some(pod) = pods.get(&uid) else { continue };
        let why = match &pod.node {
            _ if pod.ended => Why::Ended,
            Some(bound) if bound != name => Why::BoundElsewhere,
            _ => continue,
        };
        let status = node.status.as_ref().ok();
        let spec = node.spec.as_mut();
        if spec.is_ok_and(|spec| spec.push(Change::Release(uid.clone()), status, fleet) == Ok(true)) {
            released.push(released_from(name, uid, pod.key.clone(), why));
        }
    }
    released
}

fn released_from(node: &NodeName, uid: PodUid, pod: PodKey, why: Why) -> Released {
    Released { uid, pod, node: node.clone(), why }
}

fn bound_here(
    name: &NodeName,
    promised: &BTreeSet<PodUid>,
    pods: &HashMap<PodUid, KnownPod>,
) -> BTreeSet<PodUid> {
    let here = |uid: &&PodUid| pods.get(*uid).is_some_and(|pod| pod.node.as_ref() == Some(name));
    promised.iter().filter(here).cloned().collect()
}

/// The GPUs of which slices that nobody was promised could not be made.
fn failed_idle(node: &IndexedNode, status: &GpuNodeStatus) -> Vec<GpuUuid> {
    let wanted = node.working().into_iter().flat_map(|spec| &spec.slices);
    let idle = wanted.filter(|slice| slice.reservation.is_none());
    let failed =
        |slice: &&WantedSlice| status.slice(&slice.id).is_some_and(|s| s.state == SliceState::Failed);
    idle.filter(failed).map(|slice| slice.gpu.clone()).collect()
}

/// The pods whose slices could not be made, with the reason.
fn failures(node: &IndexedNode, status: &GpuNodeStatus) -> BTreeMap<PodUid, (PodKey, String)> {
    let wanted = node.working().into_iter().flat_map(|spec| &spec.slices);
    let failed = wanted.filter_map(|slice| {
        let reservation = slice.reservation.as_ref()?;
        let observed = status.slice(&slice.id).filter(|s| s.state == SliceState::Failed)?;
        let message = observed.message.as_deref().unwrap_or("the agent gives no reason");
        let reason = format!("slice {} ({}) could not be made: {message}", slice.id, slice.shape);
        Some((reservation.uid.clone(), (reservation.key(), reason)))
    });
    failed.collect()
}
