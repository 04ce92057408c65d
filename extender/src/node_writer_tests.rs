use super::*;
use crate::api_stand_in::{ApiStandIn, Fault, node_path};
use crate::ask::Ask;
use crate::cluster_index::Progress;
use crate::in_force::InForce;
use crate::term::{Standing, Term};
use http::Method;
use kerf_core::ledger;
use kerf_core::names::{PodKey, PodUid};
use kerf_core::packing::{Fleet, Terms};
use kerf_core::testing::{node_status, promisee, request};
use kerf_runtime::shutdown::CancellationToken;

/// A term over a node `n` with one H100, as the stand-in has it.
fn term(api: &Arc<ApiStandIn>) -> Arc<Term> {
    api.put_node("n", &GpuNodeSpec::default(), &node_status(&["H100-80GB"]));
    let (metrics, _) = crate::metrics::Metrics::new(&Arc::new(Standing::default()));
    let term =
        Term::new(api.client(), metrics, 1, Terms::default(), InForce::default(), CancellationToken::new());
    term.with(|index| {
        index.show_node(&api.node("n"));
        index.nodes_listed();
        index.pods_listed();
    });
    term
}

fn reserve(term: &Arc<Term>, pod: &str) {
    let ask = Ask::read(Some(&request("nvidia.com/mig-1g.10gb", 1).to_json())).unwrap();
    let key = PodKey::new("default", pod);
    term.with(|index| index.reserve(&uid(pod), &key, &"n".into(), Some(ask))).unwrap();
}

fn uid(pod: &str) -> PodUid {
    PodUid::new(format!("uid-{pod}"))
}

/// Waits until nothing is pending on the node, and gives the progress of `pod`.
async fn settled(term: &Arc<Term>, pod: &str) -> Progress {
    let mut changes = term.watch_node(&"n".into());
    loop {
        changes.mark_unchanged();
        if !term.with(|index| index.is_pending(&"n".into())) {
            return term.with(|index| index.progress(&uid(pod), &"n".into()));
        }
        let patience = Duration::from_mins(1);
        timeout(patience, changes.changed()).await.expect("the writer comes to an end").unwrap();
    }
}

fn pods(spec: &GpuNodeSpec) -> Vec<&str> {
    spec.slices.iter().filter_map(|s| Some(s.reservation.as_ref()?.pod.as_str())).collect()
}

#[tokio::test]
async fn what_gathers_is_written_at_once() {
    let api = ApiStandIn::new();
    let term = term(&api);
    for pod in ["a", "b", "c", "d"] {
        reserve(&term, pod);
    }
    assert_eq!(settled(&term, "d").await, Progress::Cutting { revision: 1 });
    assert_eq!(pods(&api.spec("n")), ["a", "b", "c", "d"]);
    assert_eq!((api.requests(&Method::PATCH), api.requests(&Method::GET)), (1, 0));
}

#[tokio::test]
async fn who_is_refused_reads_again_and_writes_on_top() {
    let api = ApiStandIn::new();
    let term = term(&api);
    api.meddle(|api| {
        let status = node_status(&["H100-80GB"]);
        let small = request("nvidia.com/mig-1g.10gb", 1);
        let other =
            ledger::reserve(&GpuNodeSpec::default(), &status, &small, &promisee("x"), &Fleet::default())
                .unwrap();
        api.put_node("n", &GpuNodeSpec { revision: 4, ..other }, &status);
    });
    reserve(&term, "a");
    assert_eq!(settled(&term, "a").await, Progress::Cutting { revision: 5 });
    let spec = api.spec("n");
    assert_eq!((pods(&spec), spec.revision), (vec!["x", "a"], 5));
    assert_ne!(spec.slices[0].shape, spec.slices[1].shape);
}

#[tokio::test]
async fn a_promise_whose_place_another_took_is_lost() {
    let api = ApiStandIn::new();
    let term = term(&api);
    api.meddle(|api| {
        let status = node_status(&["H100-80GB"]);
        let whole = request("nvidia.com/mig-7g.80gb", 1);
        let other =
            ledger::reserve(&GpuNodeSpec::default(), &status, &whole, &promisee("x"), &Fleet::default())
                .unwrap();
        api.put_node("n", &GpuNodeSpec { revision: 1, ..other }, &status);
    });
    reserve(&term, "a");
    assert_eq!(settled(&term, "a").await, Progress::Lost);
    assert_eq!(pods(&api.spec("n")), ["x"]);
}

