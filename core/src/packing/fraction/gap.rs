//! The value of a gap on a GPU: the part of a GPU that future shares can make of it, at the prices at which the
//! requested shares just pay for the GPUs that they need.
//!
//! The prices are the duals of the fluid cutting stock problem (fewest GPUs for shares in these proportions), solved by
//! Gilmore and Gomory's column generation (1961). A share that always finds a gap is free, and a share that fills half
//! a GPU is worth half of one. A gap of 190 thousandths that no usual share can use is worth nothing, so kerf loses
//! nothing when it fills the gap.

use super::amount::GpuMilli;
use std::collections::BTreeMap;

/// Only this many sizes count, the most frequent ones, because the work grows with the square of their number.
pub(super) const SIZES_LIMIT: usize = 64;

/// Rounds of column generation; 20 sizes take about 50. An early stop makes the prices only slightly too high or too
/// low.
const ROUNDS_LIMIT: usize = 1000;

/// The tolerance in comparisons of prices.
const EPSILON: f64 = 1e-9;

/// The value of every gap from 0 to 1000 thousandths, in thousandths of a whole GPU's value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GapValues(Vec<f64>);

impl GapValues {
    /// Computes the values from the number of requests for each size.
    pub(super) fn from_counts(counts: &BTreeMap<GpuMilli, f64>) -> Self {
        let mut sizes: Vec<(GpuMilli, f64)> = counts.iter().map(|(size, count)| (*size, *count)).collect();
        sizes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        sizes.truncate(SIZES_LIMIT);
        let unit =
            sizes.iter().fold(GpuMilli::WHOLE.0, |unit, (size, _)| greatest_common_divisor(unit, size.0));
        let knapsack = Knapsack {
            gpu: usize::from(GpuMilli::WHOLE.0 / unit),
            sizes: sizes.iter().map(|(size, _)| usize::from(size.0 / unit)).collect(),
        };
        let counts: Vec<f64> = sizes.iter().map(|(_, count)| *count).collect();
        let best = knapsack.fill(&prices(&knapsack, &counts));
        let whole = best.value[knapsack.gpu];
        // Only a free GPU is worth something, because without shares no size has a price.
        if whole <= 0.0 {
            return Self(
                (0..=GpuMilli::WHOLE.0).map(|left| if left < 1000 { 0.0 } else { 1000.0 }).collect(),
            );
        }
        let unit = usize::from(unit);
        Self((0..=1000).map(|left: usize| 1000.0 * best.value[left / unit] / whole).collect())
    }

    /// The value of a gap, in thousandths of a GPU.
    pub(super) fn value(&self, left: GpuMilli) -> f64 {
        self.0[usize::from(left.0.min(GpuMilli::WHOLE.0))]
    }
}

