//! Checks continuously that a slice never has two holders, and that no held slice is destroyed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kerf_nvml_mock::{GpuState, MockState};
use tokio::task::JoinHandle;

use crate::kubelet::{PodKey, StandInKubelet};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Devices, with the resource names and pods that hold them.
pub(super) type Held = BTreeMap<String, BTreeSet<(String, PodKey)>>;

/// Checks until it is dropped.
pub(super) struct Guard {
    seen: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

impl Guard {
    pub(super) fn over(kubelet: Arc<StandInKubelet>, state: PathBuf) -> Self {
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let found = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            loop {
                let violations = look(&kubelet, &state);
                found.lock().unwrap_or_else(PoisonError::into_inner).extend(violations);
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        Self { seen, task }
    }

    /// The violations since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *seen).into_iter().collect()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Which pods hold which devices, as the kubelet allocated them.
pub(super) fn held(kubelet: &StandInKubelet) -> Held {
    let mut held = Held::new();
    for (pod, devices) in kubelet.allocations() {
        for (name, ids) in devices {
            for id in ids {
                held.entry(id).or_default().insert((name.clone(), pod.clone()));
            }
        }
    }
    held
}

fn look(kubelet: &StandInKubelet, state: &Path) -> Vec<String> {
    let before = held(kubelet);
    // The file is missing before the agent's first call.
    let Ok(state) = MockState::load(state) else { return Vec::new() };
    let after = held(kubelet);
    // A pod that holds the device before and after also held it while the state was read.
    let mut meanwhile = before;
    meanwhile.retain(|device, holders| after.get(device).is_some_and(|now| now.is_superset(holders)));
    violations(&state, &meanwhile)
}

/// Violations in a state of the GPUs and what is held of them.
pub(super) fn violations(state: &MockState, held: &Held) -> Vec<String> {
    let real: BTreeSet<&str> = state
        .gpus
        .iter()
        .flat_map(|gpu| &gpu.instances)
        .flat_map(|i| &i.compute)
        .map(|c| c.uuid.as_str())
        .collect();
    let twice = held.iter().filter(|(_, holders)| holders.len() > 1);
    let twice = twice.map(|(device, holders)| format!("{device} has {} holders: {holders:?}", holders.len()));
    let gone =
        held.iter().filter(|(device, _)| device.starts_with("MIG-") && !real.contains(device.as_str()));
    let gone = gone.map(|(device, holders)| format!("{device} was destroyed while held by {holders:?}"));
    let illegal = state.gpus.iter().flat_map(GpuState::violations);
    twice.chain(gone).chain(illegal).chain(state.gpus.iter().flat_map(|gpu| shared(gpu, held))).collect()
}

/// Violations among the shares of a GPU.
fn shared(gpu: &GpuState, held: &Held) -> Vec<String> {
    let here = held.iter().filter(|(device, _)| device.starts_with(&format!("{}::", gpu.uuid)));
    let names: Vec<&str> = here.flat_map(|(_, holders)| holders).map(|(name, _)| name.as_str()).collect();
    let mut found = Vec::new();
    if names.is_empty() {
        return found;
    }
    if gpu.mig.current {
        found.push(format!("MIG mode was switched on on {} while {names:?} are held", gpu.uuid));
    }
    let memory: u64 =
        names.iter().map(|name| gigabytes(name).map_or(gpu.model.total_mib(), |gb| gb * 1024)).sum();
    let kinds: BTreeSet<&str> = names.iter().map(|name| kind(name)).collect();
    if memory > gpu.model.total_mib() || kinds.len() > 1 {
        found.push(format!("{names:?} are held of {} together", gpu.uuid));
    }
    found
}

fn kind(name: &str) -> &'static str {
    match name {
        "nvidia.com/gpu" => "whole",
        name if name.ends_with(".shared") => "time-slicing",
        _ => "mps",
    }
}

/// The N of a name like `nvidia.com/gpu-Ngb…`.
fn gigabytes(name: &str) -> Option<u64> {
    name.strip_prefix("nvidia.com/gpu-")?.split("gb").next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_nvml_mock::{MigMode, MockConfig, Model};

    fn held(entries: &[(&str, &str, &str)]) -> Held {
        let mut held = Held::new();
        for (device, name, pod) in entries {
            let holder = ((*name).to_owned(), PodKey::new("default", *pod));
            held.entry((*device).to_owned()).or_default().insert(holder);
        }
        held
    }

    #[test]
    fn a_forbidden_state_is_found() {
        let gpus = MockConfig::new().gpus(Model::L4, 1, MigMode::Disabled);
        let state = MockState::first_boot(&gpus).unwrap();
        let share = |n: u32| format!("{}::{n}", state.gpus[0].uuid);
        let (one, two) = (share(1), share(2));
        let (ten, slice) = ("nvidia.com/gpu-10gb", "nvidia.com/gpu-10gb.shared");
        for (count, what, entries) in [
            (0, "all is well", vec![(one.as_str(), ten, "a"), (&two, ten, "b")]),
            (1, "two holders", vec![(&one, ten, "a"), (&one, ten, "b")]),
            (1, "two kinds", vec![(&one, ten, "a"), (&two, slice, "b")]),
            (1, "more than there is", vec![(&one, "nvidia.com/gpu-24gb", "a")]),
            (1, "destroyed", vec![("MIG-1", "nvidia.com/mig-1g.10gb", "a")]),
        ] {
            assert_eq!(violations(&state, &held(&entries)).len(), count, "{what}");
        }
    }
}
