//! The replay: reads decisions line by line, plays them on its own board and counts the results. It is independent of
//! who made the decisions.

use std::collections::BinaryHeap;
use std::iter::Peekable;
use std::str::Lines;

use crate::board::{Board, Taken};
use crate::jobs::Job;
use crate::oracle::warm_up;
use crate::profile::{PerProfile, Profile, slices};
use crate::report::as_f64;
use kerf_cli::simulate::replay::End;

/// The result of a list of decisions.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    pub illegal: Vec<String>,
    /// Jobs of each profile that arrived after the warm-up.
    pub arrived: PerProfile<u32>,
    /// Those of them that were placed.
    pub accepted: PerProfile<u32>,
    /// Placements onto an idle instance of the profile, of the whole list.
    pub reused: u32,
    /// Placements that needed a create, of the whole list.
    pub created: u32,
    /// Running jobs that were moved, of the whole list.
    pub moved: u32,
    /// The number of jobs in the whole list.
    pub jobs: usize,
}

impl Verdict {
    /// The memory slices of these jobs, as a part of those that were asked for.
    pub fn part(&self, accepted: &PerProfile<u32>) -> f64 {
        f64::from(slices(accepted)) / f64::from(slices(&self.arrived))
    }

    /// How far the decisions are below an oracle that accepted these jobs, in percent of the memory slices asked for.
    pub fn below(&self, oracle: &PerProfile<u32>) -> f64 {
        100.0 * (self.part(oracle) - self.part(&self.accepted))
    }

    /// The part of a profile's jobs that was placed.
    pub fn accepted_of(&self, profile: Profile) -> f64 {
        let at = profile.index();
        f64::from(self.accepted[at]) / f64::from(self.arrived[at].max(1))
    }

    /// The part of the placements that needed no create.
    pub fn no_create(&self) -> f64 {
        f64::from(self.reused) / f64::from((self.reused + self.created).max(1))
    }

    pub fn moves_per_request(&self) -> f64 {
        f64::from(self.moved) / as_f64(self.jobs)
    }
}

/// One line of decisions: `J place GPU START`, `J reject` or `J move K GPU START`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Place { gpu: usize, start: u8 },
    Reject,
    Move { other: usize, gpu: usize, start: u8 },
}

fn read(line: &str) -> Option<(usize, Line)> {
    let mut words = line.split_ascii_whitespace();
    let job = words.next()?.parse().ok()?;
    let verb = words.next()?;
    let number = |word: Option<&str>| word?.parse::<usize>().ok();
    let line = match verb {
        "reject" => Line::Reject,
        "place" => Line::Place { gpu: number(words.next())?, start: words.next()?.parse().ok()? },
        "move" => Line::Move {
            other: number(words.next())?,
            gpu: number(words.next())?,
            start: words.next()?.parse().ok()?,
        },
        _ => return None,
    };
    words.next().is_none().then_some((job, line))
}

/// Plays `decisions` on `jobs` and `gpus` uncut GPUs.
pub fn judge(jobs: &[Job], gpus: usize, decisions: &str) -> Verdict {
    let mut replay = Replay {
        jobs,
        board: Board::new(gpus),
        places: vec![None; jobs.len()],
        ends: BinaryHeap::new(),
        verdict: Verdict { jobs: jobs.len(), ..Verdict::default() },
    };
    let mut lines = decisions.lines().peekable();
    for number in 0..jobs.len() {
        replay.arrive(number, &mut lines);
    }
    for line in lines {
        replay.verdict.illegal.push(format!("no job's decision: {line:?}"));
    }
    replay.verdict
}

struct Replay<'j> {
    jobs: &'j [Job],
    board: Board,
    places: Vec<Option<(usize, u8)>>,
    ends: BinaryHeap<End>,
    verdict: Verdict,
}

