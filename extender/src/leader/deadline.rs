//! Until when a leader may act: the deadline that its last renewal of the Lease gave it.
//!
//! A leader writes only through a client that [`Deadline::bound`] returns. It sends no write at or after the deadline,
//! and at the deadline it cancels the writes that are under way. The clock is read right before each step, because the
//! timers of a process that was frozen may fire later than its first requests.

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The deadline of one term. Clones share it.
#[derive(Debug, Clone)]
pub struct Deadline(watch::Sender<Option<Instant>>);

/// The error of a write after the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the Lease was not renewed in time: this replica does not lead any more")]
pub struct Overdue;

impl Deadline {
    /// A term that ends at this time unless it is extended.
    #[must_use]
    pub fn new(at: Instant) -> Self {
        Self(watch::Sender::new(Some(at)))
    }

    /// The deadline; `None` once the term was ended early.
    #[must_use]
    pub fn instant(&self) -> Option<Instant> {
        *self.0.borrow()
    }

    /// Whether the leader may no longer act.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.instant().is_none_or(|at| Instant::now() >= at)
    }

    /// Moves the deadline after a renewal. A term that was ended stays ended.
    pub fn extend(&self, to: Instant) {
        self.0.send_if_modified(|at| at.as_mut().is_some_and(|at| std::mem::replace(at, to) != to));
    }

    /// Ends the term at once: no write is sent from now on.
    pub fn end(&self) {
        self.0.send_replace(None);
    }

    /// Waits until the deadline has passed.
    pub async fn passed(&self) {
        let mut changes = self.0.subscribe();
        loop {
            let at = *changes.borrow_and_update();
            let Some(at) = at.filter(|at| Instant::now() < *at) else { return };
            tokio::select! {
                () = sleep_until(at) => {}
                // `changed` cannot fail, because the sender lives in `self`.
                _changed = changes.changed() => {}
            }
        }
    }

    /// A client like `client` whose writes stop at the deadline. Reads go on, because they change nothing.
    #[must_use]
    pub fn bound(&self, client: Client) -> Client {
        let deadline = self.clone();
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, deadline) = (client.clone(), deadline.clone());
            async move {
                if matches!(*request.method(), Method::GET | Method::HEAD) {
                    return client.send(request).await.map_err(Into::into);
                }
                deadline.run(client.send(request)).await
            }
        });
        Client::new(service, namespace)
    }

    /// Runs a write until it is answered or the deadline passes.
    async fn run<T>(
        &self,
        write: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, tower::BoxError> {
        let (mut write, mut passed) = (pin!(write), pin!(self.passed()));
        poll_fn(|context| {
            // Checked before each poll, so that a frozen process does not send first and notice the deadline later.
            if self.has_passed() || passed.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(Overdue.into()));
            }
            write.as_mut().poll(context).map_err(Into::into)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::{ApiStandIn, Fault};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Api, Patch, PatchParams};
    use serde_json::json;
    use std::time::Duration;

    const PATH: &str = "/api/v1/namespaces/default/configmaps/a";

    async fn write(client: &Client) -> Result<ConfigMap, kube::Error> {
        let patch = Patch::Merge(json!({"data": {"written": "yes"}}));
        Api::default_namespaced(client.clone()).patch("a", &PatchParams::default(), &patch).await
    }

    #[tokio::test]
    async fn writes_are_sent_until_the_deadline_and_reads_after_it_too() {
        let api = ApiStandIn::new();
        api.put(PATH, json!({"metadata": {"name": "a"}}));
        let deadline = Deadline::new(Instant::now());
        let client = deadline.bound(api.client());
        assert!(write(&client).await.unwrap_err().to_string().contains("does not lead any more"));
        assert_eq!(api.requests(&Method::PATCH), 0, "it is not sent");
        Api::<ConfigMap>::default_namespaced(client.clone()).get("a").await.unwrap();
        deadline.extend(Instant::now() + Duration::from_mins(1));
        write(&client).await.unwrap();
        deadline.end();
        deadline.extend(Instant::now() + Duration::from_mins(1));
        write(&client).await.unwrap_err();
        assert_eq!(api.requests(&Method::PATCH), 1);
    }

    #[tokio::test]
    async fn a_write_without_an_answer_is_given_up_at_the_deadline_of_the_last_renewal() {
        let api = ApiStandIn::new();
        api.put(PATH, json!({"metadata": {"name": "a"}}));
        api.fail([Fault::NoReply]);
        let began = Instant::now();
        let deadline = Deadline::new(began + Duration::from_millis(50));
        deadline.extend(began + Duration::from_millis(200));
        write(&deadline.bound(api.client())).await.unwrap_err();
        assert!(began.elapsed() >= Duration::from_millis(200));
    }
}
