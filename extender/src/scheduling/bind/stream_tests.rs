//! Binds on a node over a real connection to its simulated agent.

use super::*;
use crate::api_stand_in::{Fault, pod_path};
use crate::controllers::timers::close_unresponsive;
use crate::in_flight::LIMIT;
use crate::metrics::Metrics;
use crate::scheduling::filter::tests::{pod, unbound};
use crate::simulated_agent::{EPOCH, Leader};
use http::Method;
use kerf_core::keys;
use kerf_core::ledger::{Moment, Order, OrderKind};
use kerf_core::names::PodKey;
use std::ops::{Deref, DerefMut};

const GATE: Duration = Duration::from_secs(4);
const SMALL: &str = "nvidia.com/mig-1g.10gb";

struct Scene(Leader);

impl Deref for Scene {
    type Target = Leader;

    fn deref(&self) -> &Leader {
        &self.0
    }
}

impl DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut Leader {
        &mut self.0
    }
}

impl Scene {
    async fn start(cuts: bool) -> Self {
        Self(Leader::start(Metrics::new().0, cuts).await)
    }

    fn put_pod(&self, name: &str) {
        self.api.put_pod(name, None);
        self.term.with(|index| index.show_pod(unbound(&pod(name, SMALL))));
    }

    async fn bind(&self, name: &str, gate: Duration) -> Result<(), BindError> {
        let (uid, key) = (PodUid::new(format!("uid-{name}")), PodKey::new("default", name));
        bind(&self.term, Bind { uid, key, node: "n".into() }, gate).await
    }

    /// Binds a pod until its mark is sent, whose answer is held back.
    async fn mark(&self, name: &str) -> tokio::task::JoinHandle<Result<(), BindError>> {
        self.put_pod(name);
        let (uid, key) = (PodUid::new(format!("uid-{name}")), PodKey::new("default", name));
        let (term, pod) = (self.term.clone(), Bind { uid, key, node: "n".into() });
        let bind = tokio::spawn(async move { bind(&term, pod, GATE).await });
        self.agent.was_ordered(&["reserve"]).await;
        self.agent.hold_answers();
        self.agent.cut();
        self.agent.was_ordered(&["reserve", "mark"]).await;
        bind
    }

    /// The node that the API server has bound a pod to.
    fn node_of(&self, name: &str) -> Option<String> {
        let pod = self.api.get(&pod_path(name)).unwrap();
        pod["spec"]["nodeName"].as_str().map(str::to_owned)
    }
}

#[tokio::test]
async fn a_pod_is_bound_after_one_order_and_one_mark() {
    let scene = Scene::start(true).await;
    scene.put_pod("a");
    scene.bind("a", GATE).await.unwrap();
    assert_eq!(scene.node_of("a").as_deref(), Some("n"));
    scene.agent.was_ordered(&["reserve", "mark", "bound"]).await;
    let written = [Method::PUT, Method::PATCH].map(|method| scene.api.requests(&method));
    assert_eq!(written, [0, 0], "the Binding is the only write in the pod's way");
    let annotations = scene.api.get(&pod_path("a")).unwrap()["metadata"]["annotations"].clone();
    let assignment = annotations[keys::ASSIGNMENT].as_str().unwrap();
    let assignment: serde_json::Value = serde_json::from_str(assignment).unwrap();
    let slices = scene.agent.node().ledger.desired().slices.clone();
    let ids: Vec<_> = slices.iter().map(|slice| slice.id.as_str()).collect();
    assert_eq!(ids, [assignment["slices"][0]["id"].as_str().unwrap()]);
}

#[tokio::test]
async fn pods_that_are_bound_at_once_get_a_slice_each() {
    let scene = Scene::start(true).await;
    let names: Vec<String> = (0..7).map(|number| format!("p{number}")).collect();
    for name in &names {
        scene.put_pod(name);
    }
    let bound = futures::future::join_all(names.iter().map(|name| scene.bind(name, GATE))).await;
    assert!(bound.iter().all(Result::is_ok), "{bound:?}");
    scene.put_pod("one-more");
    let refused = scene.bind("one-more", GATE).await;
    assert!(matches!(refused, Err(BindError::Refused(_))), "{refused:?}");
    assert!(!scene.agent.ordered().contains(&"release"));
}

#[tokio::test]
async fn the_next_bind_finds_a_slice_that_was_cut_late() {
    let scene = Scene::start(false).await;
    scene.put_pod("a");
    let late = scene.bind("a", Duration::from_millis(200)).await;
    assert!(matches!(late, Err(BindError::Agent(BindFailure::NotReady))), "{late:?}");
    let bound = scene.bind("a", GATE);
    let cut = async {
        scene.agent.was_ordered(&["reserve", "reserve"]).await;
        scene.agent.cut();
    };
    tokio::join!(bound, cut).0.unwrap();
    assert_eq!(scene.node_of("a").as_deref(), Some("n"));
    assert_eq!(scene.agent.node().ledger.desired().slices.len(), 1, "the reservation was renewed");
}

#[tokio::test]
async fn a_bind_whose_place_is_taken_proposes_once_more() {
    let scene = Scene::start(true).await;
    // The agent has reserved the best place for another pod, and its report has not arrived yet.
    let other = scene.term.with(|index| {
        let (uid, key) = (PodUid::new("uid-b"), PodKey::new("default", "b"));
        index.show_pod(unbound(&pod("b", SMALL)));
        let proposal = index.reserving().propose(&uid, &key, &"n".into(), None).unwrap();
        let connection = index.managed().connection_of(&"n".into()).unwrap();
        index.nodes().agents().answer(&uid, &"n".into(), connection);
        Order { epoch: EPOCH, kind: OrderKind::Reserve(proposal) }
    });
    scene.agent.node().follow(&other, Moment::default()).unwrap();
    scene.put_pod("a");
    scene.bind("a", GATE).await.unwrap();
    scene.agent.was_ordered(&["reserve", "reserve", "mark", "bound"]).await;
}

