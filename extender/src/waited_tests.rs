//! Who is told and who is made anew, as a function of who waits, the supply and the policies.

use super::*;
use crate::api_stand_in::{ApiStandIn, pod_path};
use crate::metrics::Metrics;
use crate::pod::SlicedPod;
use http::Method;
use kerf_core::contract::{Chosen, ContainerRequest, GpuNodeSpec, RequestDocument};
use kerf_core::packing::Terms;
use kerf_core::policy::PolicyDocument;
use kerf_core::testing::{node_status, request};
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::shutdown::CancellationToken;
use serde_json::json;

fn policies(then: &str) -> Policies {
    let document: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"},
        "spec": {
            "defaultIsolation": "memory", "isolation": {"memory": ["mig", "mps"]},
            "waiting": {"afterSeconds": 60, "then": then},
        },
    }))
    .unwrap();
    Policies { pods: vec![document.try_into().unwrap()], ..Policies::default() }
}

/// T4s on which nobody has anything, and nothing that MIG cuts.
fn supply(gpus: usize) -> Supply {
    let mut index = SupplyIndex::default();
    index.show("n".into(), &GpuNodeSpec::default(), &node_status(&vec!["T4-16GB"; gpus]), true);
    index.supply()
}

fn waiter(pod: &str, seconds: u64, chosen: Chosen) -> Waiter {
    let document = RequestDocument {
        chosen: Some(chosen),
        isolation: kerf_core::kind::IsolationClass::Memory,
        ..request("nvidia.com/mig-1g.10gb", 1)
    };
    let ask = Ask::read(Some(&document.to_json())).unwrap();
    Waiter {
        uid: PodUid::new(pod),
        pod: PodKey::new("default", pod),
        ask,
        waited: Duration::from_secs(seconds),
        kept: None,
    }
}

fn by(policy: &str) -> Chosen {
    Chosen { policy: policy.to_owned(), ..Chosen::default() }
}

fn found(waiters: &[Waiter], gpus: usize, then: &str) -> Vec<(String, WaitedLong)> {
    let due = due(waiters, &supply(gpus), &Slices::new(), &policies(then));
    due.into_iter().map(|due| (due.pod.name, due.then)).collect()
}

#[test]
fn who_has_waited_for_the_policys_time_is_told() {
    let waiters =
        [waiter("long", 60, by("p")), waiter("short", 59, by("p")), waiter("other", 900, by("gone"))];
    assert_eq!(found(&waiters, 1, "tell"), [("long".to_owned(), WaitedLong::Tell)]);
    assert_eq!(found(&waiters, 0, "tell"), [], "nothing has room");
}

#[test]
fn no_more_are_made_anew_than_there_is_room_for() {
    let waiters = ["a", "b", "c"].map(|pod| waiter(pod, 60, by("p")));
    let anew =
        |pods: &[&str]| pods.iter().map(|p| ((*p).to_owned(), WaitedLong::Recreate)).collect::<Vec<_>>();
    assert_eq!(found(&waiters, 2, "recreate"), anew(&["a", "b"]));
    assert_eq!(found(&waiters, 2, "tell").len(), 3, "each is told what there is");
}

#[test]
fn who_names_the_kind_would_wait_again_and_is_told_how_to_ask() {
    let named = Chosen { named: vec!["main".to_owned()], ..by("p") };
    let all = due(
        &[waiter("a", 75, named), waiter("b", 60, by("p"))],
        &supply(1),
        &Slices::new(),
        &policies("recreate"),
    );
    assert_eq!(all.iter().map(|due| due.then).collect::<Vec<_>>(), [WaitedLong::Tell, WaitedLong::Recreate]);
    assert_eq!(
        all[0].note(),
        "container main has waited 75 s for nvidia.com/mig-1g.10gb, which stays full; nvidia.com/gpu-10gb has room for 1 more: ask by size (kerf.dev/gpu-10gb) and not by name, and it may be given that"
    );
    assert!(all[1].note().ends_with("room for 1 more: create the pod anew, and it is given that"));
}

#[test]
fn what_a_pod_waits_for_itself_is_not_in_its_way() {
    let mut document = RequestDocument::clone(&waiter("a", 60, by("p")).ask.document);
    let kept =
        ContainerRequest { name: "side".to_owned(), ..request("nvidia.com/gpu-4gb", 1).containers.remove(0) };
    document.containers.push(kept);
    let ask = Ask::read(Some(&document.to_json())).unwrap();
    let pending = document.slices();
    let waiter = Waiter { ask, ..waiter("a", 60, by("p")) };
    let due = |pending| due(std::slice::from_ref(&waiter), &supply(1), &pending, &policies("recreate")).len();
    assert_eq!(due(pending.clone()), 1, "the share of 4 GB is the pod's own");
    let twice = pending.into_iter().map(|(name, count)| (name, count * 4)).collect();
    assert_eq!(due(twice), 0, "others wait for it too");
}

#[test]
fn who_has_no_controller_takes_nobodys_place() {
    let orphan = Waiter { kept: Some(Kept::Orphan), ..waiter("a", 75, by("p")) };
    let both = [("a".to_owned(), WaitedLong::Tell), ("b".to_owned(), WaitedLong::Recreate)];
    assert_eq!(found(&[orphan, waiter("b", 60, by("p"))], 1, "recreate"), both);
}

#[test]
fn a_pod_is_told_once_of_each_alternative() {
    let mut memory = Memory::default();
    let mut all = due(&[waiter("a", 60, by("p"))], &supply(1), &Slices::new(), &policies("tell"));
    let mut due = all.remove(0);
    assert!(memory.is_news(&due) && !memory.is_news(&due));
    due.found.other = "nvidia.com/gpu".parse().unwrap();
    assert!(memory.is_news(&due));
}