fn greatest_common_divisor(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// The sizes and the GPU, in the greatest unit that divides them all.
struct Knapsack {
    gpu: usize,
    sizes: Vec<usize>,
}

/// For each size of gap: the greatest value that fits, and the last item of that filling.
struct Filled {
    value: Vec<f64>,
    last: Vec<Option<usize>>,
}

impl Knapsack {
    fn fill(&self, prices: &[f64]) -> Filled {
        let (mut value, mut last) = (vec![0.0_f64; self.gpu + 1], vec![None; self.gpu + 1]);
        for gap in 1..=self.gpu {
            value[gap] = value[gap - 1];
            for (item, (size, price)) in self.sizes.iter().zip(prices).enumerate() {
                if *size <= gap && value[gap - size] + price > value[gap] + 1e-12 {
                    value[gap] = value[gap - size] + price;
                    last[gap] = Some(item);
                }
            }
        }
        Filled { value, last }
    }

    /// The number of each item on the GPU of the greatest value.
    fn pattern(&self, filled: &Filled) -> Vec<f64> {
        let (mut pattern, mut gap) = (vec![0.0; self.sizes.len()], self.gpu);
        while gap > 0 {
            match filled.last[gap] {
                Some(item) => {
                    pattern[item] += 1.0;
                    gap -= self.sizes[item];
                }
                None => gap -= 1,
            }
        }
        pattern
    }
}

/// A basis of the cutting stock problem: its inverse, and the number of GPUs cut by each of its patterns.
struct Basis {
    inverse: Vec<Vec<f64>>,
    used: Vec<f64>,
}

/// The price of each size if a GPU costs 1.
fn prices(knapsack: &Knapsack, counts: &[f64]) -> Vec<f64> {
    let mut basis = Basis::start(knapsack, counts);
    for _ in 0..ROUNDS_LIMIT {
        let filled = knapsack.fill(&basis.prices());
        if filled.value[knapsack.gpu] <= 1.0 + EPSILON || !basis.enter(&knapsack.pattern(&filled)) {
            break;
        }
    }
    basis.prices()
}

impl Basis {
    /// The start: patterns of a single size, as often as a GPU holds it.
    fn start(knapsack: &Knapsack, counts: &[f64]) -> Self {
        let most: Vec<f64> =
            knapsack.sizes.iter().map(|size| super::amount::real((knapsack.gpu / size) as u64)).collect();
        let row = |i: usize| (0..most.len()).map(|j| if i == j { 1.0 / most[i] } else { 0.0 }).collect();
        Self {
            inverse: (0..most.len()).map(row).collect(),
            used: counts.iter().zip(&most).map(|(count, most)| count / most).collect(),
        }
    }

    fn prices(&self) -> Vec<f64> {
        (0..self.used.len()).map(|size| self.inverse.iter().map(|row| row[size]).sum()).collect()
    }

    /// One step of the simplex method: the pattern enters, and the first one that reaches zero leaves. `false` if none
    /// does.
    fn enter(&mut self, pattern: &[f64]) -> bool {
        let direction: Vec<f64> =
            self.inverse.iter().map(|row| row.iter().zip(pattern).map(|(a, b)| a * b).sum()).collect();
        let ratios = direction.iter().zip(&self.used).map(|(d, used)| used / d);
        let falling = ratios.enumerate().filter(|(row, _)| direction[*row] > EPSILON);
        let Some((out, step)) = falling.min_by(|a, b| a.1.total_cmp(&b.1)) else { return false };
        self.used.iter_mut().zip(&direction).for_each(|(used, d)| *used -= step * d);
        self.used[out] = step;
        let pivot: Vec<f64> = self.inverse[out].iter().map(|x| x / direction[out]).collect();
        for (row, d) in self.inverse.iter_mut().zip(&direction) {
            row.iter_mut().zip(&pivot).for_each(|(x, p)| *x -= d * p);
        }
        self.inverse[out] = pivot;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(counts: &[(u16, f64)]) -> GapValues {
        GapValues::from_counts(&counts.iter().map(|(size, count)| (GpuMilli(*size), *count)).collect())
    }

    #[track_caller]
    fn check(counts: &[(u16, f64)], expected: &[(u16, f64)]) {
        let values = values(counts);
        for (left, value) in expected {
            let found = values.value(GpuMilli(*left));
            assert!((found - value).abs() < 1e-6, "a gap of {left} is worth {found}, not {value}");
        }
    }

    #[test]
    fn a_share_that_fills_half_a_gpu_is_worth_half_a_gpu() {
        check(
            &[(470, 10.0)],
            &[(0, 0.0), (460, 0.0), (470, 500.0), (530, 500.0), (940, 1000.0), (1000, 1000.0)],
        );
    }

    #[test]
    fn a_share_that_always_finds_a_gap_is_free() {
        // Ten shares of 810 leave ten gaps of 190 for only five shares of 160.
        check(&[(810, 10.0), (160, 5.0)], &[(190, 0.0), (809, 0.0), (810, 1000.0)]);
    }

    #[test]
    fn a_share_with_too_few_gaps_is_paid_for_by_whole_gpus() {
        // Forty shares of 160 need more than ten gaps. Six of the others fit on a GPU, so a gap of 190 is worth a sixth
        // of one.
        check(&[(810, 10.0), (160, 40.0)], &[(190, 1000.0 / 6.0), (810, 5000.0 / 6.0), (1000, 1000.0)]);
    }

    #[test]
    fn only_a_whole_gpu_has_a_value_without_shares() {
        check(&[], &[(0, 0.0), (999, 0.0), (1000, 1000.0)]);
    }

    #[test]
    fn a_bigger_gap_is_never_worth_less() {
        let values = values(&[
            (50, 7.0),
            (125, 24.0),
            (320, 30.0),
            (333, 3.0),
            (470, 75.0),
            (650, 25.0),
            (810, 108.0),
        ]);
        assert!(values.0.is_sorted());
        assert!((values.0[1000] - 1000.0).abs() < 1e-6);
    }

    #[test]
    fn no_filling_of_a_gpu_is_worth_more_than_a_gpu() {
        // The first patterns hold one size each, so a mix of sizes is worth more until it has entered the basis.
        let knapsack = Knapsack { gpu: 1000, sizes: vec![50, 125, 320, 333, 470, 650, 810] };
        let prices = prices(&knapsack, &[7.0, 24.0, 30.0, 3.0, 75.0, 25.0, 108.0]);
        let most = knapsack.fill(&prices).value[knapsack.gpu];
        assert!((most - 1.0).abs() < 1e-6, "a GPU holds shares worth {most} GPUs");
    }

    #[test]
    fn a_filling_has_an_item_at_each_of_its_places() {
        let knapsack = Knapsack { gpu: 4, sizes: vec![3, 1] };
        assert_eq!(knapsack.pattern(&knapsack.fill(&[0.6, 0.4])), [0.0, 4.0]);
        assert_eq!(knapsack.pattern(&knapsack.fill(&[0.8, 0.2])), [1.0, 1.0]);
    }

    #[test]
    fn a_pattern_that_enters_takes_the_place_of_the_first_that_it_uses_up() {
        let mut basis = Basis { inverse: vec![vec![1.0, 0.0], vec![0.0, 1.0]], used: vec![3.0, 4.0] };
        assert!(basis.enter(&[1.0, 2.0]));
        assert_eq!(basis.used, [1.0, 2.0]);
        assert_eq!(basis.inverse, [[1.0, -0.5], [0.0, 0.5]]);
    }

    #[test]
    fn what_is_within_the_tolerance_counts_as_nothing() {
        let filled = Knapsack { gpu: 1, sizes: vec![1] }.fill(&[1e-12]);
        assert_eq!(filled.last, [None, None]);
        let enters = |direction: f64| Basis { inverse: vec![vec![direction]], used: vec![1.0] }.enter(&[1.0]);
        assert!(!enters(EPSILON) && enters(2.0 * EPSILON));
    }
}
