//! Random histories of a cluster. Whatever admins, pods and the plugin do, no node is changed under its pods (the world
//! checks this at every write), every history comes to rest, and at the end the state from before the first layout is
//! back.

use super::testing::{TIMEOUT, World, policies, sliced};
use super::{FirstSeen, OperatorSettings, PluginLabels};
use proptest::prelude::*;
use serde_json::{Value, json};

#[derive(Debug, Clone)]
enum Step {
    Policies(Vec<usize>),
    Pool(usize, usize),
    Layout(usize, Option<usize>),
    Hold(usize, bool),
    Managed(usize, bool),
    Obey(usize),
    Later(u64),
    /// Another leader, whose wall clock is ahead by so many seconds.
    Lead(i64),
    Busy(bool),
}

const NODES: [(&str, &str); 3] =
    [("n0", "Tesla-T4"), ("n1", "NVIDIA-A100-SXM4-80GB"), ("n2", "NVIDIA-A100-SXM4-80GB")];

fn layouts() -> Vec<(&'static str, Value)> {
    vec![
        ("l0", sliced(2)),
        ("l0", sliced(4)),
        ("l1", json!({"mps": {"replicas": 4}})),
        ("l2", json!({"migStrategy": "mixed", "migConfig": "all-1g.10gb"})),
        ("l3", json!({"migStrategy": "single", "migConfig": "all-2g.20gb"})),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let node = 0..NODES.len();
    let step = prop_oneof![
        proptest::sample::subsequence((0..5_usize).collect::<Vec<_>>(), 0..=4).prop_map(Step::Policies),
        (node.clone(), 0..4_usize).prop_map(|(node, pool)| Step::Pool(node, pool)),
        (node.clone(), proptest::option::of(0..4_usize))
            .prop_map(|(node, layout)| Step::Layout(node, layout)),
        (node.clone(), any::<bool>()).prop_map(|(node, held)| Step::Hold(node, held)),
        (node.clone(), proptest::bool::weighted(0.2))
            .prop_map(|(node, managed)| Step::Managed(node, managed)),
        node.prop_map(Step::Obey),
        (0..2 * TIMEOUT).prop_map(Step::Later),
        (-400..400_i64).prop_map(Step::Lead),
        proptest::bool::weighted(0.2).prop_map(Step::Busy),
    ];
    proptest::collection::vec(step, 0..30)
}

/// The policies of these layouts, each name once.
fn some(indexes: &[usize]) -> Vec<(&'static str, Value)> {
    let mut chosen: Vec<(&'static str, Value)> = Vec::new();
    for index in indexes {
        let layout = layouts().swap_remove(*index);
        if !chosen.iter().any(|(name, _)| *name == layout.0) {
            chosen.push(layout);
        }
    }
    chosen
}

/// The plugin advertises what the node's labels ask for.
fn obey(world: &mut World, node: &str) {
    let record = world.node_mut(node).record.clone();
    let expected =
        record.and_then(|record| super::NodeRecord::from_json(&record).ok()).map(|record| record.expected);
    if let Some(super::ExpectedAllocatable::Counts(counts)) = expected {
        world.node_mut(node).allocatable = counts;
    }
}

fn step(world: &mut World, step: &Step) {
    match step {
        Step::Policies(indexes) => world.policies = policies(&some(indexes)),
        Step::Pool(node, pool) => world.label(NODES[*node].0, "pool", Some(&format!("l{pool}"))),
        Step::Layout(node, layout) => {
            let layout = layout.map(|layout| format!("l{layout}"));
            world.label(NODES[*node].0, "kerf.dev/layout", layout.as_deref());
        }
        Step::Hold(node, held) => world.hold(NODES[*node].0, if *held { &["p"] } else { &[] }),
        Step::Managed(node, managed) => {
            world.label(NODES[*node].0, "kerf.dev/managed", managed.then_some("true"));
        }
        Step::Obey(node) => obey(world, NODES[*node].0),
        Step::Later(seconds) => world.now += seconds,
        Step::Lead(ahead) => (world.ages, world.ahead) = (FirstSeen::default(), *ahead),
        Step::Busy(busy) => {
            if let Some(policy) = &mut world.cluster_policy {
                policy.is_ready = !busy;
            }
        }
    }
}

/// Whether a change that no pod blocks has lasted longer than the plugin's timeout.
fn is_overdue(world: &World, node: &str) -> bool {
    let seen = &world.nodes[node];
    let record = seen.record.as_deref().and_then(|record| super::NodeRecord::from_json(record).ok());
    let is_free = matches!(&seen.holders, super::Holders::Known(pods) if pods.is_empty());
    is_free
        && record.is_some_and(|record| {
            record.is_changing() && world.ages.age_of_labels(&node.into(), &record) >= TIMEOUT
        })
}

proptest! {
    #[test]
    fn no_history_changes_a_node_under_its_pods_and_the_first_state_returns(steps in steps(), operator in any::<bool>()) {
        let mut world = World::new(&[]);
        for (name, product) in NODES {
            world = world.node(name, "l0", product);
        }
        world.label("n1", crate::nvidia_keys::MIG_CONFIG, Some("all-disabled"));
        let before: Vec<PluginLabels> = NODES.iter().map(|(node, _)| world.plugin_labels(node)).collect();
        if operator {
            world = world.with_operator(OperatorSettings::default());
        }
        for one in &steps {
            step(&mut world, one);
            world.settle();
            for (node, _) in NODES {
                prop_assert!(!is_overdue(&world, node), "{node} is closed for ever: {:?}", world.nodes[node]);
            }
        }
        world.policies = policies(&[]);
        for (node, _) in NODES {
            world.hold(node, &[]);
            world.label(node, "kerf.dev/layout", None);
        }
        world.settle();
        world.now += TIMEOUT;
        world.settle();
        let after: Vec<PluginLabels> = NODES.iter().map(|(node, _)| world.plugin_labels(node)).collect();
        prop_assert_eq!(before, after);
        prop_assert!(world.nodes.values().all(|node| node.record.is_none() && node.condition.is_none()));
        prop_assert!(world.cluster_policy.is_none_or(|policy| policy.settings == OperatorSettings::default()));
    }
}
