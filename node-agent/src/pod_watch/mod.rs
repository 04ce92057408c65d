//! Watches the pods of this node. A pod that is gone or finished may free its slices. The list of live pods is needed,
//! because the kubelet's checkpoint also has pods that have ended.

mod live;

use crate::event::{Event, Events};
use crate::node::NodePods;
use crate::pod_view::PodView;
use futures::StreamExt as _;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use live::Live;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long the API server may keep a watch, in seconds. kube rejects 295 and more.
const WATCH_SECONDS: u32 = 290;

/// The pods of the node that request names of kerf, as the watch shows them.
#[derive(Debug, Default)]
struct Roster {
    pods: NodePods,
    /// The pods as they were last sent.
    reported: Option<NodePods>,
}

impl Roster {
    fn take(&mut self, pod: &PodView) {
        match pod.known() {
            Some(known) => drop(self.pods.insert(pod.uid(), known)),
            None => drop(self.pods.remove(&pod.uid())),
        }
    }

    /// Returns the pods if they changed since the last call.
    fn take_changed(&mut self) -> Option<NodePods> {
        if self.reported.as_ref() == Some(&self.pods) {
            return None;
        }
        self.reported = Some(self.pods.clone());
        self.reported.clone()
    }
}

/// The pods that the kubelet has rejected; each is reported once.
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

    /// Ends a list, and returns the pods that were rejected during a gap of the watch. The first list returns none: an
    /// earlier process may have reported those, and the reservations are not known yet.
    fn list_is_whole(&mut self) -> Vec<(PodKey, PodUid)> {
        let listed = std::mem::take(&mut self.listed);
        let uids = listed.iter().map(|(_, uid)| uid.clone()).collect();
        let known = std::mem::replace(&mut self.known, uids);
        let had_list = std::mem::replace(&mut self.has_list, true);
        listed.into_iter().filter(|(_, uid)| had_list && !known.contains(uid)).collect()
    }

    /// Whether this event is the first that shows the pod as rejected.
    fn take(&mut self, pod: &PodView) -> bool {
        pod.is_rejected() && pod.asks() && self.known.insert(pod.uid())
    }
}

/// Reports which pods leave, and which request names of kerf, until `stop`. After a gap in the watch it requests the
/// holders from the kubelet.
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
    let mut live = Live::default();
    while let Some(event) = stream.next().await {
        match event {
            // Nothing is reported before the list is complete.
            Ok(watcher::Event::Init) => {
                roster.pods.clear();
                rejections.listed.clear();
                live.begin();
            }
            Ok(watcher::Event::InitApply(pod)) => {
                roster.take(&pod);
                rejections.list(&pod);
                live.list(&pod);
            }
            Ok(watcher::Event::InitDone) => {
                // Pods may have gone during a gap, so the holders may have changed.
                want_holders.notify_one();
                live.list_is_whole().into_iter().for_each(|end| events.send(end));
                report(&mut roster, &events);
                for (key, uid) in rejections.list_is_whole() {
                    events.send(Event::Rejected(key, uid));
                }
            }
            Ok(watcher::Event::Apply(pod)) => {
                if pod.is_finished() {
                    events.send(Event::PodLeft(pod.key(), pod.uid()));
                }
                if rejections.take(&pod) {
                    events.send(Event::Rejected(pod.key(), pod.uid()));
                }
                live.take(&pod);
                roster.take(&pod);
                report(&mut roster, &events);
            }
            Ok(watcher::Event::Delete(pod)) => {
                rejections.known.remove(&pod.uid());
                if live.delete(&pod) {
                    events.send(Event::PodCutOff(pod.key(), pod.uid()));
                }
                events.send(Event::PodLeft(pod.key(), pod.uid()));
                roster.pods.remove(&pod.uid());
                report(&mut roster, &events);
            }
            Err(error) => tracing::warn!(%error, "the watch of the node's pods failed"),
        }
    }
}

fn report(roster: &mut Roster, events: &Events) {
    if let Some(pods) = roster.take_changed() {
        events.send(Event::Pods(pods));
    }
}

#[cfg(test)]
mod tests;
