//! Short explorations for the gate, and tests that the checks find violations. `planted/` has more of the latter:
//! patches that put bugs into core's code.

use super::*;
use agent::Taken;
use api::{Binding, Phase};
use checks::{Rule, after_each, at_rest, conflict};
use event::Event;
use kerf_core::contract::Shape;
use kerf_core::ledger::{Moment, Saved};
use kerf_core::testing::{gpu_uuid, h100_shape};
use kerf_core::units::{MemoryMib, SizeGb};
use std::sync::Arc;
use world::World;

#[test]
fn nothing_is_violated_in_small_worlds() {
    explore_all(Duration::from_secs(30), &AtomicBool::new(false)).unwrap();
}

#[test]
fn nothing_is_violated_in_random_lives() {
    let found = AtomicBool::new(false);
    explore_random(seed_by_clock(), Until::new(Duration::from_secs(30), &found)).unwrap();
}

#[test]
fn nothing_is_violated_in_the_lives_of_offers() {
    explore_offers(seed_by_clock(), Until::new(Duration::from_secs(3), &AtomicBool::new(false))).unwrap();
}

/// A world in which the first pod has come so far.
fn world(setting: &Setting, begin: Begin) -> World<'_> {
    begin.events(setting).1
}

fn rule(result: Result<(), checks::Violation>) -> Option<Rule> {
    result.err().map(|violation| violation.rule)
}

#[test]
fn a_pod_is_bound_and_started_without_any_fault() {
    for setting in Setting::small() {
        let mut world = world(&setting, Begin::Bound);
        assert_eq!(world.pods[0].phase, Phase::Bound(0), "{}", setting.name);
        assert_eq!(after_each(&world), Ok(()));
        world.rest().unwrap();
    }
}

#[test]
fn a_bound_pod_has_its_reservation_in_the_ledger_and_on_the_disk() {
    let setting = &Setting::small()[0];
    let mut world = world(setting, Begin::Bound);
    let agent = Arc::make_mut(&mut world.agents[0]);
    agent.disk = Saved::default();
    assert_eq!(rule(after_each(&world)), Some(Rule::Disk));
    let agent = Arc::make_mut(&mut world.agents[0]);
    agent.crash(Moment::default());
    agent.answered.clear();
    agent.running.clear();
    assert_eq!(rule(after_each(&world)), Some(Rule::Bound));
}

#[test]
fn each_containers_device_exists_and_is_exclusive() {
    let setting = &Setting::small()[0];
    let mut world = world(setting, Begin::Bound);
    let agent = Arc::make_mut(&mut world.agents[0]);
    let taken = agent.running[&0].clone();
    agent.running.insert(1, taken.clone());
    assert_eq!(rule(after_each(&world)), Some(Rule::Overlap));
    let agent = Arc::make_mut(&mut world.agents[0]);
    agent.running.insert(1, vec![Taken { id: "s9".into(), ..taken[0].clone() }]);
    assert_eq!(rule(after_each(&world)), Some(Rule::Held));
}

#[test]
fn a_binding_under_way_is_known_to_the_agent() {
    let setting = &Setting::small()[0];
    let mut world = world(setting, Begin::Reserved);
    let until = Moment(Duration::from_secs(70));
    let binding = Binding { pod: 0, node: 0, leader: 0, attempt: 1, until, gives_up: until, bound: None };
    world.bindings.push(binding);
    assert_eq!(rule(after_each(&world)), Some(Rule::Open));
    world.pods[0].phase = Phase::Gone;
    assert_eq!(rule(after_each(&world)), None);
}

#[test]
fn a_pod_has_all_that_it_asks_for_or_nothing() {
    let setting = Setting::small().remove(0);
    let mut asks_for_more = setting.clone();
    asks_for_more.pods[0].containers[0].count = 3;
    let mut world = world(&setting, Begin::Reserved);
    world.setting = &asks_for_more;
    assert_eq!(rule(after_each(&world)), Some(Rule::Whole));
}

#[test]
fn shapes_that_cannot_exist_together_are_reported() {
    let memory = MemoryMib(80 << 10);
    let share = |size| Shape::TimeSlicing { size_gb: SizeGb(size) };
    let (small, large) = (|start| h100_shape("1g.10gb", start), |start| h100_shape("4g.40gb", start));
    for (shapes, fits) in [
        (vec![], true),
        (vec![small(0), small(1), large(0)], false),
        (vec![small(4), small(5), large(0)], true),
        (vec![large(0), large(4)], false),
        (vec![share(40), share(40)], true),
        (vec![share(40), share(60)], false),
        (vec![share(8), small(0)], false),
    ] {
        assert_eq!(conflict(memory, &shapes).is_none(), fits, "{shapes:?} of {}", gpu_uuid(0));
    }
}

#[test]
fn at_rest_everybody_is_bound_and_nothing_is_left() {
    let setting = &Setting::small()[0];
    let mut begun = world(setting, Begin::Reserved);
    assert_eq!(rule(at_rest(&begun)), Some(Rule::Left));
    begun.pods[0].phase = Phase::Bound(0);
    assert_eq!(rule(at_rest(&begun)), Some(Rule::Equal), "the leaders have not read of it");
    assert_eq!(rule(at_rest(&World::new(setting))), Some(Rule::Pending));
    let mut rested = world(setting, Begin::Bound);
    rested.rest().unwrap();
    Arc::make_mut(&mut rested.agents[0]).disk = Saved::default();
    assert_eq!(rule(at_rest(&rested)), Some(Rule::Equal), "the disk is behind");
}

#[test]
fn a_trace_is_as_short_as_it_can_be() {
    let setting = &Setting::small()[0];
    let (mut events, _) = Begin::Bound.events(setting);
    assert!(events.len() > 8);
    assert!(trace::Trace::from_events(setting, &events).is_none(), "nothing is violated");
    events.extend([Event::Pass, Event::Freeze { leader: 1 }]);
    let is_longer_than = |limit: usize| move |events: &[Event]| events.len() > limit;
    assert_eq!(trace::shortest(events, is_longer_than(3)).len(), 4);
}
