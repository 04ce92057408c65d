use super::scene::{Scene, filter};
use super::*;
use crate::assumed::ASSUMED_TIMEOUT;
use crate::objects::ask::Ask;
use crate::objects::pod::KnownPod;
use crate::objects::template::Template;
use crate::scheduling::filter::{Candidate, Filtered};
use kerf_core::contract::{Chosen, RequestDocument};
use kerf_core::names::PodKey;
use kerf_core::packing::Refusal;
use kerf_core::packing::Terms;
use kerf_core::policy::Policies;
use kerf_core::quota::{Cap, Charge};
use kerf_core::request::{PodFacts, SelectingFields};
use kerf_core::resource::ResourceName;
use kerf_core::static_node::Devices;
use kerf_core::testing::{node_status, request, request_sized};
use kerf_core::units::SizeGb;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HALF: &str = "nvidia.com/mig-3g.40gb";
const SMALL: &str = "nvidia.com/mig-1g.10gb";

/// Policies of these names, with these quotas of memory in GB, for pods whose label `policy` has that name.
fn policies(quotas: &[(&str, u32)]) -> Arc<Policies> {
    let policy = |(name, memory): &(&str, u32)| {
        let document = json!({
            "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name},
            "spec": {
                "match": {"labels": {"policy": name}}, "quota": Cap { memory_gb: Some(*memory), slices: None },
                "defaultIsolation": "none", "isolation": {"none": ["mig"]},
            },
        });
        let document: kerf_core::policy::PolicyDocument = serde_json::from_value(document).unwrap();
        document.try_into().unwrap()
    };
    Arc::new(Policies { pods: quotas.iter().map(policy).collect(), nodes: Vec::new() })
}

/// A listed cluster of two H100 nodes under the policy `p` with a quota of 80 GB.
fn cluster() -> Scene {
    let mut index = Scene::leading(&["n1", "n2"].map(|name| (name, &["H100-80GB"][..])));
    index.nodes().set_policies(&policies(&[("p", 80)]));
    index.requeue(Instant::now());
    index
}

/// A pod of the namespace `team`, under this policy by its document.
fn pod(name: &str, request: RequestDocument, policy: &str) -> Candidate {
    let chosen = Some(Chosen { policy: policy.to_owned(), ..Chosen::default() });
    let labels = [("policy".to_owned(), "p".to_owned())].into();
    let fields = SelectingFields { labels, ..SelectingFields::default() };
    let facts = PodFacts::new("team", fields, Vec::new());
    let ask = Ask::read(Some(&RequestDocument { chosen, ..request }.to_json()));
    Candidate {
        devices: Devices::new(),
        tolerations: Vec::new(),
        nominated: None,
        uid: PodUid::new(format!("uid-{name}")),
        key: PodKey::new("team", name),
        ask: ask.map(|ask| ask.of(Arc::new(facts))),
    }
}

fn half(name: &str) -> Candidate {
    pod(name, request(HALF, 1), "p")
}

fn known(pod: &Candidate, node: Option<&str>) -> KnownPod {
    let ask = pod.ask.clone().unwrap();
    let template = Template {
        policy: ask.document.chosen.as_ref().map(|chosen| chosen.policy.as_str().into()),
        request: Some(ask.text),
        facts: ask.facts,
        ..Template::default()
    };
    KnownPod { node: node.map(NodeName::new), ..KnownPod::new(pod.uid.clone(), pod.key.clone(), template) }
}

fn ask_for(index: &mut Scene, pod: &Candidate, now: Instant) -> Filtered<'static> {
    filter(index, pod, &["n1", "n2"], now)
}

/// Filters and binds a pod, and shows it bound.
fn run(index: &mut Scene, pod: &Candidate, node: &str) {
    assert!(ask_for(index, pod, Instant::now()).fitting.contains(&node));
    index.reserve(&pod.uid, &pod.key, &node.into(), None).unwrap();
    index.show_pod(known(pod, Some(node)));
}

