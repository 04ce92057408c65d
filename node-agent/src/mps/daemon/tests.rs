use super::world::{Faults, Process, World};
use super::{Action, Daemon};
use crate::mps::word::{Scope, Word};
use crate::mps::{State, Timings, Wanted};
use kerf_core::units::MemoryMib;
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn wanted(gib: u64, threads: u8, exclusive: bool) -> Wanted {
    Wanted { limit: MemoryMib(gib * 1024), threads, exclusive, in_use: false }
}

fn serving(wanted: &Wanted) -> State {
    State::Serving { limit: wanted.limit, threads: wanted.threads }
}

/// A desired daemon, after time to settle.
fn settled(want: &Wanted) -> (World, Daemon) {
    let mut world = World::new(Timings::default());
    let mut daemon = Daemon::new(world.now, world.timings.clone());
    daemon.want(world.now, Some(want.clone()));
    run_for(&mut world, &mut daemon, 2);
    assert_eq!(daemon.status().state, serving(want));
    (world, daemon)
}

fn run_for(world: &mut World, daemon: &mut Daemon, seconds: u64) {
    let until = world.now + Duration::from_secs(seconds);
    world.run(daemon, until, |_, _| {});
}

fn said(world: &World) -> Vec<String> {
    let words = world.actions.iter().filter_map(|action| match action {
        Action::Ask(said) => Some(said.to_string()),
        _ => None,
    });
    words.collect()
}

fn count(world: &World, action: &Action) -> usize {
    world.actions.iter().filter(|done| *done == action).count()
}

