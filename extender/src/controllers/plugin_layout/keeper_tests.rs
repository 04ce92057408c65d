//! The passes of the leader's keeper, against a stand-in for the API server.

use super::*;
use crate::api_stand_in::{ApiStandIn, Fault};
use crate::objects::node_view::NodeView;
use crate::objects::pod::{KnownPod, SlicedPod};
use crate::policy_source::PolicySource;
use clap::Parser;
use http::Method;
use kerf_core::nvidia_keys::CONFIG;
use kerf_core::packing::Terms;
use kerf_core::plugin_layout::{
    ClusterPolicyWrite, ExpectedAllocatable, Lag, MigStrategy, OperatorSettings, PluginLabels, Progress,
};
use kerf_core::testing::static_node;
use kerf_runtime::shutdown::CancellationToken;
use serde_json::{Value, json};

const NODE: &str = "/api/v1/nodes/n";

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    plugin: PluginArgs,
}

/// A leader that has seen no Node yet.
fn keeper(api: &Arc<ApiStandIn>) -> Keeper {
    let (metrics, _) = crate::metrics::Metrics::new();
    let term = Term::new(
        api.client(),
        metrics,
        1,
        Terms::default(),
        PolicySource::default(),
        CancellationToken::new(),
    );
    term.with(|index| {
        index.nodes().show_static(&"n".into(), Some(static_node(&[], &[("gpu", 4)])));
        index.nodes().end_gpu_node_list();
        index.end_pod_list();
    });
    holding(api, &json!([]));
    Keeper::new(term, Flags::parse_from(["-"]).plugin)
}

/// Sets the API server's answer about pods, for every node.
fn holding(api: &ApiStandIn, pods: &Value) {
    api.put("/api/v1/pods", json!({"kind": "PodList", "apiVersion": "v1", "items": pods}));
}

fn pod() -> Value {
    let containers = json!([{"name": "main", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]);
    json!({"metadata": {"name": "p", "namespace": "team", "uid": "uid-p"}, "spec": {"containers": containers}})
}

/// The record of a configuration that the extender has set.
fn record() -> NodeRecord {
    let labels = |config: Option<&str>| PluginLabels { config: config.map(str::to_owned), mig: None };
    NodeRecord {
        layout: "a".to_owned(),
        digest: "d".to_owned(),
        node: "n".to_owned(),
        progress: Progress::Applied,
        promise: ExpectedAllocatable::Counts([("nvidia.com/gpu".to_owned(), 4)].into()),
        set: labels(Some("a")),
        previous: labels(None),
        before: labels(None),
        lag: None,
    }
}

/// A node with this configuration.
fn node(api: &ApiStandIn) -> NodeView {
    put(api, &json!({CONFIG: "a"}), &record(), "4")
}

fn put(api: &ApiStandIn, labels: &Value, record: &NodeRecord, gpus: &str) -> NodeView {
    let annotations = json!({kerf_core::keys::PLUGIN_LAYOUT: record.to_json()});
    let metadata = json!({"name": "n", "labels": labels, "annotations": annotations});
    api.put(NODE, json!({"metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": gpus}}}));
    serde_json::from_value(api.get(NODE).unwrap()).unwrap()
}

#[tokio::test]
async fn labels_are_restored_only_if_no_pod_is_being_bound() {
    let api = ApiStandIn::new();
    let mut keeper = keeper(&api);
    keeper.hear(node(&api).into());
    let coming: SlicedPod = serde_json::from_value(pod()).unwrap();
    let coming: KnownPod = coming.into();
    keeper.term.with(|index| index.reserving().reserve_plain(&coming, &"n".into())).unwrap();
    keeper.look().await;
    assert_eq!(api.get(NODE).unwrap()["metadata"]["labels"][CONFIG], "a", "a pod is being bound");

    keeper.term.with(|index| index.pod_gone(&coming.uid));
    keeper.look().await;
    assert_eq!(api.get(NODE).unwrap()["metadata"]["labels"].get(CONFIG), None);
    assert!(
        !keeper.term.with(|index| index.preemption().serves_reserved(&"n".into()).is_ok()),
        "the plugin has not followed"
    );
}

