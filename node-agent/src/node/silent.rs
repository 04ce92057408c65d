//! GPUs that the node had and that have not answered since the agent was started, or have told less of themselves than
//! before: for a while they are waited for, and the status stays as it was. What pods hold of them is not given up for a
//! call that has failed.

use super::Node;
use super::health::Neighbour;
use crate::gpu::{Gpu, MigMode};
use kerf_core::contract::GpuStatus;
use std::time::{Duration, Instant};

/// How long: a driver that is just being loaded needs a few seconds for each GPU.
const PATIENCE: Duration = Duration::from_secs(20);

impl Node {
    /// Takes NVML for ill while such a GPU is waited for. Gives the time at which that ends.
    pub(super) fn await_silent(&mut self, now: Instant) -> Option<Instant> {
        let gpus = self.before.iter().flat_map(|before| &before.gpus);
        let is_whole = |before: &GpuStatus| self.gpu(&before.uuid).is_some_and(|now| tells_all(now, before));
        let silent = gpus.into_iter().find(|before| !is_whole(before))?.index;
        if self.health.nvml.is_well() {
            let until = *self.silent_until.get_or_insert(now + PATIENCE);
            if now < until {
                let text = format!("GPU {silent} has not answered in full since the agent was started");
                self.health.nvml = Neighbour::Ill(text);
            }
        }
        self.silent_until.filter(|until| now < *until)
    }
}

/// Whether MIG offers what it did before, if its mode is still on.
fn tells_all(now: &Gpu, before: &GpuStatus) -> bool {
    let lists = |profile| now.table.as_ref().is_some_and(|table| table.entry(profile).is_some());
    match now.mig {
        MigMode::Unsupported => before.profiles.is_empty(),
        mode if mode.is_on() => before.profiles.entries().iter().all(|entry| lists(entry.profile)),
        MigMode::Settled(_) | MigMode::Pending(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Scene, mig, wanted, wanted_of};
    use super::*;
    use kerf_core::contract::SliceState;
    use kerf_core::names::SliceId;

    /// The slices that the status tells of with their states, and whether the agent serves.
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
        // The second is in use no more and stays cut.
        scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
        scene.settle();
        let (before, _) = shown(&mut scene);
        let status = scene.decide().status;
        scene.restart_agent(Some(&status));
        scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
        let all = scene.gpus.gpus();
        scene.node.on_observed(Ok(all[..1].to_vec()));
        assert_eq!(shown(&mut scene), (before.clone(), false));
        assert!(scene.decide().wants_observation);
        let (mut without_mig, mut cut_short) = (all.clone(), all.clone());
        without_mig[1] =
            Gpu { mig: MigMode::Unsupported, table: None, instances: Vec::new(), ..all[1].clone() };
        let few = all[1].table.as_ref().unwrap().entries()[..2].to_vec();
        cut_short[1].table = Some(kerf_core::mig::MigTable::new(few));
        for partial in [without_mig, cut_short] {
            scene.node.on_observed(Ok(partial));
            assert_eq!(shown(&mut scene), (before.clone(), false));
        }
        scene.node.on_observed(Ok(all));
        assert_eq!(shown(&mut scene), (before, true));
    }

    #[test]
    fn one_that_stays_away_is_given_up() {
        let mut scene = Scene::new(&["H100-80GB", "H100-80GB"]);
        scene.settle();
        let status = scene.decide().status;
        scene.restart_agent(Some(&status));
        scene.want(Vec::new());
        let all = scene.gpus.gpus();
        scene.node.on_observed(Ok(all[..1].to_vec()));
        assert!(!shown(&mut scene).1);
        scene.now += PATIENCE;
        scene.node.on_observed(Ok(all[..1].to_vec()));
        assert!(shown(&mut scene).1);
        assert_eq!(scene.decide().status.gpus.len(), 1);
    }
}