#[tokio::test]
async fn a_lost_reply_and_failing_servers_do_not_write_twice() {
    for faults in [
        vec![Fault::LoseReply],
        vec![Fault::Answer(500)],
        vec![Fault::Answer(503), Fault::LoseReply],
        vec![Fault::Answer(429)],
    ] {
        let api = ApiStandIn::new();
        let term = term(&api);
        api.fail(faults.clone());
        reserve(&term, "a");
        assert_eq!(settled(&term, "a").await, Progress::Cutting { revision: 1 }, "{faults:?}");
        let spec = api.spec("n");
        assert_eq!((pods(&spec), spec.revision), (vec!["a"], 1), "{faults:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_spec_that_is_never_taken_is_given_up_with_the_reason() {
    let api = ApiStandIn::new();
    let term = term(&api);
    api.fail([Fault::Answer(403); 5]);
    reserve(&term, "a");
    let Progress::Failed(reason) = settled(&term, "a").await else { panic!("not failed") };
    assert_eq!(reason, "failed to write the GpuNode n: a fault on order");
    // The next one is tried afresh.
    reserve(&term, "b");
    assert_eq!(settled(&term, "b").await, Progress::Cutting { revision: 1 });
}

#[tokio::test]
async fn a_node_that_is_gone_takes_its_promises_along() {
    let api = ApiStandIn::new();
    let term = term(&api);
    api.delete(&node_path("n"));
    reserve(&term, "a");
    assert_eq!(settled(&term, "a").await, Progress::Failed("no kerf agent on the node".into()));
}

#[tokio::test]
async fn a_gpu_node_without_a_revision_is_written_by_its_version() {
    let api = ApiStandIn::new();
    let term = term(&api);
    let mut bare = api.get(&node_path("n")).unwrap();
    bare.as_object_mut().unwrap().remove("spec");
    api.put(&node_path("n"), bare);
    reserve(&term, "a");
    assert_eq!(settled(&term, "a").await, Progress::Cutting { revision: 1 });
    assert_eq!(pods(&api.spec("n")), ["a"]);
}

/// What `kubectl patch` does to a GpuNode's policy.
fn set_policy(api: &ApiStandIn, policy: &Value) {
    let mut node = api.get(&node_path("n")).unwrap();
    node["spec"]["policy"] = policy.clone();
    api.put(&node_path("n"), node);
}

#[tokio::test]
async fn a_policy_that_is_set_between_read_and_write_stays() {
    let api = ApiStandIn::new();
    let term = term(&api);
    api.meddle(|api| set_policy(api, &json!({"overUse": "evict"})));
    reserve(&term, "a");
    assert_eq!(settled(&term, "a").await, Progress::Cutting { revision: 1 });
    assert_eq!(api.get(&node_path("n")).unwrap()["spec"]["policy"], json!({"overUse": "evict"}));
    // The watch shows what was written, then the policy's next change comes beside a write.
    term.with(|index| index.show_node(&api.node("n")));
    api.meddle(|api| set_policy(api, &json!({"removeRejectedPods": true})));
    reserve(&term, "b");
    assert_eq!(settled(&term, "b").await, Progress::Cutting { revision: 2 });
    assert_eq!(api.get(&node_path("n")).unwrap()["spec"]["policy"], json!({"removeRejectedPods": true}));
    assert_eq!(pods(&api.spec("n")), ["a", "b"]);
}

#[tokio::test]
async fn a_policy_without_a_revision_beside_it_stays() {
    let api = ApiStandIn::new();
    let term = term(&api);
    let mut bare = api.get(&node_path("n")).unwrap();
    bare["spec"] = json!({"policy": {"overUse": "evict"}});
    api.put(&node_path("n"), bare);
    reserve(&term, "a");
    assert_eq!(settled(&term, "a").await, Progress::Cutting { revision: 1 });
    assert_eq!(api.get(&node_path("n")).unwrap()["spec"]["policy"], json!({"overUse": "evict"}));
    assert_eq!(pods(&api.spec("n")), ["a"]);
}

#[tokio::test]
async fn a_deposed_leader_writes_nothing() {
    let api = ApiStandIn::new();
    let term = term(&api);
    api.meddle(|api| {
        let newer = GpuNodeSpec { revision: 1, epoch: 2, ..GpuNodeSpec::default() };
        api.put_node("n", &newer, &node_status(&["H100-80GB"]));
    });
    reserve(&term, "a");
    term.stop.cancelled().await;
    let spec = api.spec("n");
    assert_eq!((spec.epoch, spec.revision, pods(&spec).len()), (2, 1, 0));
}
