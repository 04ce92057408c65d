//! Looks pods up for the ledger: whether a pod whose Binding was marked is bound, and on which node.

use crate::event::{Event, Events};
use crate::pod_view::PodView;
use futures::StreamExt as _;
use kerf_core::ledger::Found;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kube::{Api, Client};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;

/// How many look-ups run at once.
const AT_ONCE: usize = 4;

const TIMEOUT: Duration = Duration::from_secs(5);

pub type Wanted = (PodUid, PodKey);

/// Looks up the requested pods until `stop`. If a look-up fails, the ledger requests it again later.
pub async fn look_up(
    client: Client,
    node: NodeName,
    wanted: mpsc::UnboundedReceiver<Wanted>,
    events: Events,
    stop: CancellationToken,
) {
    let looked_up = UnboundedReceiverStream::new(wanted).for_each_concurrent(AT_ONCE, |(uid, key)| {
        let (client, node, events) = (client.clone(), node.clone(), events.clone());
        async move {
            let asked = Instant::now();
            let found = tokio::time::timeout(TIMEOUT, find(&client, &node, &uid, &key)).await;
            let found = found.unwrap_or(Found::Unknown);
            tracing::info!(pod = %key, %uid, ?found, "looked up a pod that has a reservation");
            events.send(Event::LookedUp(uid, asked, found));
        }
    });
    stop.run_until_cancelled(looked_up).await;
    // A task that ends early counts as a fault, so wait even if the sender is gone.
    stop.cancelled().await;
}

/// Reads the pod without a resource version, which makes the read consistent: it has everything written before the
/// request.
async fn find(client: &Client, node: &NodeName, uid: &PodUid, key: &PodKey) -> Found {
    let api = Api::<PodView>::namespaced(client.clone(), &key.namespace);
    let pod = match api.get_opt(&key.name).await {
        Ok(pod) => pod.filter(|pod| pod.uid() == *uid && !pod.is_finished()),
        Err(error) => {
            tracing::warn!(pod = %key, %error, "failed to look up a pod; its reservation stays");
            return Found::Unknown;
        }
    };
    match pod.map(|pod| pod.spec.node_name.filter(|name| !name.is_empty())) {
        None => Found::Gone,
        Some(None) => Found::Unbound,
        Some(Some(bound)) if bound == node.as_str() => Found::Here,
        Some(Some(_)) => Found::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::{client, refusal};
    use serde_json::{Value, json};

    async fn found(status: u16, pod: Value) -> Found {
        let (client, log) = client(move |_| if status == 200 { (200, pod.clone()) } else { refusal(status) });
        let (sender, wanted) = mpsc::unbounded_channel();
        let (events, mut queue) = Events::channel();
        sender.send((PodUid::new("u1"), PodKey::new("ns", "a"))).unwrap();
        let stop = CancellationToken::new();
        let _end = stop.clone().drop_guard();
        tokio::spawn(look_up(client, NodeName::new("n1"), wanted, events, stop));
        let Some(Event::LookedUp(uid, _, found)) = queue.recv().await else { panic!("no answer") };
        assert_eq!(uid, PodUid::new("u1"));
        let asked = log.all();
        assert_eq!(asked[0].path, "/api/v1/namespaces/ns/pods/a");
        assert!(!asked[0].query.contains("resourceVersion"), "{:?}", asked[0]);
        found
    }

    fn pod(uid: &str, node: Option<&str>, phase: &str) -> Value {
        let metadata = json!({"name": "a", "namespace": "ns", "uid": uid});
        json!({"metadata": metadata, "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase}})
    }

    #[tokio::test]
    async fn a_pod_is_here_elsewhere_unbound_or_gone() {
        for (pod, expected) in [
            (pod("u1", Some("n1"), "Pending"), Found::Here),
            (pod("u1", Some("n2"), "Running"), Found::Elsewhere),
            (pod("u1", None, "Pending"), Found::Unbound),
            (pod("u1", Some("n1"), "Succeeded"), Found::Gone),
            (pod("u2", Some("n1"), "Running"), Found::Gone),
        ] {
            assert_eq!(found(200, pod).await, expected);
        }
        assert_eq!(found(404, Value::Null).await, Found::Gone);
        assert_eq!(found(503, Value::Null).await, Found::Unknown);
        assert_eq!(found(403, Value::Null).await, Found::Unknown);
    }
}