#[test]
fn a_pod_waits_from_when_it_was_first_refused_and_begins_anew_after_it_had_room() {
    let (mut memory, start) = (Memory::default(), Instant::now());
    let refused = |pods: &[&str]| -> Vec<_> {
        pods.iter().map(|pod| waiter(pod, 0, by("p"))).map(|w| (w.uid, w.pod, w.ask)).collect()
    };
    let mut waited = |pods: &[&str], seconds: u64| -> Vec<(String, u64)> {
        let waiters = memory.waiters(refused(pods), start + Duration::from_secs(seconds));
        waiters.into_iter().map(|w| (w.pod.name, w.waited.as_secs())).collect()
    };
    assert_eq!(waited(&["a"], 0), [("a".to_owned(), 0)]);
    assert_eq!(waited(&["b", "a"], 9), [("a".to_owned(), 9), ("b".to_owned(), 0)]);
    assert_eq!(waited(&["b"], 18), [("b".to_owned(), 9)]);
    assert_eq!(waited(&["b", "a"], 27), [("b".to_owned(), 18), ("a".to_owned(), 0)]);
}

#[test]
fn few_pods_are_deleted_in_a_minute() {
    let (mut allowance, start) = (Allowance::default(), Instant::now());
    assert!((0..MOST).all(|_| allowance.take(start)));
    assert!(!allowance.take(start));
    allowance.give_back();
    assert!(allowance.take(start));
    assert!(!allowance.take(start + (SPAN.saturating_sub(Duration::from_millis(1)))));
    assert!(allowance.take(start + SPAN));
}

fn term(api: &Arc<ApiStandIn>) -> Arc<Term> {
    term_under(api, Policies::default())
}

fn term_under(api: &Arc<ApiStandIn>, policies: Policies) -> Arc<Term> {
    let (metrics, _) = Metrics::new(&Arc::default());
    Term::new(api.client(), metrics, 1, Terms::default(), policies.into(), CancellationToken::new())
}

/// A pod that is to be made anew.
fn to_make_anew(pod: &str) -> Due {
    due(&[waiter(pod, 75, by("p"))], &supply(1), &Slices::new(), &policies("recreate")).remove(0)
}

#[tokio::test]
async fn a_pod_of_a_job_is_told_instead_of_being_counted_as_failed() {
    let (api, mut memory) = (ApiStandIn::new(), Memory::default());
    let owner = |kind: &str, group: &str| json!([{"apiVersion": group, "kind": kind, "name": "o", "uid": "o", "controller": true}]);
    let put = |pod: &str, owners| {
        let metadata = json!({"name": pod, "namespace": "default", "uid": pod, "ownerReferences": owners});
        api.put(&pod_path(pod), json!({"metadata": metadata}));
    };
    put("of-a-job", owner("Job", "batch/v1"));
    put("of-another", owner("Job", "kubeflow.org/v1"));
    let term = term(&api);
    act(&term, &mut memory, to_make_anew("of-a-job"), Instant::now()).await;
    assert_eq!(api.requests(&Method::DELETE), 0);
    assert_eq!(memory.kept, [(PodUid::new("of-a-job"), Kept::OfJob)].into(), "it is not tried again");
    let told = api.get("/apis/events.k8s.io/v1/namespaces/default/events/of-a-job-").unwrap();
    let note = told["note"].as_str().unwrap();
    assert!(note.contains("create its Job anew") && note.contains("count it as failed"), "{note}");
    act(&term, &mut memory, to_make_anew("of-another"), Instant::now()).await;
    assert_eq!(api.requests(&Method::DELETE), 1);
}

#[tokio::test]
async fn a_pod_that_is_gone_uses_up_no_deletion() {
    let (api, mut memory) = (ApiStandIn::new(), Memory::default());
    let term = term(&api);
    for _ in 0..=MOST {
        act(&term, &mut memory, to_make_anew("gone"), Instant::now()).await;
    }
    assert!(memory.deletions.0.is_empty());
    assert_eq!(api.requests(&Method::POST), 0, "nobody is told");
}

/// It was given a MIG slice before there was a node: no node has the labels that it wants, and no filter is ever called.
#[tokio::test]
async fn a_pod_that_came_before_the_nodes_is_made_anew_for_what_they_have() {
    for may_delete in [true, false] {
        comes_before_the_nodes(may_delete).await;
    }
}

async fn comes_before_the_nodes(may_delete: bool) {
    let memory = Memory { only_tells: !may_delete, ..Memory::default() };
    let (api, mut memory, start) = (ApiStandIn::new(), memory, Instant::now());
    let term = term_under(&api, policies("recreate"));
    let owners =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "o", "controller": true}]);
    let request = waiter("early", 0, by("p")).ask.text;
    let pod = json!({"metadata": {
        "name": "early", "namespace": "default", "uid": "early", "ownerReferences": owners,
        "annotations": {kerf_core::keys::REQUEST: *request},
    }});
    api.put(&pod_path("early"), pod.clone());
    let mut node = GpuNode::new(&"n".into());
    (node.spec, node.status) = (Some(json!(GpuNodeSpec::default())), Some(json!(node_status(&["T4-16GB"]))));
    term.with(|index| {
        index.show_node(&node);
        index.nodes_listed();
        index.show_pod(serde_json::from_value::<SlicedPod>(pod).unwrap().into());
        index.pods_listed();
    });
    for seconds in (0..=60).step_by(6) {
        assert_eq!(api.requests(&Method::DELETE), 0, "after {seconds} s");
        look(&term, &mut memory, start + Duration::from_secs(seconds)).await;
    }
    assert_eq!(api.requests(&Method::DELETE), usize::from(may_delete));
    assert_eq!(api.requests(&Method::POST), 1, "it is told in either case");
}
