use super::super::testing::{TIMEOUT, World, policies, sliced};
use super::super::{ClusterPolicyRecord, Holders, MigStrategy, OperatorSettings};
use super::*;
use crate::nvidia_keys::MIG_CONFIG;
use serde_json::json;

const T4: &str = "Tesla-T4";
const A100: &str = "NVIDIA-A100-SXM4-80GB";

fn settings(config_map: Option<&str>, mig_strategy: Option<MigStrategy>) -> OperatorSettings {
    OperatorSettings { config_map: config_map.map(str::to_owned), default_key: None, mig_strategy }
}

/// A node `n` on which layout `a`, four time slices, is in force.
fn in_force() -> World {
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4);
    world.settle();
    world.shows("n", &[("nvidia.com/gpu", 4)]);
    assert_eq!(world.reason("n"), "InForce");
    world
}

#[test]
fn a_layout_is_in_force_once_the_node_shows_its_devices() {
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4);
    let first = world.decide();
    assert!(first.config_map.is_some() && first.nodes["n"].write.is_none(), "the key has to be there first");
    assert_eq!(world.reason("n"), "Applying");
    assert_eq!(world.config("n").as_deref(), Some("a"));
    world.now += TIMEOUT - 1;
    assert_eq!(world.reason("n"), "Applying");
    world.shows("n", &[("nvidia.com/gpu", 4)]);
    let state = world.state("n").unwrap();
    assert_eq!(state.to_string(), "layout a is in force: 4 nvidia.com/gpu");
    world.now += 10 * TIMEOUT;
    assert_eq!(world.settle().nodes["n"].write, None, "nothing is due any more");
    assert_eq!(
        world.reported,
        ["LayoutPreparing", "LayoutApplying", "LayoutInForce"],
        "each is reported once"
    );
}

#[test]
fn nothing_is_changed_while_a_pod_holds_a_device() {
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4);
    world.hold("n", &["p", "q", "r", "s"]);
    let state = world.state("n").unwrap();
    assert_eq!(
        state.to_string(),
        "layout a waits for pods to end that hold GPUs of this node: ns/p, ns/q, ns/r and 1 more"
    );
    assert_eq!(world.config("n"), None);
    world.hold("n", &[]);
    assert_eq!(world.reason("n"), "Applying");
}

#[test]
fn device_holders_are_looked_up_before_a_change() {
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4);
    world.config_map.data = world.decide().config_map.map(|write| write.data);
    world.node_mut("n").holders = Holders::Unknown;
    let decision = &world.decide().nodes["n"];
    assert!(decision.asks_for_holders && decision.write.is_none());
}

#[test]
fn a_plugin_that_does_not_follow_in_time_gets_its_former_configuration_again() {
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4);
    world.settle();
    world.shows("n", &[]);
    world.now += TIMEOUT;
    world.hold("n", &["p"]);
    assert_eq!(world.reason("n"), "RollbackWaits", "a pod came meanwhile");
    assert_eq!(world.config("n").as_deref(), Some("a"));
    world.hold("n", &[]);
    let state = world.state("n").unwrap();
    insta::assert_snapshot!(state.to_string());
    assert_eq!(world.config("n"), None);
    world.now += 10 * TIMEOUT;
    assert_eq!(world.reason("n"), "RolledBack", "the same is not tried again");

    world.node_mut("n").boot = "another".to_owned();
    assert_eq!(world.reason("n"), "Applying", "the node is another");
    world.now += TIMEOUT;
    assert_eq!(world.reason("n"), "RolledBack");
    world.policies = policies(&[("a", sliced(2))]);
    assert_eq!(world.reason("n"), "Applying", "the layout is another");
}

#[test]
fn a_failure_rolls_back_to_the_last_layout_that_worked() {
    let mut world = in_force();
    world.policies = policies(&[("a", sliced(4)), ("b", sliced(2)), ("c", sliced(3))]);
    world.label("n", "pool", Some("b"));
    assert_eq!(world.reason("n"), "Applying");
    world.label("n", "pool", Some("c"));
    assert_eq!((world.reason("n"), world.config("n").as_deref()), ("Applying", Some("c")));
    world.now += TIMEOUT;
    assert_eq!(
        (world.reason("n"), world.config("n").as_deref()),
        ("RolledBack", Some("a")),
        "b never worked"
    );
    world.policies = policies(&[]);
    assert_eq!((world.reason("n"), world.config("n")), ("Removing", None), "before kerf there was none");
}

#[test]
fn missing_devices_of_a_layout_in_force_are_reported_without_a_rollback() {
    let mut world = in_force();
    world.shows("n", &[("nvidia.com/gpu", 0)]);
    let state = world.state("n").unwrap();
    assert_eq!(state.reason(), "DevicesMissing");
    assert!(state.to_string().contains("yield 4 nvidia.com/gpu, and the node shows no device"), "{state}");
    assert_eq!(world.config("n").as_deref(), Some("a"));
    world.shows("n", &[("nvidia.com/gpu", 4)]);
    assert_eq!(world.reason("n"), "InForce");
}

