//! Replays a job list on a fleet with the extender's decisions, job by job. A job that cannot be placed is lost.

use super::jobs::Job;
use kerf_core::contract::ContainerRequest;
use kerf_core::mig::MigTable;
use kerf_core::packing::{Choice, Fleet, FleetGpu, PlaceId, Terms};
use serde::{Serialize, Serializer};
use serde_json::json;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub job: usize,
    pub moved: Option<(usize, Place)>,
    /// The place; `None` if the job is lost.
    pub place: Option<Place>,
}

impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let moved = self.moved.map(|(job, to)| json!({"job": job, "place": to}));
        json!({"job": self.job, "moved": moved, "place": self.place}).serialize(serializer)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Place {
    pub gpu: usize,
    pub start: u8,
}

/// The form is that which `packing_judge.py` reads.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((other, to)) = self.moved {
            writeln!(f, "{} move {other} {} {}", self.job, to.gpu, to.start)?;
        }
        match self.place {
            Some(place) => write!(f, "{} place {} {}", self.job, place.gpu, place.start),
            None => write!(f, "{} reject", self.job),
        }
    }
}

pub struct Replay {
    fleet: Fleet,
    gpus: Vec<FleetGpu>,
    numbers: HashMap<FleetGpu, usize>,
    running: HashMap<(FleetGpu, PlaceId), usize>,
    places: HashMap<usize, (FleetGpu, PlaceId)>,
    ends: BinaryHeap<End>,
    moves_per_job: f64,
    jobs: usize,
    moves: usize,
}

/// A job's end. The order is reversed, because the heap returns the greatest first. Of equal ends the first job's
/// counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct End(pub f64, pub usize);

impl Eq for End {}

impl Ord for End {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0).then(other.1.cmp(&self.1))
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Replay {
    /// A fleet of `gpus` uncut GPUs with this table. Any job may be moved, but there are at most `moves_per_job` moves
    /// per job that has arrived.
    #[must_use]
    pub fn new(table: &MigTable, gpus: usize, terms: Terms, moves_per_job: f64) -> Self {
        let mut fleet = Fleet::new(terms);
        let gpus: Vec<FleetGpu> = (0..gpus).filter_map(|_| fleet.add(table, [], [])).collect();
        let numbers = gpus.iter().copied().zip(0..).collect();
        let (running, places, ends) = (HashMap::new(), HashMap::new(), BinaryHeap::new());
        Self { fleet, gpus, numbers, running, places, ends, moves_per_job, jobs: 0, moves: 0 }
    }

    #[must_use]
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        self.fleet.fragmentation()
    }

    pub fn arrive(&mut self, job: &Job) -> Decision {
        let number = self.jobs;
        self.jobs += 1;
        // Ends come first, because a job that ends at this moment makes room for the one that arrives.
        self.end_until(job.arrival);
        let class = self.fleet.class(&ContainerRequest::exact(job.profile));
        let (mut place, mut moved) = (self.fleet.best(class), None);
        if place.is_none() && self.may_move() {
            let running = &self.running;
            let found = self.fleet.best_eviction(
                class,
                |gpu, place| running.contains_key(&(gpu, place)),
                |_, _| true,
            );
            if let Some(found) = found {
                moved =
                    self.restart((found.gpu, found.victim), found.to, found.new, (found.gpu, found.choice));
                place = Some((found.gpu, found.choice));
            }
        }
        if let Some((gpu, choice)) = place {
            if moved.is_none() {
                self.fleet.take(gpu, choice);
            }
            self.start(number, gpu, choice.place);
            self.ends.push(End(job.arrival + job.duration, number));
        }
        let place = place.map(|(gpu, choice)| self.place(gpu, choice.place));
        Decision { job: number, moved, place }
    }

    fn may_move(&self) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "counts of jobs are far below 2^52")]
        let (next, jobs) = ((self.moves + 1) as f64, self.jobs as f64);
        next <= self.moves_per_job * jobs
    }

    /// Moves a job, and takes the place that becomes free. The fleet must take both in the order in which they were
    /// chosen.
    fn restart(
        &mut self,
        from: (FleetGpu, PlaceId),
        to: FleetGpu,
        new: Choice,
        opened: (FleetGpu, Choice),
    ) -> Option<(usize, Place)> {
        let job = self.running.remove(&from)?;
        self.fleet.release(from.0, from.1);
        self.fleet.take(opened.0, opened.1);
        self.fleet.take(to, new);
        self.start(job, to, new.place);
        self.moves += 1;
        Some((job, self.place(to, new.place)))
    }

    fn start(&mut self, job: usize, gpu: FleetGpu, place: PlaceId) {
        self.running.insert((gpu, place), job);
        self.places.insert(job, (gpu, place));
    }

    fn end_until(&mut self, now: f64) {
        while self.ends.peek().is_some_and(|End(at, _)| *at <= now) {
            let Some(End(_, job)) = self.ends.pop() else { return };
            if let Some((gpu, place)) = self.places.remove(&job) {
                self.running.remove(&(gpu, place));
                self.fleet.release(gpu, place);
            }
        }
    }

    fn place(&self, gpu: FleetGpu, place: PlaceId) -> Place {
        let start = self.fleet.instance(gpu, place).placement.start;
        Place { gpu: self.numbers.get(&gpu).copied().unwrap_or(usize::MAX), start }
    }
}