/// The policy decides which namespaces appear by name, because tenants choose the names of namespaces.
#[test]
fn the_use_of_a_quota_names_only_namespaces_that_the_policy_names() {
    let document = |name: &str, namespaces: &[&str]| -> kerf_core::policy::Policy {
        let document = json!({
            "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name},
            "spec": {
                "match": {"namespaces": namespaces}, "quota": {"memoryGb": 80, "slices": 4},
                "defaultIsolation": "none", "isolation": {"none": ["mig"]},
            },
        });
        serde_json::from_value::<kerf_core::policy::PolicyDocument>(document).unwrap().try_into().unwrap()
    };
    let mut index = cluster();
    let pods = vec![document("p", &["team", "idle"]), document("wide", &["lab-*", "team"])];
    index.nodes().set_policies(&Arc::new(Policies { pods, nodes: Vec::new() }));
    run(&mut index, &half("a"), "n1");
    let mut theirs = half("b");
    theirs.key.namespace = "lab-1".to_owned();
    let facts = PodFacts::new("lab-1", SelectingFields::default(), Vec::new());
    let chosen = pod("b", request(SMALL, 1), "wide").ask.unwrap();
    theirs.ask = Ok(chosen.of(Arc::new(facts)));
    run(&mut index, &theirs, "n2");
    let uses = index.statistics().quota_uses();
    let reported = uses.iter().map(|u| (&*u.policy, u.namespace.as_deref(), u.used.memory_gb, u.used.slices));
    let expected = [
        ("p", Some("team"), 40, 1),
        ("p", Some("idle"), 0, 0),
        ("wide", Some("team"), 0, 0),
        ("wide", None, 10, 1),
    ];
    assert_eq!(reported.collect::<Vec<_>>(), expected);
    index.nodes().set_policies(&policies(&[("p", 80)]));
    let named: Vec<_> =
        index.statistics().quota_uses().into_iter().map(|reported| reported.namespace).collect();
    assert_eq!(named, [None], "by a label, so that no namespace is named");
}

fn refused(filtered: &Filtered<'_>, refusal: Refusal) -> bool {
    filtered.fitting.is_empty() && filtered.refused.iter().all(|(_, why)| *why == refusal)
}

#[test]
fn pods_that_are_filtered_at_once_stay_within_the_quota_together() {
    let (mut index, now) = (cluster(), Instant::now());
    for name in ["a", "b"] {
        assert_eq!(ask_for(&mut index, &half(name), now).fitting, ["n1", "n2"]);
    }
    assert!(refused(&ask_for(&mut index, &half("c"), now), Refusal::QuotaFull));
    let stranger = Candidate { key: PodKey::new("other", "d"), ..pod("d", request(HALF, 1), "p") };
    let facts = PodFacts::new("other", SelectingFields::default(), Vec::new());
    let stranger = Candidate { ask: stranger.ask.map(|ask| ask.of(Arc::new(facts))), ..stranger };
    assert!(!ask_for(&mut index, &stranger, now).fitting.is_empty(), "each namespace has its own");
    assert!(!ask_for(&mut index, &half("c"), now + ASSUMED_TIMEOUT).fitting.is_empty(), "hopes end");
}

#[test]
fn a_reservation_is_within_the_quota_whatever_the_filter_answered() {
    let (mut index, now) = (cluster(), Instant::now());
    let pods = [half("a"), half("b"), half("c")];
    for (number, pod) in pods.iter().enumerate() {
        let later = now + ASSUMED_TIMEOUT * u32::try_from(number).unwrap();
        assert!(!ask_for(&mut index, pod, later).fitting.is_empty());
        index.show_pod(known(pod, None));
    }
    for (pod, node) in pods.iter().zip(["n1", "n2"]) {
        index.reserve(&pod.uid, &pod.key, &node.into(), None).unwrap();
    }
    let third = index.reserve(&pods[2].uid, &pods[2].key, &"n1".into(), None);
    assert_eq!(third, Err(Unreservable::Refused(Refusal::QuotaFull)));
    assert_eq!(index.desired("n1").len(), 1);
}