#[test]
fn the_former_labels_return_when_the_policy_ends() {
    let mut world = in_force();
    world.policies = policies(&[]);
    world.hold("n", &["p"]);
    assert_eq!(world.reason("n"), "RemovalWaits");
    assert!(world.config_map.data.as_ref().unwrap().contains_key("a"), "the node has it still");
    world.hold("n", &[]);
    assert_eq!((world.reason("n"), world.config("n")), ("Removing", None));
    world.shows("n", &[("nvidia.com/gpu", 1)]);
    assert_eq!((world.reason("n"), world.node_mut("n").record.clone()), ("", None));
    assert_eq!(world.reported.last().map(String::as_str), Some("LayoutRemoved"));
    world.settle();
    assert_eq!(world.config_map.data.unwrap().keys().collect::<Vec<_>>(), ["default"]);
}

#[test]
fn a_node_is_labelled_when_its_kubelet_has_brought_the_key_to_the_plugin() {
    let mut world = World { config_delay: 90, ..World::new(&[("a", sliced(4))]) }.node("n", "a", T4);
    assert_eq!((world.reason("n"), world.config("n")), ("Preparing", None));
    world.now += 89;
    world.policies = policies(&[("a", sliced(4)), ("b", sliced(2))]);
    assert_eq!(world.reason("n"), "Preparing");
    world.now += 1;
    assert_eq!(world.reason("n"), "Applying", "that another key is new is no matter");
    world.shows("n", &[("nvidia.com/gpu", 4)]);
    assert_eq!(world.reason("n"), "InForce");
    world.policies = policies(&[("a", sliced(3))]);
    assert_eq!(world.reason("n"), "Preparing");
    world.now += 90;
    assert_eq!(world.reason("n"), "Applying");
}

#[test]
fn nothing_is_removed_while_a_policy_file_is_bad() {
    let mut world = in_force();
    world.policies = policies(&[]);
    world.has_bad_files = true;
    assert_eq!((world.reason("n"), world.config("n").as_deref()), ("InForce", Some("a")));
    world.has_bad_files = false;
    assert_eq!((world.reason("n"), world.config("n")), ("Removing", None));
    world.has_bad_files = true;
    assert_eq!(world.reason("n"), "Removing", "it has begun");
}

#[test]
fn a_changed_text_reaches_a_node_when_its_pods_have_ended() {
    let mut world = in_force();
    world.hold("n", &["p"]);
    world.policies = policies(&[("a", sliced(2))]);
    assert_eq!(world.reason("n"), "WaitsForPods");
    let held = world.config_map.data.clone().unwrap();
    assert!(held["a"].contains("replicas: 4"), "a plugin that restarts reads what the pod was started under");
    world.hold("n", &[]);
    assert_eq!(world.reason("n"), "Applying");
    let key = world.config("n").unwrap();
    assert!(key.starts_with("a.") && held[&key].contains("replicas: 2"), "{key}");
    world.shows("n", &[("nvidia.com/gpu", 2)]);
    assert_eq!(world.reason("n"), "InForce");
}

#[test]
fn feature_discovery_distinguishes_time_slices_from_mps_shares() {
    let strategy = "nvidia.com/gpu.sharing-strategy";
    let mut world = in_force();
    world.label("n", strategy, Some("time-slicing"));
    world.policies = policies(&[("m", json!({"mps": {"replicas": 4}}))]);
    world.label("n", "pool", Some("m"));
    assert_eq!(world.reason("n"), "Applying", "the count is the same already");
    world.label("n", strategy, Some("mps"));
    assert_eq!(world.reason("n"), "InForce");
}

#[test]
fn a_failure_of_the_mig_manager_rolls_the_layout_back() {
    let layout = json!({"migStrategy": "mixed", "migConfig": "all-1g.10gb"});
    let mut world = World::new(&[("m", layout)]).node("n", "m", A100);
    world.label("n", MIG_CONFIG, Some("all-disabled"));
    world.label("n", "nvidia.com/mig.config.state", Some("failed"));
    assert_eq!(world.reason("n"), "Applying", "it failed with something else before");
    assert_eq!(world.plugin_labels("n").mig.as_deref(), Some("all-1g.10gb"));
    world.label("n", "nvidia.com/mig.config.state", Some("pending"));
    world.shows("n", &[("nvidia.com/mig-1g.10gb", 7)]);
    assert_eq!(world.reason("n"), "Applying", "it is at work still");
    world.label("n", "nvidia.com/mig.config.state", Some("success"));
    assert_eq!(world.reason("n"), "InForce");

    world.policies = policies(&[("m", json!({"migStrategy": "mixed", "migConfig": "all-2g.20gb"}))]);
    assert_eq!(world.reason("n"), "Applying");
    world.label("n", "nvidia.com/mig.config.state", Some("failed"));
    let state = world.state("n").unwrap();
    assert!(state.to_string().contains("mig.config.state=failed) with all-2g.20gb"), "{state}");
    assert_eq!(world.plugin_labels("n").mig.as_deref(), Some("all-1g.10gb"), "that worked");
    world.policies = policies(&[]);
    world.settle();
    assert_eq!(world.plugin_labels("n").mig.as_deref(), Some("all-disabled"));
}