#[test]
fn a_daemon_serves_only_after_its_limits_were_set_and_read_back() {
    let mut world = World::new(Timings::default());
    let mut daemon = Daemon::new(world.now, world.timings.clone());
    let want = wanted(10, 14, true);
    daemon.want(world.now, Some(want.clone()));
    let mut words_before = None;
    let until = world.now + Duration::from_secs(1);
    world.run(&mut daemon, until, |world, state| match state {
        State::Starting => assert_eq!(words_before, None, "it started again"),
        State::Serving { .. } => {
            words_before.get_or_insert_with(|| said(world));
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(world.actions[..3], [Action::Inspect, Action::SetExclusive(true), Action::Start(1)]);
    assert!(world.exclusive);
    let words = words_before.unwrap();
    let order: Vec<usize> = [
        "set_default_device_pinned_mem_limit 0 10240M",
        "set_default_active_thread_percentage 14",
        "start_server -uid 0",
        "get_server_status 1001",
        "get_device_pinned_mem_limit 1001 0",
        "get_active_thread_percentage 1001",
    ]
    .iter()
    .map(|word| {
        words.iter().position(|said| said == word).unwrap_or_else(|| panic!("{word} not in {words:?}"))
    })
    .collect();
    assert!(order.is_sorted(), "{words:?}");
    let read_back = |word: &str| words.iter().rposition(|said| said == word).unwrap();
    assert!(read_back("get_default_device_pinned_mem_limit 0") > order[0], "{words:?}");
    assert!(read_back("get_default_active_thread_percentage") > order[1], "{words:?}");
    assert_eq!(daemon.status().servers, [1001].into());
}

#[test]
fn a_daemon_at_rest_costs_three_words_a_probe() {
    let (mut world, mut daemon) = settled(&wanted(10, 14, false));
    world.actions.clear();
    run_for(&mut world, &mut daemon, 50);
    assert_eq!(world.actions.len(), 30, "{:?}", said(&world));
    run_for(&mut world, &mut daemon, 50);
    assert_eq!(world.actions.len(), 64, "limits are read once more: {:?}", said(&world));
    assert!(said(&world).iter().all(|word| word.starts_with("get_")));
}

#[test]
fn limits_change_under_clients_without_a_restart() {
    let (mut world, mut daemon) = settled(&wanted(10, 14, true));
    world.connect(7);
    run_for(&mut world, &mut daemon, 6);
    assert_eq!(daemon.status().clients, [7].into());
    world.actions.clear();
    let (before, after) = (wanted(10, 14, true), wanted(20, 30, true));
    daemon.want(world.now, Some(after.clone()));
    assert_eq!(daemon.status().state, State::Adjusting { limit: before.limit, threads: before.threads });
    run_for(&mut world, &mut daemon, 1);
    assert_eq!(daemon.status().state, serving(&after));
    assert!(world.holds(&after));
    for scope in [Scope::Default, Scope::Server(1001)] {
        assert_eq!(count(&world, &Action::Ask(Word::SetMemory(scope, after.limit))), 1);
        assert_eq!(count(&world, &Action::Ask(Word::SetThreads(scope, after.threads))), 1);
    }
    assert!(world.actions.iter().all(|action| matches!(action, Action::Ask(_))), "{:?}", world.actions);
    assert_eq!(daemon.status().clients, [7].into());
}

#[test]
fn a_limit_without_effect_is_never_reported_as_served() {
    let (mut world, mut daemon) = settled(&wanted(10, 14, false));
    world.faults.ignored = u32::MAX;
    daemon.want(world.now, Some(wanted(20, 14, false)));
    world.actions.clear();
    let until = world.now + Duration::from_mins(1);
    world.run(&mut daemon, until, |_, state| assert!(!matches!(state, State::Serving { .. })));
    let State::Ill { text, fault: false } = daemon.status().state else { panic!("{:?}", daemon.status()) };
    assert!(text.contains("20480Mi") && text.contains("10240Mi"), "{text}");
    assert!(world.actions.len() < 80, "{} words in a minute", world.actions.len());
    assert_eq!(count(&world, &Action::Kill), 0);
    world.faults.ignored = 0;
    run_for(&mut world, &mut daemon, 6);
    assert_eq!(daemon.status().state, serving(&wanted(20, 14, false)));
}

#[test]
fn a_server_that_started_before_the_limits_is_shut_down() {
    let mut world = World::new(Timings::default());
    let mut daemon = Daemon::new(world.now, world.timings.clone());
    let want = wanted(10, 14, false);
    daemon.want(world.now, Some(want.clone()));
    let until = world.now + Duration::from_secs(5);
    let mut early = false;
    while world.now < until && !early {
        let next = world.now + Duration::from_millis(1);
        world.run(&mut daemon, next, |_, _| {});
        if world.process.is_some() {
            world.connect(7);
            early = true;
        }
    }
    world.run(&mut daemon, until, |world, state| {
        if matches!(state, State::Serving { .. }) {
            assert!(world.holds(&want));
        }
    });
    assert_eq!(count(&world, &Action::Ask(Word::ShutdownServer(1001))), 1);
    assert_eq!(daemon.status().state, serving(&want));
    assert_eq!(daemon.status().servers, [1002].into());
}

#[test]
fn three_failed_probes_in_a_row_are_a_hang_and_fewer_are_not() {
    let (mut world, mut daemon) = settled(&wanted(10, 14, false));
    for _ in 0..2 {
        world.faults.timeouts = 2;
        run_for(&mut world, &mut daemon, 60);
    }
    assert_eq!(daemon.status().state, serving(&wanted(10, 14, false)));
    assert_eq!(count(&world, &Action::Kill), 0);
    world.process.as_mut().unwrap().hung = true;
    // Three probes of 3 s with 5 s in between, and the rest of the interval before.
    run_for(&mut world, &mut daemon, 24);
    assert_eq!(count(&world, &Action::Kill), 1);
    run_for(&mut world, &mut daemon, 2);
    let status = daemon.status();
    assert_eq!((status.state, status.generation), (serving(&wanted(10, 14, false)), 2));
}

#[test]
fn an_unresponsive_daemon_is_killed_only_after_the_pods_processes_have_ended() {
    let idle = wanted(10, 14, false);
    let in_use = Wanted { in_use: true, ..idle.clone() };
    // It hangs while the agent watches it, or before the agent was started.
    for restarts in [false, true] {
        let (mut world, mut daemon) = settled(&in_use);
        let hang = |world: &mut World, hung| world.process.as_mut().unwrap().hung = hung;
        hang(&mut world, true);
        if restarts {
            daemon = Daemon::new(world.now, world.timings.clone());
            daemon.want(world.now, Some(in_use.clone()));
        }
        run_for(&mut world, &mut daemon, 40);
        world.actions.clear();
        run_for(&mut world, &mut daemon, 60);
        assert_eq!(count(&world, &Action::Kill), 0);
        assert!(world.actions.len() < 10, "it is probed as often as ever: {:?}", said(&world));
        let State::Ill { text, fault: false } = daemon.status().state else {
            panic!("{:?}", daemon.status())
        };
        assert!(text.contains("only when they have ended"), "{text}");
        hang(&mut world, false);
        run_for(&mut world, &mut daemon, 10);
        assert_eq!((daemon.status().state, daemon.status().generation), (serving(&in_use), 1));
        hang(&mut world, true);
        run_for(&mut world, &mut daemon, 40);
        assert_eq!(count(&world, &Action::Kill), 0);
        daemon.want(world.now, Some(idle.clone()));
        run_for(&mut world, &mut daemon, 6);
        assert_eq!(count(&world, &Action::Kill), 1);
        assert_eq!((daemon.status().state, daemon.status().generation), (serving(&idle), 2));
    }
}

#[test]
fn an_ended_daemon_is_restarted_with_backoff_until_one_stays() {
    let (mut world, mut daemon) = settled(&wanted(10, 14, true));
    let (mut pauses, mut ill) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        // Whatever ended it may have restored the mode as well.
        (world.process, world.exclusive) = (None, false);
        daemon.ended(world.now, "signal: 9 (SIGKILL)".to_owned());
        let (State::Restarting { text } | State::Ill { text, .. }) = daemon.status().state else {
            panic!("{:?}", daemon.status())
        };
        assert!(text.contains("SIGKILL"), "{text}");
        ill.push(matches!(daemon.status().state, State::Ill { .. }));
        let (began, starts) = (world.now, world.actions.len());
        while !world.actions[starts..].iter().any(|action| matches!(action, Action::Start(_))) {
            let next = world.now + Duration::from_millis(1);
            world.run(&mut daemon, next, |_, _| {});
        }
        pauses.push((world.now - began).as_millis() / 100);
        run_for(&mut world, &mut daemon, 1);
        assert_eq!(daemon.status().state, serving(&wanted(10, 14, true)));
        assert!(world.exclusive);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 50, 50]);
    assert_eq!(ill, [false, false, false, true, true, true, true, true]);
    assert_eq!(daemon.status().generation, 9);
    run_for(&mut world, &mut daemon, 10);
    world.process = None;
    daemon.ended(world.now, "exit status: 1".to_owned());
    run_for(&mut world, &mut daemon, 1);
    assert_eq!(daemon.status().state, serving(&wanted(10, 14, true)));
}

/// What ends each kind of server fault.
#[test]
fn a_fault_ends_with_its_clients_or_with_its_server() {
    for (leave, stuck, shutdowns) in [(true, false, 0), (true, true, 1), (false, false, 1)] {
        let (mut world, mut daemon) = settled(&wanted(10, 14, false));
        world.connect(7);
        let server = world.process.as_mut().unwrap().servers.get_mut(&1001).unwrap();
        (server.fault, server.stuck) = (true, stuck);
        run_for(&mut world, &mut daemon, 6);
        assert!(matches!(daemon.status().state, State::Ill { fault: true, .. }), "{:?}", daemon.status());
        assert_eq!(
            count(&world, &Action::Ask(Word::ShutdownServer(1001))),
            0,
            "its clients have time to leave"
        );
        if leave {
            world.disconnect();
        }
        run_for(&mut world, &mut daemon, if leave { 2 } else { 14 });
        assert_eq!(daemon.status().state, serving(&wanted(10, 14, false)));
        let shut = count(&world, &Action::Ask(Word::ShutdownServer(1001)));
        assert_eq!((shut, count(&world, &Action::Kill)), (shutdowns, 0), "leave {leave}, stuck {stuck}");
        assert_eq!(daemon.status().generation, 1);
    }
}

#[test]
fn an_adopted_daemon_with_the_right_limits_is_not_changed() {
    let (mut world, _) = settled(&wanted(10, 14, true));
    world.connect(7);
    world.actions.clear();
    let mut daemon = Daemon::new(world.now, world.timings.clone());
    daemon.want(world.now, Some(wanted(10, 14, true)));
    run_for(&mut world, &mut daemon, 1);
    let status = daemon.status();
    assert_eq!((status.state, status.generation), (serving(&wanted(10, 14, true)), 1));
    assert_eq!(status.clients, [7].into());
    assert!(said(&world).iter().all(|word| word.starts_with("get_")), "{:?}", said(&world));
    assert_eq!(count(&world, &Action::Kill), 0);
}

#[test]
fn an_unwanted_daemon_quits_and_leaves_the_default_mode() {
    let (mut world, mut daemon) = settled(&wanted(10, 14, true));
    daemon.want(world.now, None);
    assert_eq!(daemon.status().state, State::Stopping);
    run_for(&mut world, &mut daemon, 10);
    assert!(world.ended && world.process.is_none() && !world.exclusive);
    assert_eq!((count(&world, &Action::Kill), count(&world, &Action::Remove)), (0, 1));
    // The daemon hangs when a new agent adopts it.
    let (mut world, _) = settled(&wanted(10, 14, true));
    world.process.as_mut().unwrap().hung = true;
    let mut daemon = Daemon::new(world.now, world.timings.clone());
    run_for(&mut world, &mut daemon, 20);
    assert!(world.ended && world.process.is_none() && !world.exclusive);
    assert_eq!(count(&world, &Action::Kill), 1);
}

#[test]
fn a_mode_that_cannot_be_set_keeps_the_daemon_from_being_started() {
    let mut world = World::new(Timings::default());
    let mut daemon = Daemon::new(world.now, world.timings.clone());
    world.faults.modes = 8;
    daemon.want(world.now, Some(wanted(10, 14, true)));
    let until = world.now + Duration::from_secs(12);
    world.run(&mut daemon, until, |world, _| assert!(world.process.is_none()));
    let State::Ill { text, .. } = daemon.status().state else { panic!("{:?}", daemon.status()) };
    assert!(text.contains("EXCLUSIVE_PROCESS") && text.contains("in use"), "{text}");
    assert!(text.contains("mps.exclusive: false"), "it says how to do without: {text}");
    run_for(&mut world, &mut daemon, 6);
    assert_eq!(daemon.status().state, serving(&wanted(10, 14, true)));
}

#[derive(Debug, Clone)]
enum Blow {
    Want(Option<Wanted>),
    Pass(u64),
    Connect(u32),
    Disconnect,
    End,
    Hang,
    Fault { stuck: bool },
    LoseServer,
    Appear,
    Refuse(u32),
    TimeOut(u32),
    Break { modes: u32, starts: u32, kills: u32, inspections: u32, removals: u32, ignored: u32 },
    RestartAgent,
}

fn blows() -> impl Strategy<Value = Blow> {
    let wants = (1u64..4, 1u8..=100, any::<bool>(), any::<bool>())
        .prop_map(|(gib, threads, x, in_use)| Wanted { in_use, ..wanted(gib, threads, x) });
    let few = || 0u32..3;
    prop_oneof![
        3 => proptest::option::weighted(0.7, wants).prop_map(Blow::Want),
        6 => (1u64..8000).prop_map(Blow::Pass),
        2 => (1u32..9).prop_map(Blow::Connect),
        1 => Just(Blow::Disconnect),
        1 => Just(Blow::End),
        1 => Just(Blow::Hang),
        1 => any::<bool>().prop_map(|stuck| Blow::Fault { stuck }),
        1 => Just(Blow::LoseServer),
        1 => Just(Blow::Appear),
        1 => (1u32..4).prop_map(Blow::Refuse),
        1 => (1u32..4).prop_map(Blow::TimeOut),
        1 => (few(), few(), few(), few(), few(), few()).prop_map(|(modes, starts, kills, inspections, removals, ignored)| {
            Blow::Break { modes, starts, kills, inspections, removals, ignored }
        }),
        1 => Just(Blow::RestartAgent),
    ]
}

struct Play {
    world: World,
    daemon: Daemon,
    want: Option<Wanted>,
}

impl Play {
    fn run(&mut self, time: Duration) {
        let until = self.world.now + time;
        while self.world.now < until {
            self.watch(until);
            if !self.world.ended {
                return;
            }
            // The supervisor starts again too, whatever state is desired by then.
            self.world.ended = false;
            self.restart_agent();
            self.world.now += Duration::from_secs(1);
        }
    }

    fn watch(&mut self, until: Instant) {
        let want = self.want.clone();
        self.world.run(&mut self.daemon, until, |world, state| {
            if let State::Serving { limit, threads } = state {
                let said = Wanted { limit: *limit, threads: *threads, exclusive: false, in_use: false };
                assert!(
                    world.process.is_none() || world.holds(&said),
                    "{said:?} is said, {:?} holds",
                    world.process
                );
                assert!(want.is_some());
            }
        });
    }

    fn restart_agent(&mut self) {
        self.daemon = Daemon::new(self.world.now, self.world.timings.clone());
        self.daemon.want(self.world.now, self.want.clone());
    }

    fn strike(&mut self, blow: Blow) {
        let world = &mut self.world;
        match blow {
            Blow::Want(want) => {
                self.want.clone_from(&want);
                self.daemon.want(world.now, want);
            }
            Blow::Pass(milliseconds) => self.run(Duration::from_millis(milliseconds)),
            Blow::Connect(client) => world.connect(client),
            Blow::Disconnect => world.disconnect(),
            Blow::End => {
                if world.process.take().is_some() {
                    self.daemon.ended(world.now, "it ended".to_owned());
                }
            }
            Blow::Hang => world.process.iter_mut().for_each(|process| process.hung = true),
            Blow::Fault { stuck } => {
                let servers = world.process.iter_mut().flat_map(|process| process.servers.values_mut());
                servers.for_each(|server| (server.fault, server.stuck) = (true, stuck));
            }
            Blow::LoseServer => world.process.iter_mut().for_each(|process| process.servers.clear()),
            // A daemon that was started just before the agent was killed.
            Blow::Appear if world.process.is_none() => {
                world.process = Some(Process::new(world.now));
                self.restart_agent();
            }
            Blow::Appear => {}
            Blow::Refuse(times) => world.faults.refused = times,
            Blow::TimeOut(times) => world.faults.timeouts = times,
            Blow::Break { modes, starts, kills, inspections, removals, ignored } => {
                world.faults =
                    Faults { modes, starts, kills, inspections, removals, ignored, refused: 0, timeouts: 0 };
            }
            Blow::RestartAgent => self.restart_agent(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever happens, `Serving` is reported only with limits that hold, and everything settles some time after the
    /// last fault.
    #[test]
    fn serving_means_that_limits_hold_and_everything_settles(blows in proptest::collection::vec(blows(), 1..40)) {
        let world = World::new(Timings::default());
        let daemon = Daemon::new(world.now, world.timings.clone());
        let mut play = Play { world, daemon, want: None };
        for blow in blows {
            play.strike(blow);
        }
        // A hung daemon is replaced once it is not in use.
        let unused = play.want.take().map(|want| Wanted { in_use: false, ..want });
        play.strike(Blow::Want(unused));
        // A hang is detected after 24 s, and a fault in a server that does not shut down after 20 s. Each may begin
        // after the last trouble, before its retry.
        play.run(Duration::from_secs(90));
        match &play.want {
            Some(want) => {
                prop_assert_eq!(play.daemon.status().state, serving(want));
                prop_assert!(play.world.holds(want));
                prop_assert_eq!(play.world.exclusive, want.exclusive);
            }
            None => prop_assert!(play.world.process.is_none() && !play.world.exclusive && play.world.generation == 0),
        }
    }
}

#[test]
fn a_refused_compute_mode_is_retried_with_backoff() {
    let timings = Timings::default();
    let mut daemon = Daemon::new(Instant::now(), timings.clone());
    let mut now = daemon.mode_at;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        daemon.mode_set(now, true, Err("in use".to_owned()));
        pauses.push(daemon.mode_at - now);
        now = daemon.mode_at;
    }
    assert_eq!(pauses[..3], [1, 2, 4].map(|times| timings.backoff_min * times));
    assert_eq!(pauses[7], timings.probe_every);
    daemon.mode_set(now, true, Ok(()));
    daemon.mode_set(now, true, Err("in use".to_owned()));
    assert_eq!(daemon.mode_at - now, timings.backoff_min);
}
