//! Random cases. About half of their nodes are full or closed to the pod.

use kerf_core::kind::{IsolationClass, Kind};
use kerf_nvml_mock::{MigMode, MockConfig, MockState, Model};

use super::{Case, CaseGpu, CaseNode, CasePod};
use crate::random::Random;

const MODELS: [Model; 7] =
    [Model::H100, Model::A100Gb40, Model::H200, Model::A30, Model::L40S, Model::L4, Model::T4];
const ZONES: [&str; 2] = ["a", "b"];
const SIZES: [u32; 12] = [1, 2, 4, 5, 6, 8, 10, 12, 13, 20, 24, 40];
const CPUS: [u32; 3] = [4, 16, 64];

struct Dice(Random);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound)
    }

    fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// True with a probability of `percent` in a hundred.
    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

impl Case {
    /// The case of this number, which is always the same.
    #[must_use]
    pub fn random(number: u64) -> Self {
        // Consecutive seeds begin with similar numbers, so they are multiplied.
        let mut dice = Dice(Random::new((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let nodes = (0..=1 + dice.below(5)).map(|_| dice.node()).collect();
        Self { nodes, pod: dice.pod() }
    }
}

impl Dice {
    fn node(&mut self) -> CaseNode {
        let gpus = (0..=self.below(2)).map(|_| self.gpu()).collect();
        CaseNode {
            gpus,
            tainted: self.percent(30),
            cpu: self.choose(&CPUS),
            zone: self.choose(&ZONES),
            has_neighbour: self.percent(25),
            knows_neutral_names: self.percent(95),
        }
    }

    fn gpu(&mut self) -> CaseGpu {
        let model = self.choose(&MODELS);
        let by_mig = model.has_mig() && self.percent(70);
        let mode = if by_mig { MigMode::Enabled } else { MigMode::Disabled };
        let config = MockConfig::new().gpus(model, 1, mode);
        // A configuration of one GPU of a known model always boots.
        let mut state = MockState::first_boot(&config).unwrap_or_else(|error| unreachable!("{error}"));
        let fill = self.below(8);
        if by_mig {
            let plain = model.profiles().iter().filter(|profile| !profile.media_extension);
            let names: Vec<&str> = plain.map(|profile| profile.name.as_str()).collect();
            for _ in 0..fill {
                // The names are drawn without regard to free places, so a cut without one fails and is skipped.
                let _ = state.cut(0, self.choose(&names));
            }
            // Removing some instances makes holes, as after ended pods.
            state.gpus[0].instances.retain(|_| self.percent(60));
        }
        let shares = if by_mig { Vec::new() } else { self.shares(model) };
        CaseGpu { state: state.gpus.remove(0), shares }
    }

    fn shares(&mut self, model: Model) -> Vec<(Kind, u32)> {
        let total = u32::try_from(model.total_mib() / 1024).unwrap_or(0);
        let kind = self.choose(&[Kind::Mps, Kind::TimeSlicing, Kind::Whole]);
        if kind == Kind::Whole {
            return self.percent(30).then_some((kind, total)).into_iter().collect();
        }
        let mut shares = Vec::new();
        // Two GB stay free for the driver and the MPS server.
        let mut left = total.saturating_sub(2);
        for _ in 0..self.below(6) {
            let size = self.choose(&SIZES[..7]).min(left);
            if size > 0 {
                shares.push((kind, size));
                left -= size;
            }
        }
        shares
    }

    fn pod(&mut self) -> CasePod {
        let isolation = self.choose(&IsolationClass::ALL);
        let mut kinds = match isolation {
            IsolationClass::Hardware => vec![Kind::Mig, Kind::Whole],
            IsolationClass::Memory => vec![Kind::Mig, Kind::Mps, Kind::Whole],
            IsolationClass::None => vec![Kind::TimeSlicing, Kind::Mps, Kind::Mig, Kind::Whole],
        };
        let first = self.below(kinds.len());
        kinds.rotate_left(first);
        if self.percent(30) && kinds.len() > 2 {
            kinds.pop();
        }
        CasePod {
            gb: self.choose(&SIZES),
            isolation,
            kinds,
            cpu: self.choose(&[1, 8, 32]),
            zone: self.percent(30).then(|| self.choose(&ZONES)),
            apart: self.percent(30),
            tolerates: self.percent(40),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn cases_are_of_all_sorts() {
        let mut best: BTreeMap<Option<Kind>, usize> = BTreeMap::new();
        for number in 0..500 {
            let case = Case::random(number);
            let kind = case.pod.kinds.iter().copied().find(|kind| !case.nodes_with(*kind).is_empty());
            *best.entry(kind).or_default() += 1;
        }
        assert!(best.len() == 5 && best.values().all(|count| *count >= 10), "{best:?}");
    }
}