#[test]
fn an_admins_label_stays() {
    let mut world = World::new(&[("a", sliced(4)), ("b", sliced(2))]).node("n", "a", T4);
    world.label("n", CONFIG, Some("theirs"));
    assert_eq!(world.reason("n"), "LabelByHand");
    assert_eq!(world.config("n").as_deref(), Some("theirs"));

    world.label("n", CONFIG, Some("b"));
    world.shows("n", &[("nvidia.com/gpu", 2)]);
    let state = world.state("n").unwrap();
    assert_eq!(state.to_string(), "layout b is in force: 2 nvidia.com/gpu", "it is a key of kerf's");
    assert_eq!(world.node_mut("n").record, None, "and not kerf's to take back");
    world.label("n", "kerf.dev/layout", Some("a"));
    assert_eq!(
        (world.reason("n"), world.config("n").as_deref()),
        ("Applying", Some("a")),
        "it was asked for"
    );
}

#[test]
fn kerf_drops_its_record_if_an_admin_changes_the_label() {
    let mut world = in_force();
    world.label("n", CONFIG, Some("theirs"));
    assert_eq!(world.reason("n"), "LabelByHand");
    assert_eq!(world.node_mut("n").record, None);
    world.policies = policies(&[]);
    assert_eq!((world.reason("n"), world.config("n").as_deref()), ("", Some("theirs")));
}

#[test]
fn a_node_whose_label_an_admin_changed_gets_pods_again() {
    for meanwhile in ["Applying", "Removing"] {
        let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4);
        assert_eq!(world.reason("n"), "Applying");
        world.label("n", "pool", None);
        if meanwhile == "Removing" {
            assert_eq!(world.reason("n"), "Removing");
        }
        world.label("n", CONFIG, Some("theirs"));
        world.label("n", "kerf.dev/layout", Some("misspelt"));
        assert_eq!(world.reason("n"), "UnknownLayout");
        world.now += 10 * TIMEOUT;
        world.settle();
        assert!(!world.is_changing("n"), "{meanwhile}");
    }
}

#[test]
fn the_nodes_label_selects_a_layout_and_an_unknown_name_is_reported() {
    let mut world = World::new(&[("a", sliced(4)), ("b", sliced(2))]).node("n", "none", T4);
    assert_eq!(world.state("n"), None, "no policy is for it");
    world.label("n", "kerf.dev/layout", Some("b"));
    assert_eq!((world.reason("n"), world.config("n").as_deref()), ("Applying", Some("b")));
    world.label("n", "kerf.dev/layout", Some("c"));
    let state = world.state("n").unwrap();
    assert!(
        state.to_string().contains("names \"c\"") && state.to_string().ends_with("there are: a, b"),
        "{state}"
    );
    assert_eq!(world.config("n").as_deref(), Some("b"), "nothing is changed for it");
    world.shows("n", &[("nvidia.com/gpu", 2)]);
    assert_eq!((world.reason("n"), world.is_changing("n")), ("UnknownLayout", false), "b is there");
}

#[test]
fn unfit_gpus_stay_unchanged() {
    let mut world = World::new(&[("m", json!({"migStrategy": "mixed", "migConfig": "all-1g.10gb"}))])
        .node("n", "m", T4)
        .with_operator(settings(None, Some(MigStrategy::Single)));
    let state = world.state("n").unwrap();
    assert_eq!(
        state.to_string(),
        "no GPU of this node can have layout m: Tesla-T4 cannot be cut by MIG; choose a layout with migStrategy none"
    );
    assert_eq!(state.status().as_str(), "False");
    assert_eq!((world.config("n"), world.cluster_policy.unwrap().record), (None, None));
}

#[test]
fn a_node_without_gpus_gets_a_condition_only_if_its_label_names_a_layout() {
    let mut world = World::new(&[("a", sliced(4))]);
    world.nodes.insert(
        "cpu".into(),
        SeenNode { labels: [("pool".to_owned(), "a".to_owned())].into(), ..SeenNode::default() },
    );
    assert_eq!(world.state("cpu"), None);
    world.label("cpu", "kerf.dev/layout", Some("a"));
    assert_eq!(world.reason("cpu"), "UnfitGpus");
}

