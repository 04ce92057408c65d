//! The step in which a Job runs the agent's own program, to undo what the agent has set.

use super::Args;
use super::refused::Refused;
use super::steps::Release;
use crate::output::line;
use crate::progress::Wait;
use crate::uninstall::deleted;
use crate::uninstall::job::is_complete;
use anyhow::Context as _;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

impl Release<'_> {
    pub(super) async fn job(&self, name: &str) -> anyhow::Result<Option<Job>> {
        self.jobs.get_opt(name).await.with_context(|| format!("failed to read Job {name}"))
    }

    pub(super) async fn put_back(&self, wanted: &Job, name: &str, end: Instant) -> anyhow::Result<()> {
        let Args { node, kerf, .. } = self.args;
        self.make(wanted, name, end).await?;
        let mut wait = Wait::until("the node to be put back as it was", end);
        while !self.job(name).await?.as_ref().is_some_and(is_complete) {
            let late = || Refused::NotPutBack {
                node: node.clone(),
                namespace: kerf.name.clone(),
                job: name.to_owned(),
            };
            wait.next_check(late).await?;
        }
        // The wait is dropped first, because that clears its progress line.
        drop(wait);
        line("what it had set is put back")
    }

    /// Starts the Job. An interrupted Job is continued. A completed Job proves nothing if there is a GpuNode, because
    /// an agent may have run since.
    async fn make(&self, wanted: &Job, name: &str, end: Instant) -> anyhow::Result<()> {
        let namespace = &self.args.kerf.name;
        let mut found = self.job(name).await?;
        if found.as_ref().is_some_and(is_complete) && self.gpu_node().await?.is_some() {
            self.drop_job(name).await?;
            let mut wait = Wait::until(format!("Job {name} of an earlier run to go"), end);
            while found.is_some() {
                found = self.job(name).await?;
                let stays = || Refused::EarlierJob { namespace: namespace.clone(), job: name.to_owned() };
                wait.next_check(stays).await?;
            }
        }
        if found.is_none() {
            let made = self.jobs.create(&PostParams::default(), wanted).await;
            made.with_context(|| format!("failed to make Job {name}"))?;
        }
        // The Job was created suspended, as by `kerf uninstall`, so it must be started.
        let run = Patch::Merge(json!({"spec": {"suspend": false}}));
        let started = self.jobs.patch(name, &PatchParams::default(), &run).await;
        started.with_context(|| format!("failed to start Job {name}"))?;
        Ok(())
    }

    pub(super) async fn drop_job(&self, name: &str) -> anyhow::Result<()> {
        deleted(self.jobs.delete(name, &DeleteParams::background()).await)
            .with_context(|| format!("failed to delete Job {name}"))?;
        Ok(())
    }
}