impl Replay<'_> {
    fn arrive(&mut self, number: usize, lines: &mut Peekable<Lines<'_>>) {
        let job = self.jobs[number];
        self.end_until(job.arrival);
        let counted = u32::from(number >= warm_up(self.jobs.len()));
        self.verdict.arrived[job.profile.index()] += counted;
        let mut decided = false;
        while let Some((_, line)) = lines.peek().and_then(|line| read(line)).filter(|(of, _)| *of == number) {
            lines.next();
            match line {
                Line::Move { other, gpu, start } => self.relocate(number, other, gpu, start),
                _ if decided => self.illegal(number, "a second decision"),
                Line::Reject => decided = true,
                Line::Place { gpu, start } => {
                    decided = true;
                    if self.take(number, number, gpu, start) {
                        self.verdict.accepted[job.profile.index()] += counted;
                        self.ends.push(End(job.arrival + job.life, number));
                    }
                }
            }
        }
        if !decided {
            self.illegal(number, "no decision");
        }
    }

    fn end_until(&mut self, now: f64) {
        while self.ends.peek().is_some_and(|End(at, _)| *at <= now) {
            let Some(End(_, job)) = self.ends.pop() else { return };
            if let Some((gpu, start)) = self.places[job].take() {
                self.board.leave(gpu, start);
            }
        }
    }

    fn relocate(&mut self, cause: usize, other: usize, gpu: usize, start: u8) {
        let Some(origin) = self.places.get_mut(other).and_then(Option::take) else {
            return self.illegal(cause, &format!("moves job {other}, which is not running"));
        };
        self.verdict.moved += 1;
        self.board.leave(origin.0, origin.1);
        if !self.take(cause, other, gpu, start) {
            // The job stays where it was. The result is ignored, because nothing can have taken its place meanwhile.
            let _ = self.board.take(origin.0, self.jobs[other].profile, origin.1);
            self.places[other] = Some(origin);
        }
    }

    fn take(&mut self, cause: usize, job: usize, gpu: usize, start: u8) -> bool {
        match self.board.take(gpu, self.jobs[job].profile, start) {
            Ok(taken) => {
                self.verdict.reused += u32::from(taken == Taken::Reused);
                self.verdict.created += u32::from(taken == Taken::Created);
                self.places[job] = Some((gpu, start));
                true
            }
            Err(fault) => {
                self.illegal(cause, &fault.to_string());
                false
            }
        }
    }

    fn illegal(&mut self, job: usize, text: &str) {
        self.verdict.illegal.push(format!("{job}: {text}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs that arrive one per time unit and stay for long.
    fn jobs(profiles: &[Profile]) -> Vec<Job> {
        let arrivals = (0..profiles.len()).map(as_f64);
        arrivals
            .zip(profiles)
            .map(|(arrival, profile)| Job { arrival, life: 100.0, profile: *profile })
            .collect()
    }

    fn faults(profiles: &[Profile], gpus: usize, decisions: &str) -> Vec<String> {
        judge(&jobs(profiles), gpus, decisions).illegal
    }

    use Profile::{Four, OneTen, Three};

    #[test]
    fn an_overlap_is_refused_and_not_accepted() {
        let verdict = judge(&jobs(&[Four, OneTen]), 1, "0 place 0 0\n1 place 0 3\n");
        assert_eq!(verdict.illegal, ["1: 1g.10gb at 0:3 overlaps a held instance"]);
        assert_eq!(verdict.accepted, [0, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn every_job_has_one_decision_in_its_turn() {
        assert_eq!(faults(&[Four, Three], 1, "0 place 0 0\n1 place 0 4"), Vec::<String>::new());
        assert_eq!(faults(&[Four, Three], 1, "0 place 0 0"), ["1: no decision"]);
        assert_eq!(faults(&[Four], 1, "0 reject\n0 place 0 0"), ["0: a second decision"]);
        let swapped = faults(&[Four, Three], 1, "1 place 0 4\n0 place 0 0");
        assert_eq!(swapped, ["0: no decision", "no job's decision: \"0 place 0 0\""]);
        assert_eq!(faults(&[Four], 1, "0 put 0 0"), ["0: no decision", "no job's decision: \"0 put 0 0\""]);
    }

    #[test]
    fn a_move_frees_the_place_that_it_leaves() {
        let verdict = judge(&jobs(&[OneTen, Four]), 1, "0 place 0 0\n1 move 0 0 6\n1 place 0 0");
        assert_eq!((verdict.illegal, verdict.moved, verdict.created), (Vec::new(), 1, 3));
        assert_eq!(
            faults(&[OneTen, Four], 1, "0 reject\n1 move 0 0 6\n1 reject"),
            ["1: moves job 0, which is not running"]
        );
        let blocked = "0 place 0 0\n1 place 0 4\n2 move 0 0 6\n2 place 0 0";
        assert_eq!(faults(&[OneTen, Three, Four], 1, blocked).len(), 2);
    }

    #[test]
    fn a_place_that_a_job_left_needs_no_create() {
        let mut list = jobs(&[Four, Four]);
        list[0].life = 1.0;
        let verdict = judge(&list, 1, "0 place 0 0\n1 place 0 0");
        assert_eq!((verdict.illegal.len(), verdict.created, verdict.reused), (0, 1, 1));
        assert!((verdict.no_create() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn jobs_count_by_their_memory_slices_after_the_warm_up() {
        let verdict =
            judge(&jobs(&[Four, Three, OneTen, OneTen]), 1, "0 reject\n1 place 0 4\n2 place 0 0\n3 reject");
        assert_eq!(verdict.arrived, [2, 0, 0, 1, 0, 0]);
        assert!((verdict.part(&verdict.accepted) - 5.0 / 6.0).abs() < 1e-9);
        assert!((verdict.below(&[2, 0, 0, 1, 0, 0]) - 100.0 / 6.0).abs() < 1e-9);
    }
}