#[tokio::test]
async fn the_agent_gets_the_outcome_of_a_refused_binding_and_none_without_an_answer() {
    for (fault, orders) in [
        (Fault::Answer(422), &["reserve", "mark", "not bound"][..]),
        (Fault::Answer(503), &["reserve", "mark"]),
    ] {
        let scene = Scene::start(true).await;
        scene.put_pod("a");
        scene.api.fail([fault]);
        let failed = scene.bind("a", GATE).await;
        assert!(matches!(failed, Err(BindError::Binding(_))), "{failed:?}");
        scene.agent.was_ordered(orders).await;
        let node = scene.agent.node();
        let reservation = node.ledger.reservation(&node.ledger.desired().slices[0].id).unwrap();
        assert_eq!(reservation.binding, fault == Fault::Answer(503));
    }
}

#[tokio::test]
async fn no_binding_is_sent_above_the_limit_of_those_under_way() {
    let scene = Scene::start(true).await;
    let mut others = Vec::new();
    for _ in 0..LIMIT {
        others.push(scene.term.in_flight.enter().await);
    }
    scene.put_pod("a");
    let busy = scene.bind("a", Duration::from_millis(200)).await;
    assert!(matches!(busy, Err(BindError::Binding(BindingError::Busy))), "{busy:?}");
    scene.agent.was_ordered(&["reserve", "mark", "not bound"]).await;
    assert_eq!(scene.api.requests(&Method::POST), 0);
    others.clear();
    scene.bind("a", GATE).await.unwrap();
}

#[tokio::test]
async fn the_agent_gets_the_outcome_of_a_mark_that_no_binding_follows() {
    const TOLD: [&str; 3] = ["reserve", "mark", "not bound"];
    let scene = Scene::start(false).await;
    scene.mark("a").await.abort();
    scene.agent.was_ordered(&TOLD).await;

    let scene = Scene::start(false).await;
    let bind = scene.mark("a").await;
    scene.term.closing.cancel();
    let ended = bind.await.unwrap();
    assert!(matches!(ended, Err(BindError::Agent(BindFailure::Deposed))), "{ended:?}");
    scene.agent.was_ordered(&TOLD).await;

    let mut scene = Scene::start(false).await;
    let bind = scene.mark("a").await;
    scene.stop.cancel();
    let ended = bind.await.unwrap();
    assert!(matches!(ended, Err(BindError::Agent(BindFailure::Disconnected))), "{ended:?}");
    scene.connected(false).await;
    scene.agent.give_answers();
    scene.dial().await;
    scene.agent.was_ordered(&TOLD).await;
    assert_eq!(scene.api.requests(&Method::POST), 0);
}

#[tokio::test]
async fn a_node_whose_agent_does_not_answer_takes_no_pods_until_it_does() {
    let scene = Scene::start(true).await;
    scene.agent.hold_answers();
    scene.put_pod("a");
    let unanswered = scene.bind("a", Duration::from_millis(200)).await;
    assert!(matches!(unanswered, Err(BindError::Agent(BindFailure::NoAnswer))), "{unanswered:?}");
    close_unresponsive(&scene.term, Duration::from_mins(1));
    scene.put_pod("b");
    assert!(
        scene.term.with(|index| index.managed().get(&"n".into()).unwrap().serving()).is_ok(),
        "it is not late yet"
    );
    close_unresponsive(&scene.term, Duration::ZERO);
    let refused = scene.bind("b", GATE).await;
    assert!(matches!(refused, Err(BindError::Refused(Refusal::AgentNotReady))), "{refused:?}");
    assert!(scene.term.with(|index| index.reserving().give_up(&PodUid::new("uid-a"))), "it may go elsewhere");
    scene.agent.was_ordered(&["reserve", "release"]).await;
    scene.agent.give_answers();
    for _ in 0..400 {
        close_unresponsive(&scene.term, Duration::ZERO);
        if scene.bind("b", GATE).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the node takes no pods again");
}

#[tokio::test]
async fn a_node_whose_agent_is_not_connected_takes_no_pods() {
    let scene = Scene::start(false).await;
    for name in ["a", "b"] {
        scene.put_pod(name);
    }
    let (open, ()) = tokio::join!(scene.bind("a", GATE), async {
        scene.agent.was_ordered(&["reserve"]).await;
        scene.stop.cancel();
    });
    assert!(matches!(open, Err(BindError::Agent(BindFailure::Disconnected))), "{open:?}");
    scene.connected(false).await;
    let refused = scene.bind("b", GATE).await;
    assert!(matches!(refused, Err(BindError::Refused(Refusal::NotConnected))), "{refused:?}");
}

#[tokio::test]
async fn a_term_that_is_closing_sends_no_binding() {
    let scene = Scene::start(false).await;
    scene.put_pod("a");
    let (open, ()) = tokio::join!(scene.bind("a", GATE), async {
        scene.agent.was_ordered(&["reserve"]).await;
        scene.term.closing.cancel();
        scene.agent.cut();
    });
    assert!(matches!(open, Err(BindError::Agent(BindFailure::Deposed))), "{open:?}");
    assert_eq!(scene.api.requests(&Method::POST), 0);
    assert_eq!(scene.agent.ordered(), ["reserve"]);
}