#[test]
fn managed_nodes_have_no_layout() {
    for (key, value) in [("kerf.dev/managed", "true"), ("nos.nebuly.com/gpu-partitioning", "mig")] {
        let mut world = in_force();
        world.label("n", key, Some(value));
        assert_eq!((world.reason("n"), world.config("n")), ("Removing", None), "{key}");
        world.now += 60;
        assert_eq!(world.state("n"), None, "{key}");
    }
}

#[test]
fn a_config_map_that_cannot_be_written_is_reported() {
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4);
    world.config_map.error = Some("namespaces \"gpu-operator\" not found".to_owned());
    let decision = world.decide();
    assert!(decision.config_map.is_some(), "it is tried again");
    let state = decision.nodes["n"].state.as_ref().unwrap();
    insta::assert_snapshot!(format!("{}: {state}", state.reason()));
}

#[test]
fn an_unreadable_record_stops_everything_on_its_node() {
    let mut world = in_force();
    world.node_mut("n").record = Some("{".to_owned());
    world.policies = policies(&[("a", sliced(2))]);
    assert_eq!(world.reason("n"), "RecordUnreadable");
    assert_eq!(world.config("n").as_deref(), Some("a"));
}

#[test]
fn the_cluster_policy_is_written_before_the_nodes_and_restored_after_them() {
    let before = settings(None, Some(MigStrategy::Single));
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4).with_operator(before.clone());
    let first = world.decide();
    assert_eq!(first.cluster_policy, None, "the ConfigMap comes first");
    world.config_map.data = first.config_map.map(|write| write.data);
    let second = world.decide();
    assert!(second.cluster_policy.is_some() && second.nodes["n"].write.is_none());
    assert_eq!(world.reason("n"), "Applying");
    let set = world.cluster_policy.as_ref().unwrap().settings.clone();
    assert_eq!(
        (set.config_map.as_deref(), set.default_key.as_deref()),
        (Some("kerf-device-plugin"), Some("default"))
    );
    assert_eq!(set.mig_strategy, Some(MigStrategy::Single), "this layout does not care");
    world.policies = policies(&[]);
    world.settle();
    assert_eq!(world.cluster_policy.as_ref().unwrap().settings, set, "the node's plugin has not followed");
    world.now += 60;
    world.settle();
    assert_eq!(world.cluster_policy.as_ref().unwrap().settings, before);
    assert_eq!(world.cluster_policy.unwrap().record, None);
}

#[test]
fn an_admins_config_map_in_the_cluster_policy_blocks_layouts() {
    let theirs = settings(Some("theirs"), None);
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4).with_operator(theirs.clone());
    let state = world.state("n").unwrap();
    insta::assert_snapshot!(format!("{}: {state}", state.reason()));
    assert_eq!((world.config("n"), world.cluster_policy.unwrap().settings), (None, theirs));
}

#[test]
fn a_busy_operator_delays_the_layout() {
    let mut world = World::new(&[("a", sliced(4))]).node("n", "a", T4).with_operator(settings(None, None));
    world.cluster_policy.as_mut().unwrap().is_ready = false;
    assert_eq!((world.reason("n"), world.config("n")), ("Preparing", None));
    world.cluster_policy.as_mut().unwrap().is_ready = true;
    assert_eq!(world.reason("n"), "Applying");
}

#[test]
fn a_fresh_write_waits_for_the_operator_to_start() {
    let mut world = World { config_delay: 90, ..World::new(&[("a", sliced(4))]) }.node("n", "a", T4);
    world.hold("n", &["p"]);
    world.settle();
    world.now += 90;
    assert_eq!(world.reason("n"), "WaitsForPods", "the ConfigMap is everywhere");
    world = world.with_operator(settings(None, None));
    world.hold("n", &[]);
    for _ in 0..2 {
        let state = world.state("n").unwrap().to_string();
        assert!(state.ends_with("GPU Operator begins with it within --plugin-config-delay"), "{state}");
        world.now += 45;
    }
    assert_eq!(world.reason("n"), "Applying");
}

#[test]
fn two_strategies_cannot_be_in_one_cluster_policy() {
    let layout = |strategy: &str| json!({"migStrategy": strategy, "migConfig": "all-1g.10gb"});
    let mut world = World::new(&[("x", layout("mixed")), ("y", layout("single")), ("z", sliced(2))])
        .node("first", "x", A100)
        .node("second", "y", A100)
        .node("third", "z", T4)
        .with_operator(settings(None, Some(MigStrategy::Single)));
    assert_eq!(world.reason("first"), "Applying");
    assert_eq!(world.cluster_policy.as_ref().unwrap().settings.mig_strategy, Some(MigStrategy::Mixed));
    let state = world.state("second").unwrap();
    insta::assert_snapshot!(format!("{}: {state}", state.reason()));
    assert_eq!(world.config("second"), None);
    assert_eq!(world.reason("third"), "Applying", "it has nothing to do with it");
}

