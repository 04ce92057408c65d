//! Watches the pods of this node: to learn when one is gone or finished, for then its slices may be free; and what their
//! init containers hold, which the kubelet's account leaves out.

use crate::node::NodePods;
use crate::pod_view::PodView;
use crate::reconcile::{Event, Events};
use futures::StreamExt as _;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long the API server may keep a watch.
const WATCH_SECONDS: u32 = 290;

/// The pods of the node that ask for kerf's names, as the watch shows them.
#[derive(Debug, Default)]
struct Roster {
    pods: NodePods,
    /// What was told of last.
    told: Option<NodePods>,
}

impl Roster {
    fn take(&mut self, pod: &PodView) {
        match pod.known() {
            Some(known) => drop(self.pods.insert(pod.uid(), known)),
            None => drop(self.pods.remove(&pod.uid())),
        }
    }

    /// The pods, if they are others than were told of.
    fn news(&mut self) -> Option<NodePods> {
        if self.told.as_ref() == Some(&self.pods) {
            return None;
        }
        self.told = Some(self.pods.clone());
        self.told.clone()
    }
}

/// The pods that the kubelet has rejected: each is told of once.
#[derive(Debug, Default)]
struct Rejections {
    known: BTreeSet<PodUid>,
    /// Those of the list that is being read.
    listed: Vec<(PodKey, PodUid)>,
    /// Whether a list was read to its end.
    has_list: bool,
}

impl Rejections {
    fn list(&mut self, pod: &PodView) {
        if pod.is_rejected() && pod.asks() {
            self.listed.push((pod.key(), pod.uid()));
        }
    }

    /// The list is whole: gives those that were rejected during a gap of the watch. Those of the first list may have been told
    /// of by an earlier process, and what was promised is not known yet.
    fn list_is_whole(&mut self) -> Vec<(PodKey, PodUid)> {
        let listed = std::mem::take(&mut self.listed);
        let uids = listed.iter().map(|(_, uid)| uid.clone()).collect();
        let known = std::mem::replace(&mut self.known, uids);
        let is_news = std::mem::replace(&mut self.has_list, true);
        listed.into_iter().filter(|(_, uid)| is_news && !known.contains(uid)).collect()
    }

    /// Whether the pod was rejected just now.
    fn take(&mut self, pod: &PodView) -> bool {
        pod.is_rejected() && pod.asks() && self.known.insert(pod.uid())
    }
}

/// Tells which pods leave, and which ask for kerf's names, until `stop`. After a gap in the watch the kubelet is asked for
/// the holders.
pub async fn watch(
    client: Client,
    node: NodeName,
    events: Events,
    want_holders: Arc<Notify>,
    stop: CancellationToken,
) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}")).timeout(WATCH_SECONDS);
    let pods: Api<PodView> = Api::all(client);
    let stream = watcher(pods, config).default_backoff().take_until(stop.cancelled_owned());
    tokio::pin!(stream);
    let mut roster = Roster::default();
    let mut rejections = Rejections::default();
    while let Some(event) = stream.next().await {
        match event {
            // Nothing is told before the list is whole.
            Ok(watcher::Event::Init) => {
                roster.pods.clear();
                rejections.listed.clear();
            }
            Ok(watcher::Event::InitApply(pod)) => {
                roster.take(&pod);
                rejections.list(&pod);
            }
            Ok(watcher::Event::InitDone) => {
                want_holders.notify_one();
                tell(&mut roster, &events);
                for (key, uid) in rejections.list_is_whole() {
                    events.send(Event::Rejected(key, uid));
                }
            }
            Ok(watcher::Event::Apply(pod)) => {
                if pod.is_finished() {
                    events.send(Event::PodLeft(pod.key()));
                }
                if rejections.take(&pod) {
                    events.send(Event::Rejected(pod.key(), pod.uid()));
                }
                roster.take(&pod);
                tell(&mut roster, &events);
            }
            Ok(watcher::Event::Delete(pod)) => {
                rejections.known.remove(&pod.uid());
                if pod.asks() && pod.runs() {
                    events.send(Event::PodCutOff(pod.key(), pod.uid()));
                }
                events.send(Event::PodLeft(pod.key()));
                roster.pods.remove(&pod.uid());
                tell(&mut roster, &events);
            }
            Err(error) => tracing::warn!(%error, "the watch of the node's pods failed"),
        }
    }
}

