use super::super::testing::{TIMEOUT, World, policies, sliced};
use super::super::{MigStrategy, OperatorSettings, Progress};
use super::*;
use crate::nvidia_keys::CONFIG;

const T4: &str = "Tesla-T4";

/// The same world under new leaders with other wall clocks, and under this leader after its clock was adjusted.
fn afterwards(world: &World) -> Vec<World> {
    let after = |(is_new, ahead)| {
        let ages = if is_new { FirstSeen::default() } else { world.ages.clone() };
        World { ahead, ages, ..world.clone() }
    };
    [(true, -900), (true, 0), (true, 900), (false, -900), (false, 900)].map(after).into()
}

fn written(world: &World) -> NodeRecord {
    NodeRecord::from_json(world.nodes["n"].record.as_deref().unwrap()).unwrap()
}

#[test]
fn a_new_leader_gives_the_plugin_the_whole_timeout() {
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4);
    world.settle();
    assert_eq!(written(&world).since(), Some(1000), "for people");
    for mut next in afterwards(&world) {
        assert_eq!(next.reason("n"), "Applying");
        next.now += TIMEOUT - 1;
        assert_eq!(next.reason("n"), "Applying");
        next.now += 1;
        assert_eq!(next.reason("n"), "RolledBack");
    }
}

#[test]
fn a_rolled_back_node_is_closed_for_a_minute_by_the_leaders_clock() {
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4);
    world.settle();
    world.shows("n", &[("nvidia.com/gpu", 4)]);
    world.settle();
    world.policies = policies(&[]);
    assert_eq!(world.reason("n"), "Removing");
    for mut next in afterwards(&world) {
        next.settle();
        next.now += 59;
        assert_eq!((next.reason("n"), next.is_changing("n")), ("Removing", true));
        next.now += 1;
        assert_eq!((next.reason("n"), next.is_changing("n")), ("", false));
    }
}

#[test]
fn a_new_leader_labels_no_node_before_kubelets_and_gpu_operator_had_their_time() {
    let operator = |world: World| world.with_operator(OperatorSettings::default());
    for with_operator in [|world| world, operator] {
        let world = World { config_delay: 90, ..World::new(&[("a", sliced(4))]) };
        let mut world = with_operator(world.node("n", "a", T4));
        world.settle();
        for mut next in afterwards(&world) {
            next.settle();
            next.now += 89;
            assert_eq!((next.reason("n"), next.config("n")), ("Preparing", None));
            next.now += 1;
            assert_eq!(next.reason("n"), "Applying");
        }
    }
}

#[test]
fn nodes_with_renamed_devices_are_closed_for_the_timeout_by_the_leaders_clock() {
    let mixed = OperatorSettings { mig_strategy: Some(MigStrategy::Mixed), ..OperatorSettings::default() };
    let mut world = World::new(&[]).node("n", "none", T4).with_operator(mixed.clone());
    let renaming =
        Renaming { since: 1000, nodes: ["n".into()].into(), timeout: TIMEOUT, early: ["n".into()].into() };
    let record =
        ClusterPolicyRecord { set: mixed.clone(), before: mixed, written: 1000, renaming: Some(renaming) };
    world.cluster_policy.as_mut().unwrap().record = Some(record);
    world.settle();
    for mut next in afterwards(&world) {
        next.settle();
        next.now += TIMEOUT - 1;
        assert!(!next.settle().renamed.is_empty());
        next.now += 1;
        assert!(next.settle().renamed.is_empty());
    }
}

#[test]
fn a_new_leader_repeats_no_event_for_a_label_set_by_hand() {
    let world = World { config_delay: 90, ..World::new(&[("a", sliced(4))]) };
    let mut world = world.node("n", "none", T4);
    world.settle();
    world.now += 90;
    world.label("n", CONFIG, Some("a"));
    world.shows("n", &[("nvidia.com/gpu", 4)]);
    assert_eq!(world.reason("n"), "InForce");
    for mut next in afterwards(&world) {
        assert_eq!(next.reason("n"), "InForce");
        assert_eq!(next.reported, ["LayoutInForce"]);
    }
}

#[test]
fn a_changed_or_repeated_write_counts_as_new() {
    let record = |set: &str, since| {
        let progress = Progress::Applying { since, mig_had_failed: false };
        let set = PluginLabels { config: Some(set.to_owned()), mig: None };
        let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4);
        world.settle();
        NodeRecord { progress, set, ..written(&world) }
    };
    let nodes = |record: Option<&NodeRecord>| {
        let node = SeenNode { record: record.map(NodeRecord::to_json), ..SeenNode::default() };
        BTreeMap::from([(NodeName::new("n"), node)])
    };
    let first = record("a", 7);
    for (between, found, age) in [
        (Some(&first), record("a", 7), 5),
        (Some(&first), record("a", 8), 0),
        (Some(&first), record("b", 7), 0),
        (None, record("a", 7), 0),
    ] {
        let mut ages = FirstSeen::default();
        let mut look = |clock, record| ages.look(clock, &nodes(record), &SeenConfigMap::default(), None);
        look(100, Some(&first));
        look(101, between);
        look(105, Some(&found));
        assert_eq!(ages.age_of_labels(&"n".into(), &found), age, "{found:?}");
    }
}
