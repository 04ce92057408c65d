//! Unresponsive GPUs: the node had them, and since the agent's start they have not answered, or report less of
//! themselves than before. For a while the agent waits for them, so that a failed call does not cost pods what they
//! hold.
//!
//! A GPU that stays unresponsive is taken out of service, and what runs on it is not touched: CUDA may work while a
//! call of NVML fails.

use super::health::Neighbour;
use super::{Node, WantedDaemon, share};
use crate::gpu::{Gpu, MigMode, Silent};
use kerf_core::contract::{Reservation, WantedSlice};
use kerf_core::mig::Profile;
use kerf_core::names::{DeviceId, GpuUuid};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long the agent waits. A driver that is just being loaded needs a few seconds for each GPU.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The reason that slices on an unresponsive GPU show.
pub(super) const TEXT: &str = "its GPU has not answered since the agent was started";

/// What is not touched, wanted or not: everything on GPUs that may be the unresponsive ones, and on those whose shares
/// are unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spared {
    /// GPUs whose MPS daemons and limits stay.
    pub gpus: BTreeSet<GpuUuid>,
    /// Devices whose files stay, so that containers can open them.
    pub devices: BTreeSet<DeviceId>,
}

impl Node {
    /// Takes which GPUs have never answered, by index.
    pub fn on_silent(&mut self, silent: Silent) {
        self.silent = silent;
    }

    /// The GPUs that answer now.
    #[must_use]
    pub fn answering(&self) -> BTreeSet<GpuUuid> {
        self.gpus.iter().filter(|gpu| gpu.fault.is_none()).map(|gpu| gpu.uuid.clone()).collect()
    }

    /// What must not be touched. A GPU with a known MPS share has its daemon anyway.
    pub(super) fn spared(&self, daemons: &BTreeMap<GpuUuid, WantedDaemon>) -> Spared {
        let mut spared = self.spared_of_silent();
        let unknown = self.with_unknown_shares().filter(|gpu| !daemons.contains_key(*gpu));
        spared.gpus.extend(unknown.cloned());
        spared
    }

    /// What pods may hold on GPUs that do not answer. Empty once all GPUs that NVML counts have answered: what is not
    /// among them is not on the node.
    fn spared_of_silent(&self) -> Spared {
        if self.silent.is_empty() {
            return Spared::default();
        }
        let of_record = self.restored.shares.iter().flatten().map(|(device, _)| device);
        let told: BTreeSet<&DeviceId> = self
            .account
            .devices()
            .map(|(device, _)| device)
            .chain(of_record)
            .chain(self.shares.keys())
            .collect();
        let wanted = self.desired().iter().map(|wanted| &wanted.gpu);
        let known = self.had.iter().chain(&self.restored.mig_on).chain(wanted).cloned();
        let known = known.chain(told.iter().filter_map(|device| share::gpu_of(device)));
        let gpus: BTreeSet<GpuUuid> = known.filter(|uuid| self.gpu(uuid).is_none()).collect();
        let is_of_them = |device: &DeviceId| match share::gpu_of(device) {
            Some(gpu) => gpus.contains(&gpu),
            None => self.gpu_of(device).is_none(),
        };
        let devices = told.into_iter().chain(self.origins.keys()).filter(|device| is_of_them(device));
        Spared { devices: devices.cloned().collect(), gpus }
    }

    /// Whether a pod may hold this slice of an unresponsive GPU. Unbound pods are placed elsewhere.
    pub(super) fn is_spared(&self, wanted: &WantedSlice) -> bool {
        let is_bound =
            |promised: &Reservation| self.pods.as_ref().is_none_or(|pods| pods.contains_key(&promised.uid));
        let is_silent = !self.silent.is_empty() && self.gpu(&wanted.gpu).is_none();
        is_silent && wanted.reservation.as_ref().is_none_or(is_bound)
    }

    /// Marks NVML as ill while the agent waits for such a GPU. Returns when that ends.
    pub(super) fn await_silent(&mut self, now: Instant) -> Option<Instant> {
        let is_whole = |(uuid, before): &(&GpuUuid, &BTreeSet<Profile>)| {
            self.gpu(uuid).is_some_and(|now| tells_all(now, before))
        };
        let (silent, _) = self.awaited.iter().find(|gpu| !is_whole(gpu))?;
        if self.health.nvml.is_well() {
            let until = *self.silent_until.get_or_insert(now + TIMEOUT);
            if now < until {
                let text = format!("{silent} has not answered in full since the agent was started");
                self.health.nvml = Neighbour::Ill(text);
            }
        }
        self.silent_until.filter(|until| now < *until)
    }
}

