//! The labels of namespaces, by which policies may select pods. They are watched only while a policy in force needs
//! them, and only the metadata of Namespaces is read.

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kerf_core::policy::Policies;
use kerf_runtime::shutdown::CancellationToken;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// The timeout for a namespace that the watch has not shown yet. A namespace is created before its pods, and the watch
/// shows it within milliseconds. It must be well below the ten seconds that the API server waits for an answer.
const LABELS_TIMEOUT: Duration = Duration::from_secs(1);

type Labels = Arc<BTreeMap<String, String>>;

/// Each namespace with its labels; `None` until they were listed, and while no policy needs them.
type Known = Option<HashMap<String, Labels>>;

#[derive(Debug, Clone)]
pub(crate) struct Namespaces(watch::Receiver<Known>);

#[derive(Debug)]
pub(crate) struct Publisher(watch::Sender<Known>);

pub(crate) fn channel() -> (Publisher, Namespaces) {
    let (sender, receiver) = watch::channel(None);
    (Publisher(sender), Namespaces(receiver))
}

impl Namespaces {
    /// The labels of a namespace, once the watch has shown it; `None` if it does not within [`LABELS_TIMEOUT`].
    pub async fn labels(&self, namespace: &str) -> Option<Labels> {
        let mut known = self.0.clone();
        let is_shown = |known: &Known| known.as_ref().is_some_and(|all| all.contains_key(namespace));
        let found = timeout(LABELS_TIMEOUT, known.wait_for(is_shown)).await.ok()?.ok()?;
        found.as_ref()?.get(namespace).cloned()
    }

    pub async fn known(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.wait_for(Option::is_some).await.map(drop)
    }
}

impl Publisher {
    fn list(&self, all: HashMap<String, Labels>) {
        self.0.send_replace(Some(all));
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<String, Labels>)) {
        self.0.send_modify(|known| change(known.get_or_insert_default()));
    }

    fn forget(&self) {
        self.0.send_replace(None);
    }
}

/// Watches the namespaces until `stop`, whenever `policies` need their labels.
pub(crate) async fn follow(
    client: Client,
    mut policies: watch::Receiver<Arc<Policies>>,
    publisher: Publisher,
    stop: CancellationToken,
) {
    loop {
        let is_wanted = policies.wait_for(|policies| policies.read_namespace_labels());
        tokio::select! {
            () = stop.cancelled() => return,
            wanted = is_wanted => if wanted.is_err() { return },
        }
        tracing::info!("a policy selects namespaces by label; watching Namespaces");
        tokio::select! {
            () = stop.cancelled() => return,
            idle = policies.wait_for(|policies| !policies.read_namespace_labels()) => if idle.is_err() { return },
            () = show(client.clone(), &publisher) => {}
        }
        // Labels that are no longer watched would become stale.
        publisher.forget();
    }
}

async fn show(client: Client, publisher: &Publisher) {
    let namespaces = watcher(Api::<PartialObjectMeta<Namespace>>::all(client), watcher::Config::default());
    let mut events = pin!(namespaces.default_backoff());
    let mut listed = HashMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(namespace)) => drop(listed.insert(namespace.name_any(), labels(&namespace))),
            Ok(Event::InitDone) => publisher.list(std::mem::take(&mut listed)),
            Ok(Event::Apply(namespace)) => {
                publisher.change(|all| drop(all.insert(namespace.name_any(), labels(&namespace))));
            }
            Ok(Event::Delete(namespace)) => publisher.change(|all| drop(all.remove(&namespace.name_any()))),
            Err(error) => {
                tracing::warn!(%error, "watch of Namespaces failed, retrying; policies use the labels known last");
            }
        }
    }
}

fn labels(namespace: &PartialObjectMeta<Namespace>) -> Labels {
    Arc::new(namespace.labels().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, tier: &str) -> HashMap<String, Labels> {
        [(name.to_owned(), Arc::new([("tier".to_owned(), tier.to_owned())].into()))].into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_is_not_watched_yet_delays_a_pod_by_at_most_a_second() {
        let (publisher, namespaces) = channel();
        let began = tokio::time::Instant::now();
        assert_eq!(namespaces.labels("web").await, None, "nothing was listed");
        assert_eq!(began.elapsed(), LABELS_TIMEOUT);
        publisher.list(one("web", "gold"));
        assert_eq!(namespaces.labels("web").await.unwrap()["tier"], "gold");
        let (late, ()) = tokio::join!(namespaces.labels("late"), async {
            tokio::time::sleep(LABELS_TIMEOUT / 2).await;
            publisher.change(|all| all.extend(one("late", "silver")));
        });
        assert_eq!(late.unwrap()["tier"], "silver");
        publisher.forget();
        assert_eq!(namespaces.labels("web").await, None);
    }
}
