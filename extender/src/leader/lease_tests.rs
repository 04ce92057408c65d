use super::*;
use crate::api_stand_in::{ApiStandIn, Fault};
use std::sync::Arc;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kerf-system/leases/kerf-extender";

fn candidate(api: &Arc<ApiStandIn>, identity: &str) -> Candidate {
    let settings = LeaseSettings {
        namespace: "kerf-system".into(),
        name: "kerf-extender".into(),
        identity: identity.into(),
        duration: Duration::from_secs(3),
    };
    Candidate::new(api.client(), settings)
}

fn holder(api: &ApiStandIn) -> String {
    api.get(PATH).unwrap()["spec"]["holderIdentity"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn each_leader_has_an_epoch_above_the_last() {
    let api = ApiStandIn::new();
    let mut epochs = Vec::new();
    for identity in ["a", "b", "b"] {
        let mut candidate = candidate(&api, identity);
        let held = candidate.acquire(|| ()).await;
        assert_eq!(holder(&api), identity);
        epochs.push(held.epoch());
        candidate.release(held).await;
        assert_eq!(holder(&api), "");
    }
    // An earlier process of the same name that ended without a release.
    for _ in 0..2 {
        epochs.push(candidate(&api, "c").acquire(|| ()).await.epoch());
    }
    assert_eq!(epochs, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_held_lease_is_not_taken() {
    let api = ApiStandIn::new();
    let _held = candidate(&api, "a").acquire(|| ()).await;
    assert!(candidate(&api, "b").try_acquire().await.unwrap().is_none());
    assert_eq!(holder(&api), "a");
}

#[tokio::test]
async fn the_slower_of_two_candidates_does_not_lead() {
    let api = ApiStandIn::new();
    api.meddle(|api| {
        let spec = serde_json::json!({"holderIdentity": "faster", "leaseDurationSeconds": 3});
        api.put(PATH, serde_json::json!({"metadata": {"name": "kerf-extender"}, "spec": spec}));
    });
    assert!(candidate(&api, "a").try_acquire().await.unwrap().is_none());
    assert_eq!(holder(&api), "faster");
}

#[tokio::test]
async fn a_lease_is_renewed_with_the_raised_epoch_and_survives_a_lost_reply() {
    let api = ApiStandIn::new();
    let mut a = candidate(&api, "a");
    let mut held = a.acquire(|| ()).await;
    held.raise(8);
    api.fail([Fault::LoseReply]);
    assert!(a.renew(&mut held).await.is_err(), "the outcome is unknown");
    let deadline = held.deadline().instant();
    assert!(a.renew(&mut held).await.unwrap(), "it is still ours");
    assert!(held.deadline().instant() > deadline, "and it is renewed by the same call");
    assert!(a.renew(&mut held).await.unwrap());
    assert_eq!((held.epoch(), holder(&api).as_str()), (8, "a"));
    assert_eq!(api.get(PATH).unwrap()["spec"]["leaseTransitions"], 7);
}

#[tokio::test]
async fn a_leader_stops_when_another_took_the_lease() {
    let api = ApiStandIn::new();
    let a = &mut candidate(&api, "a");
    let mut held = a.acquire(|| ()).await;
    let mut lease = api.get(PATH).unwrap();
    lease["spec"]["holderIdentity"] = "b".into();
    lease["spec"]["leaseTransitions"] = 1.into();
    api.put(PATH, lease);
    a.renew_until_lost(&mut held, &CancellationToken::new()).await;
    a.release(held).await;
    assert_eq!(holder(&api), "b", "what is another's is not released");
}

/// The clock is paused, because on a busy machine the writes alone take longer than the margin.
#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_gives_up_before_another_may_take_over() {
    let api = ApiStandIn::new();
    let a = &mut candidate(&api, "a");
    let mut held = a.acquire(|| ()).await;
    let began = Instant::now();
    api.fail([Fault::Answer(500); 20]);
    a.renew_until_lost(&mut held, &CancellationToken::new()).await;
    assert_eq!(began.elapsed().as_millis() / 100, 20, "another may lead after 3 s");
}

/// Neither the pause between renewals nor a timeout delays the end: the deadline is the Lease's.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_renewal_hangs_gives_up_at_the_deadline() {
    let api = ApiStandIn::new();
    let a = &mut candidate(&api, "a");
    let mut held = a.acquire(|| ()).await;
    let began = Instant::now();
    api.fail([Fault::Answer(500), Fault::Answer(500), Fault::NoReply]);
    a.renew_until_lost(&mut held, &CancellationToken::new()).await;
    assert!(held.deadline().has_passed());
    assert_eq!(began.elapsed().as_millis() / 100, 20, "another may lead after 3 s");
}

/// The API server hangs during two renewals in a row, and makes the first one at last.
#[tokio::test(start_paused = true)]
async fn a_leader_outlives_a_renewal_that_hangs_and_is_made_late() {
    let api = ApiStandIn::new();
    let a = &mut candidate(&api, "a");
    a.settings.duration = Duration::from_secs(10);
    let mut held = a.acquire(|| ()).await;
    let began = Instant::now();
    api.fail([Fault::NoReply]);
    let stop = CancellationToken::new();
    let made_late = async {
        sleep_until(began + Duration::from_millis(4100)).await;
        let lease = api.get(PATH).unwrap();
        api.put(PATH, lease);
        api.fail([Fault::Answer(500)]);
        sleep_until(began + Duration::from_secs(12)).await;
        stop.cancel();
    };
    tokio::join!(a.renew_until_lost(&mut held, &stop), made_late);
    assert_eq!(began.elapsed().as_secs(), 12, "it has kept the lease");
    assert!(!held.deadline().has_passed());
}

#[tokio::test]
async fn after_the_deadline_nothing_is_released_or_renewed() {
    let api = ApiStandIn::new();
    let a = &mut candidate(&api, "a");
    let mut held = a.acquire(|| ()).await;
    held.deadline().end();
    let writes = api.requests(&http::Method::PUT);
    a.renew_until_lost(&mut held, &CancellationToken::new()).await;
    a.release(held).await;
    assert_eq!(api.requests(&http::Method::PUT), writes);
    assert_eq!(holder(&api), "a");
}

#[tokio::test]
async fn a_replica_that_led_before_the_lease_was_deleted_leads_by_a_higher_epoch() {
    let api = ApiStandIn::new();
    let mut a = candidate(&api, "a");
    let mut held = a.acquire(|| ()).await;
    held.raise(8);
    a.lost(&held);
    api.delete(PATH);
    assert_eq!(a.acquire(|| ()).await.epoch(), 9);
}

#[tokio::test]
async fn a_replica_leads_above_every_epoch_that_it_has_seen() {
    for (heard, epoch) in [(0, 1), (1, 2), (9, 10)] {
        let api = ApiStandIn::new();
        let mut a = candidate(&api, "a");
        a.hear(heard);
        assert_eq!(a.acquire(|| ()).await.epoch(), epoch);
    }
}

/// The watch reports the release at once; the next poll is a second away.
#[tokio::test(start_paused = true)]
async fn a_released_lease_is_free_at_once() {
    let free = |holder: &str| -> Lease {
        serde_json::from_value(serde_json::json!({"metadata": {}, "spec": {"holderIdentity": holder}}))
            .unwrap()
    };
    let shown = |event| futures::stream::iter([Ok(Event::Init), Ok(Event::Apply(free("a"))), Ok(event)]);
    for (event, ends) in [
        (Event::Apply(free("")), true),
        (Event::InitApply(free("")), true),
        (Event::Delete(free("a")), true),
        (Event::Apply(free("b")), false),
    ] {
        let mut changes = pin!(shown(event));
        let waited = timeout(POLL_INTERVAL, is_free(changes.as_mut())).await;
        assert_eq!(waited.is_ok(), ends);
    }
}
