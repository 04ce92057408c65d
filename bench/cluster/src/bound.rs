//! Records when each pod was seen bound, from one watch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// How long [`Bound::of`] waits for a pod.
const TIMEOUT: Duration = Duration::from_mins(1);

/// When each pod was seen bound. A name counts once, because all pods of a watch have different names.
pub struct Bound {
    events: UnboundedReceiver<(String, Instant)>,
    seen: BTreeMap<String, Instant>,
}

impl Bound {
    /// Watches pods, and calls `hook` with each event.
    pub fn watch(pods: Api<Pod>, mut hook: impl FnMut(&watcher::Event<Pod>) + Send + 'static) -> Self {
        let (sender, events) = unbounded_channel();
        tokio::spawn(async move {
            let stream = watcher(pods, watcher::Config::default()).default_backoff();
            let follow = stream.try_for_each(|event| {
                let at = Instant::now();
                if let watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) = &event
                    && pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
                {
                    // A failed send is no error, because the receiver is dropped when the measurement is over.
                    let _ = sender.send((pod.metadata.name.clone().unwrap_or_default(), at));
                }
                hook(&event);
                futures::future::ready(Ok(()))
            });
            if let Err(error) = follow.await {
                tracing::error!(%error, "the watch of pods ended");
            }
        });
        Self { events, seen: BTreeMap::new() }
    }

    /// When the pod was bound. Fails if that takes more than a minute.
    pub async fn bound_at(&mut self, name: &str) -> anyhow::Result<Instant> {
        let bound = self.bound_before(name, Instant::now() + TIMEOUT).await?;
        bound.with_context(|| format!("{name} was not bound within a minute"))
    }

    /// When the pod was bound; `None` if it was not by `deadline`.
    pub async fn bound_before(&mut self, name: &str, deadline: Instant) -> anyhow::Result<Option<Instant>> {
        loop {
            if let Some(at) = self.seen.get(name) {
                return Ok(Some(*at));
            }
            match tokio::time::timeout_at(deadline.into(), self.events.recv()).await {
                Ok(Some((pod, at))) => {
                    self.seen.entry(pod).or_insert(at);
                }
                Ok(None) => bail!("the watch of pods ended"),
                Err(_) => return Ok(None),
            }
        }
    }
}
