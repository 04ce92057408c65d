//! Probes a pod's containers: sets readiness in the status, and ends a container whose liveness fails.

use std::convert::Infallible;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use tokio_util::sync::CancellationToken;

use super::api;
use super::devices::locked;
use super::lifecycle::PodRun;
use super::probes::{Asking, Target, Verdict};
use super::status::ContainerState;

impl PodRun {
    /// Probes a running container for as long as this is polled. Cancels `unhealthy` when the container must
    /// be ended.
    pub(super) async fn probe(
        &self,
        container: &Container,
        process: u32,
        unhealthy: &CancellationToken,
    ) -> Infallible {
        if let Some(files) = self.files.as_ref().filter(|_| self.image(container).is_some()) {
            let document = files.document(&container.name);
            let target =
                Target { container, address: files.whereabouts.pod, process: Some((process, document)) };
            let came_up = match &container.startup_probe {
                Some(probe) => self.comes_up(probe, &target).await,
                None => true,
            };
            if came_up {
                let readiness = self.reports_readiness(&target);
                tokio::select! {
                    () = readiness => {}
                    () = self.fails_to_live(&target) => unhealthy.cancel(),
                }
            } else {
                unhealthy.cancel();
            }
        }
        std::future::pending().await
    }

    /// Whether the startup probe succeeded.
    async fn comes_up(&self, probe: &Probe, target: &Target<'_>) -> bool {
        let mut asking = Asking::new(probe);
        tokio::time::sleep(asking.first()).await;
        loop {
            match self.verdict(&mut asking, target, "Startup").await {
                Some(Verdict::Passed) => break,
                Some(Verdict::Failed) => return false,
                None => tokio::time::sleep(asking.period()).await,
            }
        }
        self.note(target, |state| std::mem::replace(&mut state.has_come_up, true)).await;
        true
    }

    /// Never returns, because readiness may change as long as the container runs.
    async fn reports_readiness(&self, target: &Target<'_>) {
        let Some(probe) = &target.container.readiness_probe else { return std::future::pending().await };
        let mut asking = Asking::new(probe);
        tokio::time::sleep(asking.first()).await;
        loop {
            if let Some(verdict) = self.verdict(&mut asking, target, "Readiness").await {
                let answers = verdict == Verdict::Passed;
                self.note(target, |state| std::mem::replace(&mut state.answers, answers) == answers).await;
            }
            tokio::time::sleep(asking.period()).await;
        }
    }

    /// Returns when the liveness probe has failed.
    async fn fails_to_live(&self, target: &Target<'_>) {
        let Some(probe) = &target.container.liveness_probe else { return std::future::pending().await };
        let mut asking = Asking::new(probe);
        tokio::time::sleep(asking.first()).await;
        while self.verdict(&mut asking, target, "Liveness").await != Some(Verdict::Failed) {
            tokio::time::sleep(asking.period()).await;
        }
    }

    async fn verdict(&self, asking: &mut Asking<'_>, target: &Target<'_>, kind: &str) -> Option<Verdict> {
        let (verdict, answer) = asking.ask(target).await;
        if let Err(reason) = answer
            && verdict.is_some()
        {
            tracing::debug!(pod = %self.key, container = target.container.name, kind, reason, "a probe has failed");
            let message = format!("{kind} probe failed: {reason}");
            let reported = self.warn("Unhealthy", &message);
            // Probing must not wait long for an Event.
            let _late = tokio::time::timeout(Duration::from_secs(1), reported).await;
        }
        verdict
    }

    /// Changes the container's state. `change` returns whether the state stayed the same, so that no status
    /// is written.
    async fn note(&self, target: &Target<'_>, change: impl FnOnce(&mut ContainerState) -> bool) {
        let unchanged = {
            let mut states = locked(&self.states);
            change(states.entry(target.container.name.clone()).or_default())
        };
        if !unchanged {
            self.write_progress().await;
        }
    }

    pub(super) async fn warn(&self, reason: &str, message: &str) {
        let options = &self.core.options;
        api::warn_about(&options.client, &options.node_name, &self.pod, reason, message).await;
    }
}
