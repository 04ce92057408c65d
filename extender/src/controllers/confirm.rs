//! Confirms pods with the API server. A reservation is given back only after the API server confirms that its pod is
//! gone; a Binding without an answer is looked up. At intervals it also makes the index check everything again.

use crate::scheduling::binding;
use crate::term::Term;
use futures::StreamExt;
use kerf_core::names::PodUid;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval_at, timeout};

/// How often the index checks everything again. Events normally do the work; this finds what an event missed.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// How many pods are looked up at once.
const AT_ONCE: usize = 8;
/// Timeout of one lookup. A pod without an answer is looked up again at the next resync.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Looks pods up until the term ends.
pub async fn run(term: Arc<Term>) {
    let mut resync = interval_at(tokio::time::Instant::now() + RESYNC_INTERVAL, RESYNC_INTERVAL);
    resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = term.stop.cancelled() => return,
            _ = resync.tick() => term.with(|index| index.resync(Instant::now())),
            () = term.confirm.notified() => confirm(&term).await,
        }
    }
}

async fn confirm(term: &Arc<Term>) {
    let pods = term.take_unconfirmed();
    futures::stream::iter(pods).for_each_concurrent(AT_ONCE, |uid| confirm_one(term, uid)).await;
}

async fn confirm_one(term: &Arc<Term>, uid: PodUid) {
    let Some(key) = term.with(|index| index.reserving().reserved_pod(&uid)) else { return };
    // The time is read before the request, because the answer may be as old as that.
    let asked = Instant::now();
    match timeout(TIMEOUT, binding::pod(&term.client, &key, &uid)).await {
        Ok(Ok(None)) => term.with(|index| index.pod_gone(&uid)),
        Ok(Ok(Some(pod))) => term.with(|index| index.looked_up(pod, asked)),
        Ok(Err(error)) => tracing::warn!(pod = %key, %error, "failed to look a pod up"),
        Err(_) => tracing::warn!(pod = %key, "failed to look a pod up in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::ApiStandIn;
    use crate::cluster_index::REQUEST_LIMIT;
    use crate::cluster_index::scene::Agent;
    use crate::metrics::Metrics;
    use crate::objects::ask::Ask;
    use crate::policy_source::PolicySource;
    use kerf_core::names::PodKey;
    use kerf_core::packing::Terms;
    use kerf_core::testing::request;
    use kerf_runtime::shutdown::CancellationToken;

    #[tokio::test]
    async fn a_reservation_can_be_given_up_once_a_lookup_finds_its_pod_unbound() {
        let api = ApiStandIn::new();
        api.put_pod("a", None);
        let (metrics, _) = Metrics::new();
        let (terms, stop) = (Terms::default(), CancellationToken::new());
        let term = Term::new(api.client(), metrics, 1, terms, PolicySource::default(), stop);
        let (uid, key) = (PodUid::new("uid-a"), PodKey::new("default", "a"));
        let ask = Ask::read(Some(&request("nvidia.com/mig-1g.10gb", 1).to_json())).unwrap();
        let long_ago = Instant::now().checked_sub(REQUEST_LIMIT).unwrap();
        term.with(|index| {
            Agent::connected(index, "n").reserve(index, &uid, &key, Some(ask)).unwrap();
            index.bindings().send(&uid, &key, long_ago);
            index.resync(long_ago);
            assert!(!index.reserving().give_up(&uid));
        });
        assert!(term.take_unconfirmed().is_empty());
        term.with(|index| index.resync(Instant::now()));
        confirm(&term).await;
        assert!(term.with(|index| index.reserving().give_up(&uid)));
    }
}
