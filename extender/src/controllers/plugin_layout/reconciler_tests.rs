//! The passes of the leader's reconciler, against a stand-in for the API server.

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
    ClusterPolicyWrite, ExpectedAllocatable, MigStrategy, OperatorSettings, PluginLabels, Progress,
    Propagation,
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
fn reconciler(api: &Arc<ApiStandIn>) -> Reconciler {
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
    Reconciler::new(term, Flags::parse_from(["-"]).plugin)
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
        expected: ExpectedAllocatable::Counts([("nvidia.com/gpu".to_owned(), 4)].into()),
        set: labels(Some("a")),
        previous: labels(None),
        before: labels(None),
        propagation: None,
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
    let mut reconciler = reconciler(&api);
    reconciler.observe(node(&api).into());
    let coming: SlicedPod = serde_json::from_value(pod()).unwrap();
    let coming: KnownPod = coming.into();
    reconciler.term.with(|index| index.reserving().reserve_plain(&coming, &"n".into())).unwrap();
    reconciler.reconcile().await;
    assert_eq!(api.get(NODE).unwrap()["metadata"]["labels"][CONFIG], "a", "a pod is being bound");

    reconciler.term.with(|index| index.pod_gone(&coming.uid));
    reconciler.reconcile().await;
    assert_eq!(api.get(NODE).unwrap()["metadata"]["labels"].get(CONFIG), None);
    assert!(
        !reconciler.term.with(|index| index.preemption().serves_reserved(&"n".into()).is_ok()),
        "the plugin has not followed"
    );
}

#[tokio::test]
async fn the_search_for_holders_ends_at_the_first_node_with_one() {
    let api = ApiStandIn::new();
    let mut reconciler = reconciler(&api);
    let names: BTreeSet<NodeName> = (0..45).map(|n| NodeName::new(format!("n{n}"))).collect();
    let forget = |reconciler: &mut Reconciler| {
        reconciler.seen = names.iter().map(|name| (name.clone(), SeenNode::default())).collect();
    };
    let decision = Decision { asks: names.clone(), ..Decision::default() };
    forget(&mut reconciler);
    holding(&api, &json!([pod()]));
    reconciler.ask_for_holders(&decision).await;
    assert_eq!(api.requests(&Method::GET), 1);
    forget(&mut reconciler);
    holding(&api, &json!([]));
    reconciler.ask_for_holders(&decision).await;
    assert!(reconciler.seen.values().all(|node| node.holders == Holders::Known(Vec::new())), "all are asked");
}