#[test]
fn another_strategy_waits_for_pods_on_every_node_with_mig_devices() {
    let single = json!({"migStrategy": "single", "migConfig": "all-1g.10gb"});
    let mixed = json!({"migStrategy": "mixed", "migConfig": "all-1g.10gb"});
    let operator = settings(None, Some(MigStrategy::Single));
    let cut = format!("{A100}-MIG-1g.10gb");
    let mut world =
        World::new(&[("m", single)]).node("a", "m", A100).node("b", "m", A100).with_operator(operator);
    world.settle();
    for node in ["a", "b"] {
        world.shows(node, &[("nvidia.com/gpu", 7)]);
        world.label(node, "nvidia.com/gpu.product", Some(&cut));
        world.label(node, "nvidia.com/gpu.count", Some("7"));
    }
    assert_eq!((world.reason("a"), world.reason("b")), ("InForce", "InForce"));
    world.policies = policies(&[("m", mixed)]);
    world.hold("b", &["p"]);
    let state = world.state("a").unwrap();
    assert!(state.to_string().ends_with("hold MIG devices, on other nodes too: ns/p"), "{state}");
    assert_eq!(world.cluster_policy.as_ref().unwrap().settings.mig_strategy, Some(MigStrategy::Single));
    assert!(world.decide().closes.is_empty(), "others may come as long as it waits");
    world.hold("b", &[]);
    let decision = world.decide();
    assert!(decision.cluster_policy.is_some() && decision.closes == ["a".into(), "b".into()].into());
    assert_eq!(world.reason("a"), "Applying");
    assert_eq!(world.cluster_policy.as_ref().unwrap().settings.mig_strategy, Some(MigStrategy::Mixed));
}

/// Nodes `a` and `b` that an admin has cut under strategy `single`, with these devices and without a layout.
fn cut_by_hand() -> World {
    let cut = format!("{A100}-MIG-1g.10gb");
    let mut world = World::new(&[]).node("a", "m", &cut).node("b", "m", &cut);
    for node in ["a", "b"] {
        world.label(node, "nvidia.com/gpu.count", Some("7"));
        world.shows(node, &[("nvidia.com/gpu", 7)]);
    }
    world.with_operator(settings(None, Some(MigStrategy::Single)))
}

#[test]
fn pods_hold_mig_devices_also_while_the_plugin_restarts() {
    let mut world = World::new(&[("s", json!({"migStrategy": "single", "migConfig": "all-1g.10gb"}))])
        .node("a", "s", A100)
        .node("b", "s", A100)
        .with_operator(settings(None, Some(MigStrategy::Mixed)));
    world.label("b", "nvidia.com/mig.strategy", Some("mixed"));
    world.label("b", "nvidia.com/mig-1g.10gb.count", Some("7"));
    world.shows("b", &[("nvidia.com/mig-1g.10gb", 0)]);
    world.hold("b", &["p"]);
    assert_eq!(world.reason("a"), "WaitsForPods");
    assert_eq!(world.cluster_policy.unwrap().settings.mig_strategy, Some(MigStrategy::Mixed));
}

#[test]
fn nodes_stay_closed_until_their_mig_devices_have_the_other_names() {
    let mut world = cut_by_hand();
    world.policies = policies(&[("m", json!({"migStrategy": "mixed", "migConfig": "all-1g.10gb"}))]);
    world.settle();
    let both: BTreeSet<NodeName> = ["a".into(), "b".into()].into();
    assert_eq!(world.decide().renamed, both);
    world.shows("a", &[]);
    assert_eq!(world.decide().renamed, both, "its plugin restarts");
    world.shows("a", &[("nvidia.com/mig-1g.10gb", 7)]);
    assert_eq!(world.decide().renamed, ["b".into()].into());
    world.now += TIMEOUT - 1;
    assert_eq!(world.decide().renamed, ["b".into()].into());
    world.now += 1;
    world.cluster_policy.as_mut().unwrap().is_ready = false;
    assert_eq!(world.decide().renamed, ["b".into()].into(), "GPU Operator goes from node to node");
    world.cluster_policy.as_mut().unwrap().is_ready = true;
    assert!(world.decide().renamed.is_empty(), "it does not come");
}