fn tell(roster: &mut Roster, events: &Events) {
    if let Some(pods) = roster.news() {
        events.send(Event::Pods(pods));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_view::REJECTED;
    use serde_json::{Value, json};

    fn pod(uid: &str, status: &Value) -> PodView {
        let limits = |count: &str| json!({"limits": {"nvidia.com/mig-1g.10gb": count}});
        serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "ns", "uid": uid},
            "spec": {
                "initContainers": [{"name": "load", "resources": limits("2")}],
                "containers": [{"name": "main", "resources": limits("1")}],
            },
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_pods_news_are_told_once() {
        let mut roster = Roster::default();
        assert_eq!(roster.news(), Some(NodePods::new()), "that there are none is news at first");
        roster.take(&pod("u", &json!({"phase": "Pending"})));
        let told = roster.news().unwrap();
        let known = &told[&PodUid::new("u")];
        let beyond = known.names.values().flatten().map(|b| (b.container.as_str(), b.count));
        assert_eq!((known.admitted, beyond.collect::<Vec<_>>()), (false, vec![("load", 1)]));
        assert_eq!(roster.news(), None);
        roster.take(&pod("u", &json!({"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"})));
        assert!(roster.news().unwrap()[&PodUid::new("u")].admitted);
        roster.take(&pod("u", &json!({"phase": "Failed", "startTime": "2026-01-01T00:00:00Z"})));
        assert_eq!(roster.news(), Some(NodePods::new()));
    }

    #[test]
    fn a_pod_runs_while_a_container_of_it_does() {
        let containers = |of: &str, state: &str| json!({of: [{"name": "main", "state": {state: {}}}]});
        for (status, runs) in [
            (json!({"phase": "Pending"}), false),
            (containers("containerStatuses", "running"), true),
            (containers("initContainerStatuses", "running"), true),
            (containers("containerStatuses", "terminated"), false),
            (containers("containerStatuses", "waiting"), false),
        ] {
            assert_eq!(pod("u", &status).runs(), runs, "{status}");
        }
    }

    #[test]
    fn a_pod_that_was_rejected_during_a_gap_of_the_watch_is_told_of_once() {
        let mut rejections = Rejections::default();
        let rejected = |uid| pod(uid, &json!({"phase": "Failed", "reason": REJECTED}));
        let mut list = |pods: &[PodView], then: &PodView| {
            for pod in pods {
                rejections.list(pod);
            }
            let told = rejections.list_is_whole().into_iter().map(|(_, uid)| uid.to_string());
            (told.collect::<Vec<_>>(), rejections.take(then))
        };
        let none = Vec::<String>::new();
        let (old, seen, missed) = (rejected("old"), rejected("seen"), rejected("missed"));
        let fine = pod("fine", &json!({"phase": "Failed", "reason": "Evicted"}));
        let first = [old.clone()];
        assert_eq!(list(&first, &seen), (none.clone(), true));
        let all = [old.clone(), seen, missed.clone(), fine];
        assert_eq!(list(&all, &missed), (vec!["missed".to_owned()], false));
        assert_eq!(list(&all, &old), (none, false));
    }

    #[test]
    fn a_pod_that_asks_for_nothing_of_ours_is_no_news() {
        let mut roster = Roster::default();
        roster.news();
        let other =
            json!({"metadata": {"name": "b"}, "spec": {"containers": [{"name": "main"}]}, "status": {}});
        roster.take(&serde_json::from_value(other).unwrap());
        assert_eq!(roster.news(), None);
    }
}
