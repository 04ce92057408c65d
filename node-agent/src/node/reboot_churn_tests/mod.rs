//! Random lives of a node: it is rebooted, its agent is killed, its GPUs fall off the bus and report errors, its MPS
//! daemons die, its policy changes, its kubelet lags and calls take time. Everything runs in virtual time.
//!
//! Whatever happens, no device has two holders, nothing that is held is destroyed, nothing is offered that is not
//! reserved or held, and no GPU serves two kinds at once. Once everything has recovered, GPUs, status and kubelet
//! agree.

mod agent;
mod checks;
mod kubelet;
mod leader;
mod reconcilers;

use super::*;
use crate::gpu::fake::FakeGpus;
use agent::{Call, Disk};
use kerf_core::contract::NodePolicy;
use kerf_core::contract::{GpuNodeStatus, WantedSlice};
use kerf_core::names::DeviceId;
use kerf_core::names::GpuUuid;
use kubelet::Kubelet;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use reconcilers::Reconcilers;
use std::collections::BTreeMap;
use std::time::Duration;

const MODELS: [&str; 3] = ["H100-80GB", "A100-40GB", "T4-16GB"];

/// How many actions a life has at most, and after how many everything recovers for a while.
const LONGEST: usize = 160;
const PHASE: usize = 40;

/// Turns of everything within which all agree, 0.8 s each.
const SETTLES_WITHIN: usize = 60;

/// Counts of what has happened in lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    lives: u64,
    reboots: u64,
    restarts: u64,
    /// GPU instances and compute instances that were made or destroyed, and switches of MIG modes.
    cuts: u64,
    allocations: u64,
}

struct World {
    node: Node,
    settings: Settings,
    /// Whether pods request neutral names, each of which covers slices of several kinds.
    neutral: bool,
    gpus: FakeGpus,
    now: Instant,
    /// The current disturbances, until the world settles.
    upset: Upset,
    kubelet: Kubelet,
    policy: NodePolicy,
    /// How many pods have got a reservation.
    reserved: u64,
    /// The status that the agent has published.
    published: Option<GpuNodeStatus>,
    disk: Disk,
    calls: BTreeMap<GpuUuid, Call>,
    reconcilers: Reconcilers,
    tally: Tally,
}

#[derive(Default)]
struct Upset {
    /// Lost GPUs, and those of them that this process of the agent has never seen.
    lost: BTreeSet<u32>,
    unseen: BTreeSet<u32>,
    others: bool,
    /// A slice that somebody else has made.
    foreign: Option<DeviceId>,
    /// What was recorded at the last boot.
    recorded: Vec<WantedSlice>,
    /// Whether something may have kept a recorded slice from being made again since the boot.
    hindered: bool,
}

impl World {
    fn new(neutral: bool) -> Self {
        let settings = Settings {
            mps: Some("/mps".into()),
            access: true,
            detect_conflicts: true,
            recover_after: Duration::from_secs(5),
            ..Settings::default()
        };
        let mut world = Self {
            node: Node::new(Settings::default()),
            settings,
            neutral,
            gpus: FakeGpus::new(&MODELS),
            now: Instant::now(),
            upset: Upset { hindered: true, ..Upset::default() },
            kubelet: Kubelet::default(),
            policy: NodePolicy::default(),
            reserved: 0,
            published: None,
            disk: Disk::default(),
            calls: BTreeMap::new(),
            reconcilers: Reconcilers::default(),
            tally: Tally::default(),
        };
        world.set_policy(0);
        world.start_agent();
        world.hear(true);
        world
    }

    fn act(&mut self, action: u8, choice: usize) {
        self.now += match (action % 32, choice % 4) {
            (31, _) => Duration::from_secs(4),
            (_, 0) => Duration::from_millis(300),
            _ => Duration::from_millis(3),
        };
        match action % 32 {
            1..=3 | 28 | 30 => self.want(choice),
            4 => self.release(choice),
            6 => self.set_policy(choice),
            7 => self.take_lists(choice),
            8 => self.kubelet.take_all(),
            9 => self.pick(choice),
            10 => self.allocate(),
            11 => self.end_pod(choice),
            12 => self.ask(),
            13 => self.answer(),
            14 | 15 => self.keep(choice),
            16 => self.trouble(choice),
            17 => self.lose(choice),
            18 => self.restart_agent(choice),
            19 => self.reboot(choice),
            20 => self.restart_kubelet(choice),
            21 => self.readmit(choice),
            22 => self.disturb(choice),
            23 => self.catch_up(),
            24..=27 | 29 => self.admit(choice),
            _ => {}
        }
        self.tick(choice);
        if !action.is_multiple_of(3) {
            self.finish(choice);
        }
        self.check();
    }

