//! Fragmentation as FGD counts it (Weng, USENIX ATC'23): the demand for the free resources of a node.
//!
//! On a node with room for it, a usual request can use all GPUs that have room for it. A placement lowers the mean of
//! this usable amount over the usual requests. It lowers the mean by more than it takes, if it breaks room that other
//! requests need.

use super::amount::{CpuMilli, GpuMilli, real};
use super::demand::Demand;
use super::gap::SIZES_LIMIT;
use super::request::GpuDemand;
use std::collections::BTreeMap;

/// The demand for GPUs of one model, as parts of all requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    /// Requests for one GPU or a part, in the order of the sizes.
    ones: Vec<Steps>,
    /// Requests for several GPUs, by the number of GPUs.
    several: Vec<(u8, Steps)>,
}

/// The sizes of requests for one GPU or a part that are counted.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    sizes: Vec<GpuMilli>,
    /// By thousandths left: the number of sizes that fit.
    fitting: Vec<u8>,
}

/// The weight of the requests for which this much CPU is enough: pairs of CPU and weight, both rising.
#[derive(Debug, Clone, Default)]
struct Steps(Vec<(CpuMilli, f64)>);

/// The weights that count on a node with a certain amount of CPU.
pub(super) struct Uses<'m> {
    sizes: &'m Sizes,
    /// The sum of the weights of the first sizes, for requests for one GPU or a part.
    ones: [f64; SIZES_LIMIT + 2],
    wanted: &'m Wanted,
    cpu: CpuMilli,
}

impl Sizes {
    /// The most frequent parts, and the whole GPU.
    pub(super) fn from_parts(parts: &BTreeMap<GpuMilli, f64>) -> Self {
        let mut frequent: Vec<(GpuMilli, f64)> = parts.iter().map(|(size, count)| (*size, *count)).collect();
        frequent.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let parts = frequent.into_iter().take(SIZES_LIMIT).map(|(size, _)| size);
        let mut sizes: Vec<GpuMilli> = parts.chain([GpuMilli::WHOLE]).collect();
        sizes.sort_unstable();
        let fit = |left: u16| sizes.partition_point(|size| size.0 <= left);
        let fitting =
            (0..=GpuMilli::WHOLE.0).map(|left| u8::try_from(fit(left)).unwrap_or(u8::MAX)).collect();
        Self { sizes, fitting }
    }
}

impl Steps {
    fn from_weights(wanted: &BTreeMap<CpuMilli, f64>) -> Self {
        let mut sum = 0.0;
        let add = |(cpu, weight): (&CpuMilli, &f64)| {
            sum += weight;
            (*cpu, sum)
        };
        Self(wanted.iter().map(add).collect())
    }

    fn weight(&self, cpu: CpuMilli) -> f64 {
        let enough = self.0.partition_point(|(wanted, _)| *wanted <= cpu);
        if enough == 0 { 0.0 } else { self.0[enough - 1].1 }
    }
}

impl Wanted {
    pub(super) fn from_demand(demand: &Demand, model: usize, sizes: &Sizes) -> Self {
        let all = demand.count();
        let (mut ones, mut several) = (BTreeMap::new(), BTreeMap::new());
        for usual in demand.requests.iter().filter(|usual| usual.request.allows(model)) {
            let by_cpu: &mut BTreeMap<CpuMilli, f64> = match usual.request.gpus {
                GpuDemand::None => continue,
                GpuDemand::Part(part) => ones.entry(part.share()).or_default(),
                GpuDemand::Whole(count) if count.get() == 1 => ones.entry(GpuMilli::WHOLE).or_default(),
                GpuDemand::Whole(count) => several.entry(count.get()).or_default(),
            };
            *by_cpu.entry(usual.request.cpu).or_default() += usual.count / all;
        }
        Self {
            ones: sizes
                .sizes
                .iter()
                .map(|size| ones.get(size).map(Steps::from_weights).unwrap_or_default())
                .collect(),
            several: several.iter().map(|(count, by_cpu)| (*count, Steps::from_weights(by_cpu))).collect(),
        }
    }

    /// The weights that count beside this much CPU.
    pub(super) fn uses<'m>(&'m self, sizes: &'m Sizes, cpu: CpuMilli) -> Uses<'m> {
        let mut ones = [0.0; SIZES_LIMIT + 2];
        for (size, steps) in self.ones.iter().enumerate() {
            ones[size + 1] = ones[size] + steps.weight(cpu);
        }
        Uses { sizes, ones, wanted: self, cpu }
    }
}

impl Uses<'_> {
    /// The thousandths of one GPU with so much left that requests for one GPU or a part can use.
    pub(super) fn for_one(&self, left: GpuMilli) -> f64 {
        f64::from(left.0) * self.ones[usize::from(self.sizes.fitting[usize::from(left.0)])]
    }

    /// The thousandths of so many free GPUs that requests for several can use.
    pub(super) fn for_several(&self, free: usize) -> f64 {
        let fitting = self.wanted.several.iter().take_while(|(count, _)| usize::from(*count) <= free);
        1000.0 * real(free as u64) * fitting.map(|(_, steps)| steps.weight(self.cpu)).sum::<f64>()
    }
}