#[tokio::test]
async fn the_search_for_holders_ends_at_the_first_node_with_one() {
    let api = ApiStandIn::new();
    let mut keeper = keeper(&api);
    let names: BTreeSet<NodeName> = (0..45).map(|n| NodeName::new(format!("n{n}"))).collect();
    let forget = |keeper: &mut Keeper| {
        keeper.seen = names.iter().map(|name| (name.clone(), SeenNode::default())).collect();
    };
    let decision = Decision { asks: names.clone(), ..Decision::default() };
    forget(&mut keeper);
    holding(&api, &json!([pod()]));
    keeper.ask_for_holders(&decision).await;
    assert_eq!(api.requests(&Method::GET), 1);
    forget(&mut keeper);
    holding(&api, &json!([]));
    keeper.ask_for_holders(&decision).await;
    assert!(keeper.seen.values().all(|node| node.holders == Holders::Known(Vec::new())), "all are asked");
}

#[tokio::test]
async fn mig_devices_are_renamed_only_if_no_pod_is_being_bound() {
    let api = ApiStandIn::new();
    let mut keeper = keeper(&api);
    let path = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy";
    api.put(path, json!({"metadata": {"name": "cluster-policy"}, "spec": {"mig": {"strategy": "single"}}}));
    let settings =
        OperatorSettings { mig_strategy: Some(MigStrategy::Single), ..OperatorSettings::default() };
    let name = "cluster-policy".to_owned();
    let seen =
        SeenClusterPolicy { name: name.clone(), settings: settings.clone(), is_ready: true, record: None };
    keeper.cluster_policy = Some((seen, "1".to_owned()));
    let settings = OperatorSettings { mig_strategy: Some(MigStrategy::Mixed), ..settings };
    let cluster_policy = Some(ClusterPolicyWrite { name, settings, record: None });
    let decision = Decision { cluster_policy, closes: ["n".into()].into(), ..Decision::default() };
    let strategy = || api.get(path).unwrap()["spec"]["mig"]["strategy"].clone();
    let coming: SlicedPod = serde_json::from_value(pod()).unwrap();
    let coming: KnownPod = coming.into();
    keeper.term.with(|index| index.reserving().reserve_plain(&coming, &"n".into())).unwrap();
    keeper.write(decision.clone()).await;
    assert_eq!(strategy(), "single", "a pod is being bound");

    keeper.term.with(|index| index.pod_gone(&coming.uid));
    keeper.write(decision).await;
    assert_eq!(strategy(), "mixed");
    keeper.open_nodes();
    assert!(
        !keeper.term.with(|index| index.preemption().serves_reserved(&"n".into()).is_ok()),
        "the plugin has not followed"
    );
    keeper.write(Decision::default()).await;
    keeper.open_nodes();
    assert!(keeper.term.with(|index| index.preemption().serves_reserved(&"n".into()).is_ok()));
}