#[tokio::test]
async fn mig_devices_are_renamed_only_if_no_pod_is_being_bound() {
    let api = ApiStandIn::new();
    let mut reconciler = reconciler(&api);
    let path = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy";
    api.put(path, json!({"metadata": {"name": "cluster-policy"}, "spec": {"mig": {"strategy": "single"}}}));
    let settings =
        OperatorSettings { mig_strategy: Some(MigStrategy::Single), ..OperatorSettings::default() };
    let name = "cluster-policy".to_owned();
    let seen =
        SeenClusterPolicy { name: name.clone(), settings: settings.clone(), is_ready: true, record: None };
    reconciler.cluster_policy = Some((seen, "1".to_owned()));
    let settings = OperatorSettings { mig_strategy: Some(MigStrategy::Mixed), ..settings };
    let cluster_policy = Some(ClusterPolicyWrite { name, settings, record: None });
    let decision = Decision { cluster_policy, closes: ["n".into()].into(), ..Decision::default() };
    let strategy = || api.get(path).unwrap()["spec"]["mig"]["strategy"].clone();
    let coming: SlicedPod = serde_json::from_value(pod()).unwrap();
    let coming: KnownPod = coming.into();
    reconciler.term.with(|index| index.reserving().reserve_plain(&coming, &"n".into())).unwrap();
    reconciler.write(decision.clone()).await;
    assert_eq!(strategy(), "single", "a pod is being bound");

    reconciler.term.with(|index| index.pod_gone(&coming.uid));
    reconciler.write(decision).await;
    assert_eq!(strategy(), "mixed");
    reconciler.open_nodes();
    assert!(
        !reconciler.term.with(|index| index.preemption().serves_reserved(&"n".into()).is_ok()),
        "the plugin has not followed"
    );
    reconciler.write(Decision::default()).await;
    reconciler.open_nodes();
    assert!(reconciler.term.with(|index| index.preemption().serves_reserved(&"n".into()).is_ok()));
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
    let mut reconciler = reconciler(&api);
    let is_open = |reconciler: &Reconciler, name: &str| {
        reconciler.term.with(|index| index.preemption().serves_reserved(&name.into()).is_ok())
    };
    let theirs: SlicedPod = serde_json::from_value(pod()).unwrap();
    reconciler.term.with(|index| {
        index.nodes().static_nodes().await_changes();
        index.nodes().show_static(&"m".into(), Some(static_node(&[], &[("gpu", 4)])));
        index.nodes().holders().show_unlabelled(&KnownPod { node: Some("n".into()), ..theirs.into() });
    });
    renaming(&api);
    reconciler.observe(node(&api).into());
    assert!(!is_open(&reconciler, "n") && !is_open(&reconciler, "m"), "it has not looked");
    reconciler.reconcile().await;
    assert!(is_open(&reconciler, "m"));
    assert!(!is_open(&reconciler, "n"), "its devices are being renamed");
}

#[tokio::test]
async fn static_nodes_begin_closed_only_if_layouts_are_applied() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/default.yaml");
    let store = kerf_runtime::policy_file::PolicyStore::open(&file).unwrap();
    let given = PolicySource::from_store(Some(store));
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
        let mut reconciler = reconciler(&api);
        reconciler.observe(node(&api).into());
        api.fail([fault]);
        reconciler.reconcile().await;
        assert_eq!(api.get(NODE).unwrap()["metadata"]["labels"].get(CONFIG).is_none(), is_written);
        reconciler.open_nodes();
        assert_eq!(
            reconciler.term.with(|index| index.preemption().serves_reserved(&"n".into()).is_ok()),
            !is_written
        );
        let shown: NodeView = serde_json::from_value(api.get(NODE).unwrap()).unwrap();
        reconciler.observe(shown.into());
        assert!(reconciler.seen[&NodeName::new("n")].record.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_measures_the_age_of_another_leaders_record_by_its_own_clock() {
    for ahead in [-1000, 0, 1000] {
        let since = now().saturating_add_signed(ahead);
        let applying =
            NodeRecord { progress: Progress::Applying { since, mig_had_failed: false }, ..record() };
        let propagation =
            Propagation { since, shown: [("nvidia.com/gpu".to_owned(), 4)].into(), cuts: false };
        let lagging = NodeRecord { propagation: Some(propagation), ..record() };
        for (record, gpus, seconds) in [(applying, "1", 180), (lagging, "4", 60)] {
            let api = ApiStandIn::new();
            let mut reconciler = reconciler(&api);
            // Nothing is due for a layout that no policy defines, and what was begun goes on.
            let labels = json!({CONFIG: "a", kerf_core::keys::LAYOUT: "unknown"});
            reconciler.observe(put(&api, &labels, &record, gpus).into());
            let is_as_it_was = || {
                let annotations = &api.get(NODE).unwrap()["metadata"]["annotations"];
                annotations[kerf_core::keys::PLUGIN_LAYOUT] == record.to_json()
            };
            reconciler.reconcile().await;
            tokio::time::advance(Duration::from_secs(seconds - 1)).await;
            reconciler.reconcile().await;
            assert!(is_as_it_was(), "{record:?}");
            tokio::time::advance(Duration::from_secs(1)).await;
            reconciler.reconcile().await;
            assert!(!is_as_it_was(), "{record:?}");
        }
    }
}
