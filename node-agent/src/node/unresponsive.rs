//! Unresponsive GPUs: the node had them, and since the agent's start they have not answered, or report less of
//! themselves than before. For a while the agent waits for them, so that a failed call does not cost pods what they
//! hold.
//!
//! A GPU that stays unresponsive is taken out of service, and what runs on it is not touched: CUDA may work while a
//! call of NVML fails.

use crate::gpu::{Gpu, MigMode};
use kerf_core::mig::Profile;
use std::collections::BTreeSet;

/// Whether MIG still offers all earlier profiles, if its mode is still on.
pub(super) fn has_all_profiles(now: &Gpu, before: &BTreeSet<Profile>) -> bool {
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
    use super::super::inventory::EXPECTED_TIMEOUT;
    use super::super::tests::{ONE, Scene, mig, wanted, wanted_of};
    use super::super::{NodePod, NodePods, Spared};
    use super::*;
    use crate::gpu::fake::uuid;
    use crate::gpu::{GpuError, Unresponsive};
    use kerf_core::contract::{Condition, ConditionStatus, SliceState};
    use kerf_core::names::{DeviceId, PodKey, PodUid, SliceId};
    use std::collections::BTreeMap;

    /// The slices of the status with their states, and whether the agent serves.
    fn shown(scene: &mut Scene) -> (Vec<(Option<SliceId>, SliceState)>, bool) {
        let status = scene.decide().status;
        let slices = status.slices.iter().map(|slice| (slice.id.clone(), slice.state));
        (slices.collect(), status.is_ready())
    }

    #[test]
    fn slices_on_a_gpu_that_is_unresponsive_at_the_start_keep_their_states_and_names() {
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
        scene.node.on_gpus(Ok(all[..1].to_vec()));
        scene.node.on_registration(Ok(scene.node.resource_names()));
        scene.node.on_pods(NodePods::new());
        scene.list_holders();
        scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
        assert!(!shown(&mut scene).1 && scene.node.closed().is_some());
        assert!(scene.decide().next.wants_observation);
        let (mut without_mig, mut cut_short) = (all.clone(), all.clone());
        without_mig[1] =
            Gpu { mig: MigMode::Unsupported, table: None, instances: Vec::new(), ..all[1].clone() };
        let few = all[1].table.as_ref().unwrap().entries()[..2].to_vec();
        cut_short[1].table = Some(kerf_core::mig::MigTable::new(few));
        for partial in [without_mig, cut_short] {
            scene.node.on_gpus(Ok(partial));
            assert!(!shown(&mut scene).1);
        }
        scene.node.on_gpus(Ok(all));
        assert_eq!(shown(&mut scene), (before, true));
    }

    #[test]
    fn a_gpu_that_stays_unresponsive_is_taken_out_of_service() {
        let mut scene = Scene::new(&["H100-80GB", "H100-80GB"]);
        scene.settle();
        scene.decide();
        scene.restart_agent();
        scene.want(Vec::new());
        let all = scene.gpus.gpus();
        scene.node.on_gpus(Ok(all[..1].to_vec()));
        assert!(!shown(&mut scene).1);
        scene.now += EXPECTED_TIMEOUT;
        scene.node.on_gpus(Ok(all[..1].to_vec()));
        assert!(shown(&mut scene).1);
        assert_eq!(scene.decide().status.gpus.len(), 1);
    }

    /// Two GPUs, each with a slice of `a`. Then the agent restarts, and the second GPU does not answer.
    fn restarted_without_the_second(unresponsive: Unresponsive, bound: bool) -> Scene {
        let mut scene = Scene::new(&["H100-80GB", "H100-80GB"]);
        let reservation = Some(("a", ONE));
        let wants = vec![
            wanted("s1", mig("1g.10gb", 0, 1), reservation),
            wanted_of(1, "s2", mig("1g.10gb", 0, 1), reservation),
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
        scene.node.on_unresponsive(unresponsive);
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
            scene.node.on_gpus(Ok(scene.gpus.gpus()[..1].to_vec()));
            scene.decide();
            scene.now += EXPECTED_TIMEOUT;
        }
        scene
    }

    #[test]
    fn slices_on_a_gpu_that_stays_unresponsive_are_spared_and_reported() {
        let unresponsive = || Unresponsive::from([(1, GpuError::Stopped)]);
        let mut scene = restarted_without_the_second(unresponsive(), true);
        let decision = scene.decide();
        let spared = decision.slices.unwrap().spared;
        assert_eq!(spared.gpus, [uuid(1)].into());
        assert_eq!(spared.devices, [DeviceId::new("MIG-2")].into());
        let status = decision.status;
        assert!(status.is_ready());
        assert_eq!(status.slice(&SliceId::new("s2")).unwrap().state, SliceState::Held);
        let healthy = status.conditions.iter().find(|c| c.kind == Condition::GPUS_HEALTHY).unwrap();
        assert!(healthy.status == ConditionStatus::False && healthy.message.contains("GPU 1"), "{healthy:?}");
        // Now the GPU answers.
        scene.node.on_unresponsive(Unresponsive::new());
        scene.observe();
        assert_eq!(scene.decide().slices.unwrap().spared, Spared::default());
        // An unbound pod is placed elsewhere, and so is every pod once all GPUs that NVML counts have answered.
        for (unresponsive, bound) in [(unresponsive(), false), (Unresponsive::new(), true)] {
            let mut scene = restarted_without_the_second(unresponsive, bound);
            let status = scene.decide().status;
            assert_eq!(status.slice(&SliceId::new("s2")).unwrap().state, SliceState::Failed);
        }
    }
}