/// Sets a `ClusterPolicy` that gives the MIG devices of `n` their names of strategy `mixed`.
fn renaming(api: &ApiStandIn) {
    let settings = json!({"migStrategy": "mixed"});
    let record =
        json!({"set": settings, "before": {}, "renaming": {"since": now(), "nodes": ["n"], "timeout": 180}});
    let annotations = json!({kerf_core::keys::PLUGIN_LAYOUT: record.to_string()});
    let policy = json!({
        "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy", "annotations": annotations}, "spec": {"mig": {"strategy": "mixed"}},
    });
    let list = json!({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicyList", "metadata": {}, "items": [policy]});
    api.put("/apis/nvidia.com/v1/clusterpolicies", list);
}

#[tokio::test]
async fn static_nodes_are_closed_until_a_new_leader_knows_whose_mig_devices_are_renamed() {
    let api = ApiStandIn::new();
    let mut keeper = keeper(&api);
    let is_open = |keeper: &Keeper, name: &str| {
        keeper.term.with(|index| index.preemption().serves_reserved(&name.into()).is_ok())
    };
    let theirs: SlicedPod = serde_json::from_value(pod()).unwrap();
    keeper.term.with(|index| {
        index.nodes().static_nodes().await_changes();
        index.nodes().show_static(&"m".into(), Some(static_node(&[], &[("gpu", 4)])));
        index.nodes().show_unlabelled(&KnownPod { node: Some("n".into()), ..theirs.into() });
    });
    renaming(&api);
    keeper.hear(node(&api).into());
    assert!(!is_open(&keeper, "n") && !is_open(&keeper, "m"), "it has not looked");
    keeper.look().await;
    assert!(is_open(&keeper, "m"));
    assert!(!is_open(&keeper, "n"), "its devices are being renamed");
}

#[tokio::test]
async fn static_nodes_begin_closed_only_if_layouts_are_applied() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/default.yaml");
    let store = kerf_runtime::policy_file::PolicyStore::open(&file).unwrap();
    let given = PolicySource::of(Some(store));
    for (policies, layouts, is_open) in
        [(PolicySource::default(), true, true), (given.clone(), true, false), (given, false, true)]
    {
        let api = ApiStandIn::new();
        let (metrics, _) = crate::metrics::Metrics::new();
        let stop = CancellationToken::new();
        let term = Term::new(api.client(), metrics, 1, Terms::default(), policies, stop);
        assert_ne!(begins(&term, RightsArgs { moves: true, recreate: None, layouts }), is_open);
        term.with(|index| index.nodes().show_static(&"n".into(), Some(static_node(&[], &[("gpu", 4)]))));
        assert_eq!(term.with(|index| index.preemption().serves_reserved(&"n".into()).is_ok()), is_open);
    }
}

#[tokio::test]
async fn a_node_stays_closed_while_it_is_unknown_whether_its_labels_were_written() {
    for (fault, is_written) in [(Fault::LoseReply, true), (Fault::Answer(403), false)] {
        let api = ApiStandIn::new();
        let mut keeper = keeper(&api);
        keeper.hear(node(&api).into());
        api.fail([fault]);
        keeper.look().await;
        assert_eq!(api.get(NODE).unwrap()["metadata"]["labels"].get(CONFIG).is_none(), is_written);
        keeper.open_nodes();
        assert_eq!(
            keeper.term.with(|index| index.preemption().serves_reserved(&"n".into()).is_ok()),
            !is_written
        );
        let shown: NodeView = serde_json::from_value(api.get(NODE).unwrap()).unwrap();
        keeper.hear(shown.into());
        assert!(keeper.seen[&NodeName::new("n")].record.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_measures_the_age_of_another_leaders_record_by_its_own_clock() {
    for ahead in [-1000, 0, 1000] {
        let since = now().saturating_add_signed(ahead);
        let applying =
            NodeRecord { progress: Progress::Applying { since, mig_had_failed: false }, ..record() };
        let lag = Lag { since, shown: [("nvidia.com/gpu".to_owned(), 4)].into(), cuts: false };
        let lagging = NodeRecord { lag: Some(lag), ..record() };
        for (record, gpus, seconds) in [(applying, "1", 180), (lagging, "4", 60)] {
            let api = ApiStandIn::new();
            let mut keeper = keeper(&api);
            // Nothing is due for a layout that no policy defines, and what was begun goes on.
            let labels = json!({CONFIG: "a", kerf_core::keys::LAYOUT: "unknown"});
            keeper.hear(put(&api, &labels, &record, gpus).into());
            let is_as_it_was = || {
                let annotations = &api.get(NODE).unwrap()["metadata"]["annotations"];
                annotations[kerf_core::keys::PLUGIN_LAYOUT] == record.to_json()
            };
            keeper.look().await;
            tokio::time::advance(Duration::from_secs(seconds - 1)).await;
            keeper.look().await;
            assert!(is_as_it_was(), "{record:?}");
            tokio::time::advance(Duration::from_secs(1)).await;
            keeper.look().await;
            assert!(!is_as_it_was(), "{record:?}");
        }
    }
}
