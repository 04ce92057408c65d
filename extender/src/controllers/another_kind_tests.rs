//! Tests which pending pods get an Event that another kind would serve them.

use super::*;
use crate::api_stand_in::ApiStandIn;
use crate::cluster_index::scene::{Agent, gpu_node};
use crate::metrics::Metrics;
use crate::objects::pod::{KnownPod, SlicedPod};
use crate::policy_source::PolicySource;
use crate::scheduling::filter::tests::neutral_cluster;
use http::Method;
use kerf_core::contract::{Chosen, GpuNodeStatus, RequestDocument, RootProcesses};
use kerf_core::kind::IsolationClass;
use kerf_core::packing::Terms;
use kerf_core::policy::{Policies, PolicyDocument};
use kerf_core::testing::{node_status, request};
use kerf_core::units::SizeGb;
use kerf_runtime::shutdown::CancellationToken;
use serde_json::{Value, json};

#[expect(clippy::needless_pass_by_value, reason = "callers write the document in place")]
fn policies(kinds: Value) -> Arc<Policies> {
    let document: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"},
        "spec": {"defaultIsolation": "memory", "isolation": {"memory": kinds}},
    }))
    .unwrap();
    Arc::new(Policies { pods: vec![document.try_into().unwrap()], ..Policies::default() })
}

fn chosen() -> Chosen {
    Chosen { policy: "p".to_owned(), ..Chosen::default() }
}

/// A pod of 10 GB to which the webhook gave a GPU instance.
fn document(chosen: Chosen) -> RequestDocument {
    RequestDocument {
        chosen: Some(chosen),
        isolation: IsolationClass::Memory,
        ..request("nvidia.com/mig-1g.10gb", 1)
    }
}

/// A pod as the watch shows it.
#[expect(clippy::needless_pass_by_value, reason = "callers write the document in place")]
fn pod(name: &str, document: &RequestDocument, spec: Value) -> KnownPod {
    let annotations = json!({kerf_core::keys::REQUEST: document.to_json()});
    let metadata = json!({"name": name, "namespace": "default", "uid": name, "annotations": annotations});
    serde_json::from_value::<SlicedPod>(json!({"metadata": metadata, "spec": spec})).unwrap().into()
}

/// Those of the pods that get the Event on a cluster of T4s.
fn reported(kinds: Value, pods: &[KnownPod]) -> Vec<String> {
    let mut index = neutral_cluster(&[("t4", &["T4-16GB"])]);
    index.nodes().set_policies(&policies(kinds));
    for pod in pods {
        index.show_pod(pod.clone());
    }
    let pending = index.scheduling().unplaced().into_iter().map(|uid| (uid, PENDING_LIMIT)).collect();
    index.scheduling().served_by_another_kind(&pending).into_iter().map(|(_, pod, _)| pod.name).collect()
}

#[test]
fn a_pod_gets_the_event_for_a_kind_of_its_class_that_it_does_not_exclude() {
    let both = json!(["mig", "mps"]);
    let plain = pod("plain", &document(chosen()), json!({}));
    assert_eq!(reported(both.clone(), std::slice::from_ref(&plain)), ["plain"]);
    assert!(reported(json!(["mig"]), std::slice::from_ref(&plain)).is_empty(), "its class has no other kind");
    let named = Chosen { named: vec!["main".to_owned()], ..chosen() };
    let gone = Chosen { policy: "gone".to_owned(), ..chosen() };
    let kept_out = RequestDocument { root_processes: RootProcesses::KeptOut, ..document(chosen()) };
    let mut large = document(chosen());
    large.containers[0].size_gb = SizeGb(20);
    let others = [
        pod("named", &document(named), json!({})),
        pod("of-no-policy", &document(gone), json!({})),
        pod("root", &kept_out, json!({})),
        pod("large", &large, json!({})),
        pod("gated", &document(chosen()), json!({"schedulingGates": [{"name": "queue"}]})),
        pod("bound", &document(chosen()), json!({"nodeName": "t4"})),
    ];
    assert_eq!(reported(both, &others), [""; 0]);
}