#[test]
fn a_held_back_pod_is_requeued_for_any_offered_node_when_a_pod_of_its_namespace_ends() {
    let (mut index, now) = (cluster(), Instant::now());
    let (a, b) = (half("a"), half("b"));
    run(&mut index, &a, "n1");
    run(&mut index, &b, "n1");
    let c = half("c");
    index.show_pod(known(&c, None));
    assert!(refused(&filter(&mut index, &c, &["n2"], now), Refusal::QuotaFull));
    assert!(index.requeue(now).is_empty());
    index.show_pod(KnownPod { ended: true, ..known(&a, Some("n1")) });
    index.obey();
    let woken = index.requeue(now);
    assert_eq!(woken, [(c.uid.clone(), c.key.clone())], "n2 has not changed");
    assert_eq!(filter(&mut index, &c, &["n2"], now).fitting, ["n2"]);
}

#[test]
fn slices_that_the_kubelet_still_lists_for_an_ended_pod_count() {
    let mut index = cluster();
    let (a, b) = (half("a"), half("b"));
    run(&mut index, &a, "n1");
    run(&mut index, &b, "n2");
    index.cut("n1", true);
    index.hide_pod(&KnownPod { deleting: true, ..known(&a, Some("n1")) });
    assert!(refused(&ask_for(&mut index, &half("c"), Instant::now()), Refusal::QuotaFull));
    index.pod_gone(&a.uid);
    assert!(!ask_for(&mut index, &half("c"), Instant::now()).fitting.is_empty());
}

#[test]
fn a_new_leader_counts_reservations_before_it_knows_the_pods() {
    let mut index = cluster();
    run(&mut index, &half("a"), "n1");
    run(&mut index, &half("b"), "n1");
    let mut next = index.succeeded_by(ClusterIndex::new(2, Terms::default()));
    next.nodes().set_policies(&policies(&[("p", 80), ("q", 80)]));
    next.connect();
    let (c, other) = (half("c"), pod("other", request(HALF, 1), "q"));
    for pod in [&c, &other] {
        assert!(refused(&ask_for(&mut next, pod, Instant::now()), Refusal::QuotaFull));
    }
    for name in ["a", "b"] {
        next.show_pod(known(&half(name), Some("n1")));
    }
    assert!(refused(&ask_for(&mut next, &c, Instant::now()), Refusal::QuotaFull));
    assert!(!ask_for(&mut next, &other, Instant::now()).fitting.is_empty(), "they are under another policy");
}

#[test]
fn a_changed_policy_counts_at_once_and_the_first_match_replaces_a_deleted_one() {
    let (mut index, now) = (cluster(), Instant::now());
    run(&mut index, &half("a"), "n1");
    let b = pod("b", request(HALF, 1), "gone");
    index.show_pod(known(&b, None));
    index.nodes().set_policies(&policies(&[("p", 40)]));
    assert!(refused(&ask_for(&mut index, &b, now), Refusal::QuotaFull), "p matches its label");
    assert!(index.requeue(now).is_empty());
    index.nodes().set_policies(&policies(&[("p", 80)]));
    assert_eq!(index.requeue(now).len(), 1);
    index.nodes().set_policies(&policies(&[("p", 30)]));
    let c = half("c");
    assert!(refused(&ask_for(&mut index, &c, now), Refusal::OverQuota), "waiting is of no use");
    index.nodes().set_policies(&Arc::default());
    assert!(!ask_for(&mut index, &c, now).fitting.is_empty(), "no policy limits it");
}