#[test]
fn the_end_of_all_layouts_renames_no_mig_devices_that_pods_hold() {
    let mut world = cut_by_hand();
    let (single, mixed) =
        (settings(None, Some(MigStrategy::Single)), settings(None, Some(MigStrategy::Mixed)));
    let record =
        ClusterPolicyRecord { set: mixed.clone(), before: single.clone(), written: 0, renaming: None };
    let policy = world.cluster_policy.as_mut().unwrap();
    (policy.settings, policy.record) = (mixed, Some(record));
    for node in ["a", "b"] {
        world.shows(node, &[("nvidia.com/mig-1g.10gb", 7)]);
    }
    world.hold("b", &["p"]);
    let strategy = |world: &World| world.cluster_policy.as_ref().unwrap().settings.mig_strategy;
    let state = world.state("b").unwrap();
    assert!(state.to_string().ends_with("among others: ns/p"), "{state}");
    assert_eq!((state.reason(), world.reason("a")), ("RemovalWaits", ""));
    assert_eq!(strategy(&world), Some(MigStrategy::Mixed));
    let condition = |world: &World, node: &str| world.nodes[node].condition.is_some();
    for node in ["a", "b"] {
        world.node_mut(node).holders = Holders::Unknown;
    }
    let decision = world.decide();
    assert_eq!(decision.asks.len(), 2);
    assert!(
        decision.nodes["b"].asks_for_holders && !decision.nodes["a"].asks_for_holders,
        "b has a condition"
    );
    world.hold("a", &["q"]);
    world.hold("b", &[]);
    world.settle();
    assert_eq!((condition(&world, "a"), condition(&world, "b")), (true, false));
    world.hold("a", &[]);
    world.has_bad_files = true;
    world.settle();
    assert_eq!(strategy(&world), Some(MigStrategy::Mixed), "the policy may be misspelt");
    world.has_bad_files = false;
    world.settle();
    assert_eq!(strategy(&world), Some(MigStrategy::Single));
    assert_eq!(world.decide().renamed.len(), 2);
    let state = world.state("a").unwrap();
    assert_eq!(state.reason(), "Removing");
    assert!(state.to_string().contains("it shows 7 nvidia.com/mig-1g.10gb. If the Cluster"), "{state}");
    for node in ["a", "b"] {
        world.shows(node, &[("nvidia.com/gpu", 7)]);
    }
    assert!(world.settle().renamed.is_empty());
    assert!(!condition(&world, "a") && !condition(&world, "b"));
    assert_eq!(world.cluster_policy.unwrap().record, None);
}

#[test]
fn a_restored_strategy_closes_nodes_that_had_not_followed() {
    let mut world = cut_by_hand();
    let (single, mixed) =
        (settings(None, Some(MigStrategy::Single)), settings(None, Some(MigStrategy::Mixed)));
    let record = ClusterPolicyRecord { set: mixed.clone(), before: single, written: 0, renaming: None };
    let policy = world.cluster_policy.as_mut().unwrap();
    (policy.settings, policy.record) = (mixed, Some(record));
    world.shows("b", &[("nvidia.com/mig-1g.10gb", 7)]);
    let both: BTreeSet<NodeName> = ["a".into(), "b".into()].into();
    assert_eq!(world.settle().renamed, both, "the plugin of a may come up under mixed once more");
    world.shows("b", &[("nvidia.com/gpu", 7)]);
    assert_eq!(world.settle().renamed, ["a".into()].into());
    world.now += TIMEOUT;
    assert!(world.settle().renamed.is_empty());
}

#[test]
fn a_config_map_in_use_by_hand_stays_in_the_cluster_policy() {
    let mut world = World::new(&[("a", sliced(4))])
        .node("n", "a", T4)
        .node("mine", "none", T4)
        .with_operator(settings(None, None));
    world.settle();
    world.shows("n", &[("nvidia.com/gpu", 4)]);
    world.label("mine", CONFIG, Some("a"));
    world.shows("mine", &[("nvidia.com/gpu", 4)]);
    world.hold("mine", &["p"]);
    assert_eq!((world.reason("n"), world.reason("mine")), ("InForce", "InForce"));
    world.policies = policies(&[]);
    world.settle();
    world.shows("n", &[("nvidia.com/gpu", 1)]);
    let config_map = |world: &World| world.cluster_policy.as_ref().unwrap().settings.config_map.clone();
    assert_eq!((world.reason("n"), world.reason("mine")), ("", "LabelByHand"));
    assert_eq!(config_map(&world).as_deref(), Some("kerf-device-plugin"), "p has one of four");
    assert!(world.config_map.data.as_ref().unwrap().contains_key("a"));
    world.label("mine", CONFIG, None);
    assert_eq!((world.reason("mine"), config_map(&world)), ("", None));
}

#[test]
fn the_strategy_of_a_layout_in_force_goes_before_that_of_one_that_is_wanted() {
    let layout = |strategy: &str| json!({"migStrategy": strategy, "migConfig": "all-1g.10gb"});
    let mut world = World::new(&[("x", layout("single")), ("y", layout("mixed"))])
        .node("a", "y", A100)
        .node("b", "none", A100)
        .with_operator(settings(None, Some(MigStrategy::Single)));
    world.settle();
    world.shows("a", &[("nvidia.com/mig-1g.10gb", 7)]);
    assert_eq!(world.reason("a"), "InForce");
    world.label("b", "pool", Some("x"));
    assert_eq!((world.reason("a"), world.reason("b")), ("InForce", "StrategyConflict"));
    assert_eq!(world.cluster_policy.as_ref().unwrap().settings.mig_strategy, Some(MigStrategy::Mixed));
}