#[test]
fn a_pod_gets_the_event_only_for_nodes_that_it_may_go_to() {
    let term = |key: &str, operator: &str, value: &str| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}],
        }}}})
    };
    let taint = |effect: &str| serde_json::from_value(json!({"key": "spot", "effect": effect})).unwrap();
    for (spec, taints, is_published) in [
        (json!({"nodeSelector": {"pool": "a"}}), vec![], true),
        (json!({"nodeSelector": {"pool": "b"}}), vec![], false),
        // The node affinity that kerf adds for the kind that the pod has.
        (term("kerf.dev/mig-max-gb", "Gt", "9"), vec![], true),
        (term("pool", "In", "b"), vec![], false),
        (json!({}), vec![taint("NoSchedule")], false),
        (json!({"tolerations": [{"operator": "Exists"}]}), vec![taint("NoSchedule")], true),
    ] {
        let mut index = neutral_cluster(&[("t4", &["T4-16GB"])]);
        index.nodes().set_policies(&policies(json!(["mig", "mps"])));
        let labels = [("pool", "a"), ("kerf.dev/mps-max-gb", "14")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        index.nodes().objects().set_labels("t4".into(), Some(labels.into()));
        index.nodes().objects().set_taints("t4".into(), taints);
        index.show_pod(pod("a", &document(chosen()), spec.clone()));
        let pending = [("a".into(), PENDING_LIMIT)].into();
        assert_eq!(!index.scheduling().served_by_another_kind(&pending).is_empty(), is_published, "{spec}");
    }
}

#[test]
fn a_pod_whose_kind_has_room_gets_no_event() {
    let mut index = neutral_cluster(&[("t4", &["T4-16GB"]), ("h100", &["H100-80GB"])]);
    index.nodes().set_policies(&policies(json!(["mig", "mps"])));
    index.show_pod(pod("a", &document(chosen()), json!({})));
    let pending = [("a".into(), PENDING_LIMIT)].into();
    assert!(
        index.scheduling().served_by_another_kind(&pending).is_empty(),
        "the scheduler has another reason"
    );
    index.nodes().objects().set_closed("h100".into(), true);
    let found = index.scheduling().served_by_another_kind(&pending);
    let note = found[0].2.to_string();
    assert_eq!(
        note,
        "no node has free capacity of nvidia.com/mig-1g.10gb for container main, which has been pending for 300 s; t4 could serve it by mps: create the pod anew (of a Job, the Job), and it can be given that"
    );
}

#[test]
fn a_pod_is_due_once_after_five_minutes_without_a_break() {
    let (mut memory, start) = (Memory::default(), Instant::now());
    let mut due = |pending: &[&str], minutes: u64, tell: bool| -> Vec<String> {
        let pending = pending.iter().map(|uid| PodUid::new(*uid)).collect();
        let due = memory.due(pending, start + Duration::from_mins(minutes));
        if tell {
            memory.reported.extend(due.keys().cloned());
        }
        due.into_keys().map(|uid| uid.to_string()).collect()
    };
    assert_eq!(due(&["a", "b"], 0, true), [""; 0]);
    assert_eq!(due(&["a"], 4, true), [""; 0]);
    assert_eq!(due(&["a", "b"], 5, false), ["a"], "b had a place meanwhile");
    assert_eq!(due(&["a", "b"], 6, true), ["a"]);
    assert_eq!(due(&["a", "b"], 10, true), ["b"], "a has its event");
}

#[tokio::test]
async fn a_pod_that_came_before_the_nodes_gets_one_event() {
    let api = ApiStandIn::new();
    let (metrics, _) = Metrics::new();
    let policies = PolicySource::from(Policies::clone(&policies(json!(["mig", "mps"]))));
    let stop = CancellationToken::new();
    let term = Term::new(api.client(), metrics, 1, Terms::default(), policies, stop);
    let status = GpuNodeStatus { neutral_up_to: Some(SizeGb(16)), ..node_status(&["T4-16GB"]) };
    let (mut memory, start) = (Memory::default(), Instant::now());
    term.with(|index| {
        index.show_pod(pod("early", &document(chosen()), json!({})));
        index.nodes().end_gpu_node_list();
    });
    look(&term, &mut memory, start).await;
    term.with(|index| {
        index.end_pod_list();
        index.take_over();
        index.nodes().show_gpu_node(&gpu_node("t4"));
        Agent::of("t4", status).report(index);
    });
    for seconds in (10..=400).step_by(10) {
        look(&term, &mut memory, start + Duration::from_secs(seconds)).await;
        assert_eq!(api.requests(&Method::POST), usize::from(seconds >= 310), "after {seconds} s");
    }
    assert_eq!(api.requests(&Method::DELETE), 0);
    let event = api.get("/apis/events.k8s.io/v1/namespaces/default/events/early-").unwrap();
    assert_eq!(event["reason"], "AnotherKindHasRoom");
}