#[test]
fn a_whole_gpu_is_charged_by_its_size() {
    let (mut index, now) = (cluster(), Instant::now());
    let mut status = node_status(&["T4-16GB", "L4-24GB"]);
    index.add("n1", status.clone());
    status.gpus.remove(0);
    index.add("n2", status);
    let whole = |name: &str| pod(name, request_sized(ResourceName::Whole, SizeGb(14), 1), "p");
    index.nodes().set_policies(&policies(&[("p", 20)]));
    let filtered = ask_for(&mut index, &whole("a"), now);
    assert_eq!(filtered.fitting, ["n1"], "there it takes the smaller one");
    assert_eq!(filtered.refused, [("n2", Refusal::OverQuota)]);
    run(&mut index, &whole("a"), "n1");
    assert!(refused(&ask_for(&mut index, &whole("b"), now), Refusal::QuotaFull));
    let b = index.reserve(&whole("b").uid, &whole("b").key, &"n1".into(), whole("b").ask.ok());
    assert_eq!(b, Err(Unreservable::Refused(Refusal::OverQuota)));
}

#[test]
fn a_held_back_pod_gets_an_event_for_a_new_reason_at_most_once_a_minute() {
    let (mut index, now) = (cluster(), Instant::now());
    let reported = |index: &mut Scene, at: Duration| -> Vec<String> {
        let over = ask_for(index, &pod("c", request(SMALL, 5), "p"), now + at);
        assert!(over.fitting.is_empty());
        index.take_effects().held_back.iter().map(|held| held.over.to_string()).collect()
    };
    run(&mut index, &half("a"), "n1");
    let text = |held: u32| format!("namespace team holds {held} of 80 GB under policy p, the pod asks 50");
    assert_eq!(reported(&mut index, Duration::ZERO), [text(40)]);
    assert!(reported(&mut index, Duration::from_mins(2)).is_empty(), "nothing is new");
    run(&mut index, &half("b"), "n1");
    assert!(reported(&mut index, Duration::from_secs(59)).is_empty(), "too soon");
    assert_eq!(reported(&mut index, Duration::from_mins(1)), [text(80)]);
}

/// The agent reports nothing of these bound pods: it is not connected to this leader, or not yet, or the GpuNode is
/// gone.
#[test]
fn a_pod_is_charged_once_whether_its_node_is_connected_or_not() {
    let mut index = cluster();
    let used = |index: &ClusterIndex| index.statistics().quota_uses()[0].used.memory_gb;
    let n1 = NodeName::new("n1");
    let a = half("a");
    index.show_pod(known(&a, None));
    index.reserving().propose(&a.uid, &a.key, &n1, None).unwrap();
    assert_eq!(used(&index), 40, "it is proposed");
    index.reserve(&a.uid, &a.key, &n1, None).unwrap();
    assert_eq!(used(&index), 40, "it is reserved");
    let assigned = Some(Charge { memory_gb: 40, slices: 1 });
    let bound = KnownPod { assigned, has_slices: true, ..known(&a, Some("n1")) };
    index.show_pod(bound.clone());
    assert_eq!(used(&index), 40, "it is bound");
    index.disconnect("n1");
    assert_eq!(used(&index), 40, "its node is not connected");
    assert!(!refused(&filter(&mut index, &half("b"), &["n2"], Instant::now()), Refusal::QuotaFull));
    run(&mut index, &half("b"), "n2");
    assert!(refused(&filter(&mut index, &half("c"), &["n2"], Instant::now()), Refusal::QuotaFull));
    index.connect();
    assert_eq!(used(&index), 80, "its node is connected again");
    index.nodes().set_policies(&policies(&[("p", 81)]));
    assert_eq!(used(&index), 80);
    index.disconnect("n1");
    index.nodes().remove_gpu_node(&n1);
    assert_eq!(used(&index), 80, "its GpuNode was deleted");
    index.show_pod(KnownPod { ended: true, ..bound.clone() });
    assert_eq!(used(&index), 40);
    index.show_pod(KnownPod { uid: "uid-d".into(), ..bound.clone() });
    index.nodes().set_policies(&policies(&[("p", 80)]));
    assert_eq!(used(&index), 80);
    index.hide_pod(&KnownPod { uid: "uid-d".into(), deleting: true, ..bound });
    assert_eq!(used(&index), 40);
}