#[test]
fn a_layout_that_lost_its_devices_to_another_strategy_reports_a_conflict() {
    let layout = |strategy: &str| json!({"migStrategy": strategy, "migConfig": "all-1g.10gb"});
    let mut world = World::new(&[("x", layout("mixed")), ("y", layout("single"))])
        .node("a", "x", A100)
        .node("b", "y", A100);
    world.settle();
    world.shows("a", &[("nvidia.com/mig-1g.10gb", 7)]);
    world.shows("b", &[("nvidia.com/gpu", 7)]);
    assert_eq!((world.reason("a"), world.reason("b")), ("InForce", "InForce"), "without GPU Operator");
    let mut world = world.with_operator(settings(None, Some(MigStrategy::Mixed)));
    world.shows("b", &[("nvidia.com/mig-1g.10gb", 7)]);
    assert_eq!((world.reason("a"), world.reason("b")), ("InForce", "StrategyConflict"));
}

#[test]
fn mig_devices_of_an_unselected_node_are_not_renamed() {
    let mut world = World::new(&[("m", json!({"migStrategy": "mixed", "migConfig": "all-1g.10gb"}))])
        .node("mine", "m", A100)
        .node("theirs", "none", &format!("{A100}-MIG-1g.10gb"))
        .with_operator(settings(None, Some(MigStrategy::Single)));
    let state = world.state("mine").unwrap();
    assert_eq!(state.reason(), "StrategyConflict");
    assert!(state.to_string().contains("MIG devices of node theirs"), "{state}");
    assert_eq!(world.cluster_policy.unwrap().settings.mig_strategy, Some(MigStrategy::Single));
}

#[test]
fn a_rolled_back_node_stays_closed_until_its_plugin_has_followed() {
    let mut world = in_force();
    world.policies = policies(&[]);
    assert_eq!(world.reason("n"), "Removing");
    assert!(world.is_changing("n"), "the plugin is about to reload");
    world.now += 59;
    assert!(world.settle().nodes["n"].write.is_none() && world.is_changing("n"));
    world.now += 1;
    assert_eq!((world.reason("n"), world.is_changing("n")), ("", false), "nothing else comes");

    let mut world = in_force();
    world.policies = policies(&[("a", sliced(2))]);
    world.settle();
    world.now += TIMEOUT;
    assert_eq!((world.reason("n"), world.is_changing("n")), ("RolledBack", true));
    world.shows("n", &[("nvidia.com/gpu", 2)]);
    assert_eq!((world.reason("n"), world.is_changing("n")), ("RolledBack", true), "late, and about to go");
    world.label("n", "pool", None);
    world.label("n", "kerf.dev/layout", Some("none"));
    world.shows("n", &[("nvidia.com/gpu", 1)]);
    assert_eq!((world.reason("n"), world.is_changing("n")), ("UnknownLayout", false), "whatever is desired");
}

#[test]
fn a_layout_that_is_wanted_again_while_it_is_removed_is_begun_anew() {
    let mut world = in_force();
    world.policies = policies(&[]);
    assert_eq!(world.reason("n"), "Removing");
    world.policies = policies(&[("a", sliced(4))]);
    world.shows("n", &[("nvidia.com/gpu", 1)]);
    assert_eq!((world.reason("n"), world.config("n").as_deref()), ("Applying", Some("a")));
    world.policies = policies(&[]);
    assert_eq!((world.reason("n"), world.config("n")), ("Removing", None), "what was before is known still");
}

#[test]
fn a_rollback_waits_for_the_mig_manager() {
    let layout = json!({"migStrategy": "mixed", "migConfig": "all-1g.10gb"});
    let mut world = World::new(&[("m", layout)]).node("n", "m", A100);
    world.label("n", MIG_CONFIG, Some("all-disabled"));
    world.settle();
    world.label("n", "nvidia.com/mig.config.state", Some("success"));
    world.now += TIMEOUT;
    assert_eq!(world.reason("n"), "RolledBack");
    world.now += 5;
    world.shows("n", &[("nvidia.com/gpu", 2)]);
    assert!(world.settle().nodes["n"].write.is_none() && world.is_changing("n"), "an older cut's success");
    world.label("n", "nvidia.com/mig.config.state", Some("pending"));
    assert_eq!(world.reason("n"), "RolledBack");
    world.now += TIMEOUT;
    let state = world.state("n").unwrap();
    assert_eq!((state.reason(), state.status().as_str()), ("MigManagerStuck", "False"));
    assert!(state.to_string().contains("after 180 s NVIDIA's MIG manager is still at work"), "{state}");
    assert!(world.is_changing("n"), "it may go on");
    for (pool, layout, reported) in [(Some("m"), None, "RolledBack"), (None, Some("none"), "UnknownLayout")] {
        world.label("n", "pool", pool);
        world.label("n", "kerf.dev/layout", layout);
        let mut world = world.clone();
        assert_eq!(world.reason("n"), "MigManagerStuck", "whatever is desired");
        world.label("n", "nvidia.com/mig.config.state", Some("success"));
        assert_eq!((world.reason("n"), world.is_changing("n")), (reported, false));
    }
    world.label("n", "nvidia.com/mig.config.state", None);
    world.settle();
    assert!(!world.is_changing("n"), "no program cuts any more");
}

