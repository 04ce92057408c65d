//! Checks that a node has settled: all desired slices exist, and NVML, `GpuNode.status`, the kubelet and the
//! CDI specifications agree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kerf_core::contract::{ConditionStatus, GpuNodeStatus, Shape, SliceState, SliceStatus, WantedSlice};
use kerf_nvml_mock::{GpuInstance, GpuState, MockState};

use super::guard::Held;
use super::leader::Leader;
use crate::kubelet::DevicesByResource;

/// The state of a node, from all its sources.
pub(super) struct Look<'a> {
    /// The slices of the agent's ledger.
    pub(super) desired: &'a [WantedSlice],
    pub(super) leader: &'a Leader,
    /// The status that the agent published in the GpuNode.
    pub(super) status: &'a GpuNodeStatus,
    pub(super) state: &'a MockState,
    pub(super) held: Held,
    /// Healthy devices that the kubelet may allocate.
    pub(super) offered: DevicesByResource,
    pub(super) cdi: BTreeSet<String>,
}

/// The devices for which kerf wrote a CDI specification.
pub(super) fn specified(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| Some(name.strip_prefix("kerf.dev-")?.strip_suffix(".json")?.to_owned())).collect()
}

impl Look<'_> {
    /// The differences to a settled node; empty if the node has settled.
    pub(super) fn complaints(&self) -> Vec<String> {
        let mut found = self.conditions();
        found.extend(self.desired.iter().filter_map(|wanted| self.missing(wanted)));
        found.extend(self.leaked());
        found.extend(self.holders());
        found.extend(self.offers());
        let known: BTreeSet<String> = self.known().map(|(device, _)| device.to_owned()).collect();
        if known != self.cdi {
            found.push(format!(
                "{} and the CDI specifications differ",
                difference("status", &known, &self.cdi)
            ));
        }
        found
    }

    fn conditions(&self) -> Vec<String> {
        let ill = self.status.conditions.iter().filter(|c| c.status != ConditionStatus::True);
        let mut found: Vec<String> = ill.map(|c| format!("not {}: {}", c.kind, c.message)).collect();
        if !self.status.is_ready() {
            found.push("the agent is not ready".to_owned());
        }
        let reported = self.leader.status().slices;
        let is_missing = |slice: &&SliceStatus, of: &[SliceStatus]| !of.contains(slice);
        let shown = self.status.slices.iter().filter(|slice| is_missing(slice, &reported));
        found.extend(shown.map(|slice| format!("people see {slice:?}, and the leader does not")));
        let reported = reported.iter().filter(|slice| is_missing(slice, &self.status.slices));
        found.extend(reported.map(|slice| format!("the leader sees {slice:?}, and people do not")));
        found
    }

    /// Why a desired slice is not as it should be; `None` if it is.
    fn missing(&self, wanted: &WantedSlice) -> Option<String> {
        let text = format!("{} ({} on {})", wanted.id, wanted.shape, wanted.gpu);
        let Some(slice) = self.status.slice(&wanted.id) else { return Some(format!("{text} has no status")) };
        let due = if wanted.reservation.is_some() { SliceState::Held } else { SliceState::Idle };
        if slice.state != due {
            let why = slice.message.as_deref().unwrap_or("no reason given");
            return Some(format!("{text} is {:?} and not {due:?}: {why}", slice.state));
        }
        let is_there = match wanted.shape {
            Shape::Mig { .. } => {
                slice.device.as_ref().is_some_and(|device| self.is_cut(wanted, device.as_str()))
            }
            _ => slice.device.is_some(),
        };
        (!is_there).then(|| format!("{text} is {due:?}, and NVML does not have it"))
    }

    /// Whether NVML has the device at the desired place.
    fn is_cut(&self, wanted: &WantedSlice, device: &str) -> bool {
        let Some(gpu) = self.state.gpu(wanted.gpu.as_str()) else { return false };
        let Some(instance) = wanted.shape.instance() else { return false };
        gpu.instances.iter().any(|i| {
            let (start, size) = (u32::from(instance.placement.start), u32::from(instance.placement.size));
            let same_place = (i.placement.start, i.placement.size) == (start, size);
            let same_part = |c: &kerf_nvml_mock::ComputeInstance| {
                let place = (c.placement.start, c.placement.size);
                wanted.shape.part().is_none_or(|p| (u32::from(p.start), u32::from(p.compute)) == place)
            };
            let name = gpu.profile_of(i).map(|profile| profile.name.clone());
            same_place
                && name == Some(instance.profile.to_string())
                && i.compute.iter().any(|c| c.uuid == device && same_part(c))
        })
    }

    /// The devices that the status lists.
    fn known(&self) -> impl Iterator<Item = (&str, &SliceStatus)> {
        self.status.slices.iter().filter_map(|slice| Some((slice.device.as_ref()?.as_str(), slice)))
    }

    /// Instances of NVML that no pod can get, and listed devices that NVML does not have.
    fn leaked(&self) -> Vec<String> {
        let known: BTreeMap<&str, &SliceStatus> = self.known().collect();
        let mut found = Vec::new();
        let mut cut = BTreeSet::new();
        for gpu in &self.state.gpus {
            for instance in &gpu.instances {
                let name = gpu.profile_of(instance).map_or("?", |profile| profile.name.as_str());
                let text = format!("{name} at {} on {}", instance.placement.start, gpu.uuid);
                // A GPU instance without a compute instance is half a slice. It may be replaced, if the
                // status lists it with its id.
                if instance.compute.is_empty()
                    && !self.status.slices.iter().any(|s| is_half(s, gpu, instance))
                {
                    found.push(format!("leaked: {text} has no compute instance and is in no status"));
                }
                for one in &instance.compute {
                    cut.insert(one.uuid.as_str());
                    match known.get(one.uuid.as_str()) {
                        None => found.push(format!("leaked: {text} ({}) is in no status", one.uuid)),
                        // Only kerf cuts here. A slice without an id is taken for a foreign one, so the
                        // extender cannot use it.
                        Some(slice) if slice.id.is_none() => {
                            found.push(format!("leaked: {text} ({}) has lost its name", one.uuid));
                        }
                        Some(_) => {}
                    }
                }
            }
        }
        let made_up = known.keys().filter(|device| device.starts_with("MIG-") && !cut.contains(*device));
        found.extend(made_up.map(|device| format!("the status reports {device}, which NVML does not have")));
        found
    }

    /// Differences of the status and the kubelet about which pod holds which device.
    fn holders(&self) -> Vec<String> {
        let by_kubelet: BTreeSet<String> = self
            .held
            .iter()
            .flat_map(|(device, holders)| holders.iter().map(move |(_, pod)| format!("{device} by {pod}")))
            .collect();
        let holder =
            |slice: &SliceStatus| slice.holder.as_ref().map(|h| format!("{}/{}", h.namespace, h.pod));
        let held = self.known().filter_map(|(device, slice)| Some(format!("{device} by {}", holder(slice)?)));
        let by_status: BTreeSet<String> = held.collect();
        if by_kubelet == by_status {
            return Vec::new();
        }
        vec![format!("{} are held by differing accounts", difference("status", &by_status, &by_kubelet))]
    }

    /// Devices that the kubelet may allocate although no pod has a reservation for them.
    fn offers(&self) -> Vec<String> {
        let is_reserved = |slice: &SliceStatus| {
            let mut wanted = self.desired.iter().filter(|w| Some(&w.id) == slice.id.as_ref());
            slice.holder.is_some() || wanted.any(|w| w.reservation.is_some())
        };
        let may: BTreeSet<&str> =
            self.known().filter(|(_, slice)| is_reserved(slice)).map(|(device, _)| device).collect();
        let offered = self.offered.iter().flat_map(|(name, ids)| ids.iter().map(move |id| (name, id)));
        let wrong = offered.filter(|(_, id)| !may.contains(id.as_str()));
        wrong
            .map(|(name, id)| format!("the kubelet may hand out {id} as {name}, which no pod has reserved"))
            .collect()
    }
}

/// Whether the status lists a GPU instance that has no compute instance.
fn is_half(slice: &SliceStatus, gpu: &GpuState, instance: &GpuInstance) -> bool {
    let place = slice.shape.instance().map(|i| (u32::from(i.placement.start), u32::from(i.placement.size)));
    slice.gpu.as_str() == gpu.uuid
        && place == Some((instance.placement.start, instance.placement.size))
        && slice.id.is_some()
        && slice.device.is_none()
}

fn difference(name: &str, one: &BTreeSet<String>, other: &BTreeSet<String>) -> String {
    let list = |set: Vec<&String>| set.into_iter().cloned().collect::<Vec<_>>().join(", ");
    let (more, less) = (list(one.difference(other).collect()), list(other.difference(one).collect()));
    format!("{name} has [{more}] more and [{less}] less:")
}
