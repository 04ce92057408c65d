//! The rules by which other projects choose places, by our reading of their sources; their programs do not run here.
//! Each gets the same jobs on the same GPUs. What else those projects do is not played.

mod best_fit;
mod das;
mod first_fit;
mod hami;
mod nos;
mod slots;

use std::collections::BinaryHeap;
use std::fmt::Write as _;

pub use best_fit::BestFit;
pub use das::Das;
pub use first_fit::FirstFit;
pub use hami::Hami;
pub use nos::Nos;

use crate::board::Board;
use crate::jobs::Job;
use crate::profile::Profile;
use kerf_cli::simulate::replay::End;

/// GPUs of a node, for the rules that choose a node first.
const GPUS_OF_A_NODE: usize = 8;

/// A rule that chooses a place.
pub trait Rule {
    /// The profile that is cut for this one: a rule that lacks a profile serves it by another.
    fn cut_as(&self, profile: Profile) -> Profile {
        profile
    }

    /// The GPU and the memory slice for one more instance. The rule may recut idle instances on the way.
    fn choose(&self, board: &mut Board, profile: Profile) -> Option<(usize, u8)>;
}

/// Plays a job list by a rule, and returns its decisions as text, a line for each job.
pub fn play(rule: &dyn Rule, jobs: &[Job], gpus: usize) -> String {
    let mut board = Board::new(gpus);
    let mut ends: BinaryHeap<End> = BinaryHeap::new();
    let mut places = vec![None; jobs.len()];
    let mut text = String::new();
    for (number, job) in jobs.iter().enumerate() {
        while ends.peek().is_some_and(|End(at, _)| *at <= job.arrival) {
            let left = ends.pop().and_then(|End(_, job)| places[job]);
            if let Some((gpu, start)) = left {
                board.leave(gpu, start);
            }
        }
        let profile = rule.cut_as(job.profile);
        let place = rule.choose(&mut board, profile);
        // Writing to a String cannot fail. The replay finds places that cannot be taken.
        let _ = match place {
            Some((gpu, start)) => writeln!(text, "{number} place {gpu} {start}"),
            None => writeln!(text, "{number} reject"),
        };
        if let Some((gpu, start)) = place.filter(|(gpu, start)| board.take(*gpu, profile, *start).is_ok()) {
            places[number] = Some((gpu, start));
            ends.push(End(job.arrival + job.life, number));
        }
    }
    text
}

/// The jobs with the profiles that a rule cuts for them, which the replay expects.
pub fn as_cut(rule: &dyn Rule, jobs: &[Job]) -> Vec<Job> {
    jobs.iter().map(|job| Job { profile: rule.cut_as(job.profile), ..*job }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::judge;
    use Profile::{Four, OneTen, OneTwenty, Seven, Three, Two};

    /// The places that a rule gives these, one after the other, if none of them ends.
    fn places(rule: &dyn Rule, gpus: usize, profiles: &[Profile]) -> Vec<Option<(usize, u8)>> {
        let mut board = Board::new(gpus);
        let mut place = |profile: &Profile| {
            let profile = rule.cut_as(*profile);
            let (gpu, start) = rule.choose(&mut board, profile)?;
            board.take(gpu, profile, start).unwrap();
            Some((gpu, start))
        };
        profiles.iter().map(&mut place).collect()
    }

    #[test]
    fn first_fit_takes_the_first_gpu_at_its_lowest_start() {
        let found = places(&FirstFit::default(), 2, &[Three, Four, OneTen, OneTen]);
        assert_eq!(found, [Some((0, 0)), Some((1, 0)), Some((0, 4)), Some((0, 5))]);
    }

    #[test]
    fn best_fit_takes_the_fullest_gpu_as_the_driver_places() {
        let found = places(&BestFit::default(), 2, &[Four, Seven, OneTen, OneTen, OneTen, OneTen]);
        assert_eq!(found, [Some((0, 0)), Some((1, 0)), Some((0, 6)), Some((0, 4)), Some((0, 5)), None]);
    }

    #[test]
    fn hami_fills_a_node_and_spreads_over_its_gpus() {
        let found = places(&Hami::default(), 16, &[OneTen, Two, Three]);
        assert_eq!(found, [Some((0, 6)), Some((1, 0)), Some((2, 4))]);
        let whole = places(&Hami::default(), 16, &[Seven; 9]);
        assert_eq!(whole[7..], [Some((7, 0)), Some((8, 0))]);
    }

    #[test]
    fn das_spreads_over_nodes_and_fills_the_first_gpu_of_a_node() {
        let found = places(&Das::default(), 16, &[OneTen, OneTen, Two, OneTen]);
        // One on each node; then the first node has as much in use as the second, and is the first of the list.
        assert_eq!(found, [Some((0, 0)), Some((8, 0)), Some((0, 2)), Some((8, 1))]);
    }

    #[test]
    fn nos_keeps_to_its_lists_of_counts() {
        // 4g, 2g and 1g is the first list with a 1g: each of them is then idle or taken.
        assert_eq!(
            places(&Nos, 1, &[OneTen, Four, Two, OneTen]),
            [Some((0, 6)), Some((0, 0)), Some((0, 4)), None]
        );
        // No list has a 1g.20gb, so a 2g.20gb serves it.
        assert_eq!(Nos.cut_as(OneTwenty), Two);
    }

    #[test]
    fn nos_fails_where_its_counts_cannot_be_placed_beside_what_is_held() {
        // The first list with a 3g beside a 1g has 3g, 2g and 1g.
        let choose = |held: u8| {
            let mut board = Board::new(1);
            board.take(0, OneTen, held).unwrap();
            Nos.choose(&mut board, Three)
        };
        assert_eq!(choose(6), Some((0, 0)));
        // A 1g at 4 leaves no half for the 2g once the 3g has the other one. nos had chosen by counts only.
        assert_eq!(choose(4), None);
    }

    #[test]
    fn nos_takes_an_idle_instance_before_it_cuts() {
        let mut board = Board::new(2);
        board.take(1, Two, 4).unwrap();
        board.leave(1, 4);
        assert_eq!(Nos.choose(&mut board, Two), Some((1, 4)));
    }

    #[test]
    fn every_rule_decides_legally() {
        let jobs = crate::jobs::Scenario::plain("", 16, 0.95).jobs(&crate::jobs::MIXES[0], 2000, 1);
        let rules: [&dyn Rule; 5] =
            [&FirstFit::default(), &BestFit::default(), &Hami::default(), &Das::default(), &Nos];
        for rule in rules {
            let verdict = judge(&as_cut(rule, &jobs), 16, &play(rule, &jobs, 16));
            assert_eq!(verdict.illegal, Vec::<String>::new());
            assert!(verdict.part(&verdict.accepted) > 0.6);
        }
    }
}