#[test]
fn earlier_devices_and_an_older_success_do_not_count() {
    let state = "nvidia.com/mig.config.state";
    let begun = || {
        let layout = json!({"migStrategy": "mixed", "migConfig": "all-balanced"});
        let mut world = World::new(&[("m", layout)]).node("n", "m", A100);
        world.label("n", MIG_CONFIG, Some("all-1g.10gb"));
        world.label("n", state, Some("success"));
        world.shows("n", &[("nvidia.com/mig-1g.10gb", 7)]);
        assert_eq!(world.reason("n"), "Applying");
        world.now += 59;
        assert_eq!(world.reason("n"), "Applying", "nothing has happened");
        world
    };
    let mut world = begun();
    world.now += 1;
    assert_eq!(world.reason("n"), "InForce", "nothing is to come");

    let mut world = begun();
    world.label("n", state, Some("pending"));
    world.shows("n", &[]);
    world.now += 10;
    assert_eq!(world.reason("n"), "Applying");
    world.label("n", state, Some("success"));
    world.shows("n", &[("nvidia.com/mig-1g.10gb", 2), ("nvidia.com/mig-2g.20gb", 1)]);
    assert_eq!(world.reason("n"), "InForce");

    let mut world = begun();
    world.label("n", state, Some("failed"));
    assert_eq!(world.reason("n"), "RolledBack");
}

#[test]
fn a_plugin_that_stops_offering_devices_is_rolled_back() {
    let mut world = World::new(&[("s", json!({"migStrategy": "single"}))]).node("n", "s", A100);
    assert_eq!(world.reason("n"), "Applying", "it shows whole GPUs under the same name");
    world.shows("n", &[]);
    world.now += TIMEOUT;
    assert_eq!((world.reason("n"), world.config("n")), ("RolledBack", None));
}

#[test]
fn a_begun_change_ends_whatever_is_wanted_meanwhile() {
    let misspelt: fn(&mut World) = |world| world.label("n", "kerf.dev/layout", Some("c"));
    let unfit: fn(&mut World) = |world| world.label("n", "kerf.dev/layout", Some("m"));
    let unreadable: fn(&mut World) = |world| {
        world.policies = policies(&[]);
        world.has_bad_files = true;
        world.label("n", "kerf.dev/layout", None);
    };
    for (meanwhile, reasons) in [
        (misspelt, ["UnknownLayout", "UnknownLayout"]),
        (unfit, ["UnfitGpus", "UnfitGpus"]),
        (unreadable, ["Applying", "InForce"]),
    ] {
        let cut = json!({"migStrategy": "single", "migConfig": "all-1g.10gb"});
        let mut world = World::new(&[("b", sliced(2)), ("m", cut)]).node("n", "none", T4);
        world.label("n", "kerf.dev/layout", Some("b"));
        assert_eq!(world.reason("n"), "Applying");
        meanwhile(&mut world);
        assert_eq!((world.reason("n"), world.is_changing("n")), (reasons[0], true));
        let begun = world.clone();
        world.shows("n", &[("nvidia.com/gpu", 2)]);
        assert_eq!((world.reason("n"), world.is_changing("n")), (reasons[1], false), "it is there");

        let mut world = begun;
        world.now += TIMEOUT;
        world.hold("n", &["p"]);
        world.settle();
        assert_eq!(world.config("n").as_deref(), Some("b"));
        world.hold("n", &[]);
        world.settle();
        assert_eq!(world.config("n"), None, "{}: it is taken back", reasons[0]);
        world.now += 60;
        world.settle();
        assert!(!world.is_changing("n"));
    }
}

#[test]
fn a_failed_layout_is_not_retried_for_labels_that_the_failure_changed() {
    let layout = json!({"migStrategy": "single", "migConfig": "all-1g.10gb"});
    let mut world = World::new(&[("m", layout)]).node("n", "m", A100);
    world.settle();
    world.label("n", "nvidia.com/gpu.product", Some(&format!("{A100}-MIG-INVALID")));
    world.label("n", "nvidia.com/gpu.count", Some("0"));
    world.now += TIMEOUT;
    assert_eq!(world.reason("n"), "RolledBack");
    world.label("n", "nvidia.com/gpu.product", Some(A100));
    world.label("n", "nvidia.com/gpu.count", Some("1"));
    assert_eq!(world.reason("n"), "RolledBack");
    world.label("n", "nvidia.com/gpu.count", Some("2"));
    assert_eq!(world.reason("n"), "Applying", "there is another GPU");
}