/// Whether MIG still offers all earlier profiles, if its mode is still on.
fn tells_all(now: &Gpu, before: &BTreeSet<Profile>) -> bool {
    let lists = |profile: &Profile| now.table.as_ref().is_some_and(|table| table.entry(*profile).is_some());
    match now.mig {
        MigMode::Unsupported => before.is_empty(),
        mode if mode.is_on() => before.iter().all(lists),
        // With MIG mode off no profile is listed, so there is nothing to compare.
        MigMode::Settled(_) | MigMode::Pending(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ONE, Scene, mig, wanted, wanted_of};
    use super::super::{NodePod, NodePods};
    use super::*;
    use crate::gpu::GpuError;
    use crate::gpu::fake::uuid;
    use kerf_core::contract::{Condition, ConditionStatus, SliceState};
    use kerf_core::names::{PodKey, PodUid, SliceId};
    use std::collections::BTreeMap;

    /// The slices of the status with their states, and whether the agent serves.
    fn shown(scene: &mut Scene) -> (Vec<(Option<SliceId>, SliceState)>, bool) {
        let status = scene.decide().status;
        let slices = status.slices.iter().map(|slice| (slice.id.clone(), slice.state));
        (slices.collect(), status.is_ready())
    }

    #[test]
    fn what_is_on_a_gpu_that_does_not_answer_at_the_start_keeps_its_state_and_its_name() {
        let mut scene = Scene::new(&["H100-80GB", "H100-80GB"]);
        scene.want(vec![
            wanted("s1", mig("1g.10gb", 0, 1), None),
            wanted_of(1, "s2", mig("1g.10gb", 0, 1), None),
        ]);
        scene.settle();
        // The second slice is no longer in use and stays cut.
        scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
        scene.settle();
        let (before, _) = shown(&mut scene);
        scene.decide();
        scene.start_agent();
        let all = scene.gpus.gpus();
        scene.node.on_observed(Ok(all[..1].to_vec()));
        scene.node.on_registration(Ok(scene.node.resource_names()));
        scene.node.on_pods(NodePods::new());
        scene.list_holders();
        scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
        assert!(!shown(&mut scene).1 && scene.node.closed().is_some());
        assert!(scene.decide().wants_observation);
        let (mut without_mig, mut cut_short) = (all.clone(), all.clone());
        without_mig[1] =
            Gpu { mig: MigMode::Unsupported, table: None, instances: Vec::new(), ..all[1].clone() };
        let few = all[1].table.as_ref().unwrap().entries()[..2].to_vec();
        cut_short[1].table = Some(kerf_core::mig::MigTable::new(few));
        for partial in [without_mig, cut_short] {
            scene.node.on_observed(Ok(partial));
            assert!(!shown(&mut scene).1);
        }
        scene.node.on_observed(Ok(all));
        assert_eq!(shown(&mut scene), (before, true));
    }

    #[test]
    fn one_that_stays_away_is_given_up() {
        let mut scene = Scene::new(&["H100-80GB", "H100-80GB"]);
        scene.settle();
        scene.decide();
        scene.restart_agent();
        scene.want(Vec::new());
        let all = scene.gpus.gpus();
        scene.node.on_observed(Ok(all[..1].to_vec()));
        assert!(!shown(&mut scene).1);
        scene.now += TIMEOUT;
        scene.node.on_observed(Ok(all[..1].to_vec()));
        assert!(shown(&mut scene).1);
        assert_eq!(scene.decide().status.gpus.len(), 1);
    }

    /// Two GPUs, each with a slice of `a`. Then the agent restarts, and the second GPU does not answer.
    fn restarted_without_the_second(silent: Silent, bound: bool) -> Scene {
        let mut scene = Scene::new(&["H100-80GB", "H100-80GB"]);
        let promised = Some(("a", ONE));
        let wants = vec![
            wanted("s1", mig("1g.10gb", 0, 1), promised),
            wanted_of(1, "s2", mig("1g.10gb", 0, 1), promised),
        ];
        scene.want(wants.clone());
        scene.settle();
        for device in ["MIG-1", "MIG-2"] {
            scene.allocate("a", ONE, device);
        }
        scene.settle();
        scene.decide();
        scene.settings.access = true;
        scene.restart_agent();
        scene.node.on_silent(silent);
        let pod = NodePod {
            key: PodKey::new("ns", "a"),
            admitted: true,
            names: [(ONE.parse().unwrap(), 1)].into(),
            inits: BTreeSet::new(),
            requested: BTreeMap::new(),
            assigned: Vec::new(),
        };
        scene.node.on_pods(bound.then(|| (PodUid::new("a-uid"), pod)).into_iter().collect());
        scene.want(wants);
        for _ in 0..2 {
            scene.node.on_observed(Ok(scene.gpus.gpus()[..1].to_vec()));
            scene.decide();
            scene.now += TIMEOUT;
        }
        scene
    }

    #[test]
    fn what_pods_have_of_a_gpu_that_stays_silent_is_left_alone_and_told() {
        let silent = || Silent::from([(1, GpuError::Stopped)]);
        let mut scene = restarted_without_the_second(silent(), true);
        let decision = scene.decide();
        let spared = decision.kept.unwrap().spared;
        assert_eq!(spared.gpus, [uuid(1)].into());
        assert_eq!(spared.devices, [DeviceId::new("MIG-2")].into());
        let status = decision.status;
        assert!(status.is_ready());
        assert_eq!(status.slice(&SliceId::new("s2")).unwrap().state, SliceState::Held);
        let healthy = status.conditions.iter().find(|c| c.kind == Condition::GPUS_HEALTHY).unwrap();
        assert!(healthy.status == ConditionStatus::False && healthy.message.contains("GPU 1"), "{healthy:?}");
        // Now the GPU answers.
        scene.node.on_silent(Silent::new());
        scene.observe();
        assert_eq!(scene.decide().kept.unwrap().spared, Spared::default());
        // An unbound pod is placed elsewhere, and so is every pod once all GPUs that NVML counts have answered.
        for (silent, bound) in [(silent(), false), (Silent::new(), true)] {
            let mut scene = restarted_without_the_second(silent, bound);
            let status = scene.decide().status;
            assert_eq!(status.slice(&SliceId::new("s2")).unwrap().state, SliceState::Failed);
        }
    }
}
