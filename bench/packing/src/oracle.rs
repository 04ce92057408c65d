//! The oracle accepts a job whenever all running jobs fit if everything may be moved.

use std::collections::BinaryHeap;

use kerf_cli::simulate::replay::End;

use crate::jobs::Job;
use crate::profile::{PerProfile, Profile};
use crate::report::as_f64;

/// The tolerance for rounding of fractional counts.
const EPSILON: f64 = 1e-9;

/// Whether these counts of instances fit into `gpus` GPUs if everything may be moved. It is exact for whole numbers;
/// for fractions it says whether the fluid fits.
///
/// The GPUs that no `7g` takes are split into halves. A left half takes a `4g`, a `3g` or two pairs of memory slices. A
/// right half takes a `3g`, or a pair and two slices, the second of which only a `1g.20gb` can use. So a `4g` goes left
/// and a `3g` right, and a `1g.20gb` takes the odd slices before it takes a pair.
pub fn fits(counts: &PerProfile<f64>, gpus: f64) -> bool {
    let [one, one_twenty, two, three, four, seven] = *counts;
    let whole = gpus - seven;
    if whole < 0.0 || four > whole {
        return false;
    }
    let right = three.min(whole);
    let left = three - right;
    if four + left > whole + EPSILON {
        return false;
    }
    let singles = whole - right;
    let pairs = 2.0 * (whole - four - left) + (whole - right) - two;
    let odd = one_twenty.min(singles);
    let (singles, pairs) = (singles - odd, pairs - (one_twenty - odd));
    pairs >= -EPSILON && singles + 2.0 * pairs >= one - EPSILON
}

/// The number of GPUs that these shares of a job need if jobs are a fluid.
pub fn gpus_needed(shares: &PerProfile<f64>) -> f64 {
    let mut below_seven = *shares;
    let seven = std::mem::take(&mut below_seven[Profile::Seven.index()]);
    let (mut low, mut high) = (0.0, 1.0);
    while !fits(&below_seven, high) {
        high *= 2.0;
    }
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if fits(&below_seven, middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    seven + high
}

/// The number of jobs in the warm-up: the first quarter of a list, which is not counted.
pub fn warm_up(jobs: usize) -> usize {
    jobs / 4
}

/// How many jobs of each profile the oracle accepts after the warm-up.
pub fn accepted(jobs: &[Job], gpus: usize) -> PerProfile<u32> {
    let warm = warm_up(jobs.len());
    let mut ends: BinaryHeap<End> = BinaryHeap::new();
    let (mut held, mut accepted) = (PerProfile::<f64>::default(), PerProfile::default());
    for (number, job) in jobs.iter().enumerate() {
        while ends.peek().is_some_and(|End(at, _)| *at <= job.arrival) {
            if let Some(End(_, profile)) = ends.pop() {
                held[profile] -= 1.0;
            }
        }
        let profile = job.profile.index();
        held[profile] += 1.0;
        if fits(&held, as_f64(gpus)) {
            accepted[profile] += u32::from(number >= warm);
            ends.push(End(job.arrival + job.life, profile));
        } else {
            held[profile] -= 1.0;
        }
    }
    accepted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The counts of every set of instances that one GPU can have.
    fn one_gpu() -> BTreeSet<PerProfile<u32>> {
        let mut found = BTreeSet::new();
        let mut open = vec![(0_u8, PerProfile::<u32>::default())];
        while let Some((mask, counts)) = open.pop() {
            if !found.insert((mask, counts)) {
                continue;
            }
            for profile in Profile::ALL {
                for start in profile.starts() {
                    if mask & profile.mask(*start) == 0 {
                        let mut counts = counts;
                        counts[profile.index()] += 1;
                        open.push((mask | profile.mask(*start), counts));
                    }
                }
            }
        }
        found.into_iter().map(|(_, counts)| counts).collect()
    }

    fn sums(a: &BTreeSet<PerProfile<u32>>, b: &BTreeSet<PerProfile<u32>>) -> BTreeSet<PerProfile<u32>> {
        let sum = |a: &PerProfile<u32>, b: &PerProfile<u32>| std::array::from_fn(|n| a[n] + b[n]);
        a.iter().flat_map(|a| b.iter().map(move |b| sum(a, b))).collect()
    }

    #[test]
    fn what_fits_is_what_brute_force_can_place() {
        let one = one_gpu();
        let two = sums(&one, &one);
        let mut checked = 0;
        for (gpus, placeable) in [(1, &one), (2, &two)] {
            let most =
                |profile: Profile| placeable.iter().map(|counts| counts[profile.index()]).max().unwrap() + 1;
            let mut counts = vec![PerProfile::<u32>::default()];
            for profile in Profile::ALL {
                let grown = |counts: PerProfile<u32>| {
                    (0..=most(profile)).map(move |n| {
                        let mut counts = counts;
                        counts[profile.index()] = n;
                        counts
                    })
                };
                counts = counts.into_iter().flat_map(grown).collect();
            }
            for counts in counts {
                assert_eq!(
                    fits(&counts.map(f64::from), f64::from(gpus)),
                    placeable.contains(&counts),
                    "{counts:?}"
                );
                checked += 1;
            }
        }
        assert!(checked > 50_000);
    }

    #[test]
    fn a_fluid_needs_parts_of_gpus() {
        let only = |profile: Profile| Profile::ALL.map(|p| f64::from(u8::from(p == profile)));
        assert!((gpus_needed(&only(Profile::Seven)) - 1.0).abs() < 1e-6);
        assert!((gpus_needed(&only(Profile::Four)) - 1.0).abs() < 1e-6);
        assert!((gpus_needed(&only(Profile::Three)) - 0.5).abs() < 1e-6);
        assert!((gpus_needed(&only(Profile::OneTen)) - 1.0 / 7.0).abs() < 1e-6);
    }

    #[test]
    fn the_oracle_refuses_what_does_not_fit_and_counts_after_the_warm_up() {
        let job = |arrival, profile| Job { arrival, life: 10.0, profile };
        let jobs = [
            job(0.0, Profile::Four),
            job(1.0, Profile::Four),
            job(2.0, Profile::Three),
            job(10.0, Profile::Four),
        ];
        assert_eq!(accepted(&jobs, 1), [0, 0, 0, 1, 1, 0]);
    }
}