    /// Brings everything up to date once.
    fn catch_up(&mut self) {
        self.hear(true);
        self.kubelet.take_all();
        self.now += Duration::from_millis(600);
        self.ask();
        self.answer();
        self.answer();
        self.keep(1);
    }

    /// A pod with a reservation comes to the kubelet, which has the newest lists, and gets its devices.
    fn admit(&mut self, choice: usize) {
        self.catch_up();
        for _ in 0..2 {
            self.tick(1);
            self.finish(1);
        }
        self.keep(1);
        self.decide();
        self.kubelet.take_all();
        self.ask();
        self.answer();
        self.decide();
        self.pick(choice);
        self.allocate();
    }

    /// Ends all disturbances, and lets everything catch up. Pods continue.
    fn settle(&mut self) {
        self.calm();
        self.refuse_waiting();
        self.check();
        for _ in 0..SETTLES_WITHIN {
            self.now += Duration::from_millis(800);
            self.catch_up();
            while self.kubelet.stale().is_some() {
                self.readmit(0);
            }
            self.finish(1);
            self.look();
            self.tick(1);
            self.finish(1);
            self.check();
            if self.disagreement().is_none() {
                return;
            }
        }
        panic!("{}", self.disagreement().unwrap_or_default());
    }
}

fn live(neutral: bool, actions: &[(u8, u16)]) -> Tally {
    let mut world = World::new(neutral);
    for phase in actions.chunks(PHASE) {
        for (action, choice) in phase {
            world.act(*action, usize::from(*choice));
        }
        world.settle();
    }
    Tally { lives: 1, ..world.tally }
}

/// Runs lives until there were `enough`, and returns the tally of all.
fn lives(neutral: bool, enough: impl Fn(&Tally) -> bool) -> Tally {
    let tally = std::cell::Cell::new(Tally::default());
    let strategy = prop::collection::vec((any::<u8>(), any::<u16>()), 1..LONGEST);
    while !enough(&tally.get()) {
        let config =
            Config { cases: 1, max_shrink_iters: 500, failure_persistence: None, ..Config::default() };
        let run = TestRunner::new(config).run(&strategy, |actions| {
            let (all, one) = (tally.get(), live(neutral, &actions));
            tally.set(Tally {
                lives: all.lives + one.lives,
                reboots: all.reboots + one.reboots,
                restarts: all.restarts + one.restarts,
                cuts: all.cuts + one.cuts,
                allocations: all.allocations + one.allocations,
            });
            Ok(())
        });
        if let Err(TestError::Fail(why, actions)) = run {
            panic!("{why}\nin the life {actions:?}");
        }
    }
    tally.get()
}

/// Reboots, restarts and repartitions in all.
fn upheavals(tally: &Tally) -> u64 {
    tally.reboots + tally.restarts + tally.cuts
}

#[test]
fn no_held_device_is_lost_and_in_the_end_gpus_status_and_kubelet_agree() {
    let tally = lives(false, |tally| upheavals(tally) >= 400);
    println!("{tally:?}");
}

#[test]
fn the_same_holds_under_neutral_names() {
    let tally = lives(true, |tally| upheavals(tally) >= 400);
    println!("{tally:?}");
}

/// The project's bar is 10,000 reboots, restarts and repartitions in all.
#[test]
#[ignore = "takes minutes: cargo xtask bench reboots"]
fn ten_thousand_reboots_restarts_and_repartitions() {
    let tally = lives(false, |tally| upheavals(tally) >= 10_000);
    let Tally { lives, reboots, restarts, cuts, allocations } = tally;
    println!(
        "{} upheavals in {lives} lives: {reboots} reboots, {restarts} restarts of the agent, {cuts} repartitions; \
         {allocations} containers got devices; no device with two holders, no held slice destroyed",
        upheavals(&tally)
    );
}
