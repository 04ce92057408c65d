//! The shared parts of the measuring commands: the client's subject, one point from its plan to its figures, and a
//! cleanup that runs in every case.

use super::args::{PodArgs, RunArgs};
use super::cluster::Cluster;
use super::lines::Start;
use super::plan::{Planned, Target};
use super::subject::{self, Subject};
use super::trial::{Group, Times, Trial, TrialError, trial};
use super::{Gpu, Point, granted, objects};
use crate::counted::counted;
use crate::failure;
use crate::input::{self, InputError};
use anyhow::Context as _;
use kerf_core::kind::Kind;
use kerf_core::units::ComputePercent;
use kerf_runtime::shutdown;
use std::future::Future;
use std::path::Path;

pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

pub fn client(pods: &PodArgs, run: &RunArgs) -> anyhow::Result<Subject> {
    let template = pods.template.as_deref().map(input::read).transpose().context("--template")?;
    let client = subject::client(pods, template.as_deref(), run.warm_up);
    Ok(client.map_err(|error| InputError::Bad(failure::with_causes(&error.into())))?)
}

/// Creates the folder for the results. This happens first, so that a bad path fails before minutes of measuring.
pub fn prepare(out: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(out)
        .with_context(|| format!("--output-directory {}: failed to make the folder", out.display()))
}

pub fn write(out: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = out.join(name);
    std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
}

pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Runs the work until it ends or a signal arrives, and then deletes what it has created.
pub async fn leaving_nothing(
    cluster: &Cluster,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    // Without a handler a signal would end the program before it has deleted its objects.
    let stop = shutdown::on_signals()?;
    let worked = tokio::select! {
        worked = work => worked,
        () = stop.cancelled() => Err(anyhow::anyhow!("stopped by a signal; what was measured before is kept")),
    };
    // Both errors are shown: the objects that are left need a person, and the first error says why the run ended.
    match (worked, cluster.remove().await) {
        (Ok(()), removed) => removed,
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(left)) => Err(error.context(format!("{left:#}; and before"))),
    }
}

pub fn times(run: &RunArgs) -> Times {
    Times { start_within: run.start_within, warm_up: run.warm_up, measure: run.measure }
}

pub async fn point(
    cluster: &Cluster,
    subject: &Subject,
    planned: &Planned,
    times: Times,
) -> Result<(Point, Trial), TrialError> {
    let Planned { technology, copies, .. } = planned;
    eprintln!("{technology}, {}", counted(*copies, "copy"));
    let name = format!("kerf-sharing-{technology}-{copies}");
    let asks = objects::asks(planned, &subject.container);
    let group = Group { name: &name, subject, asks: &asks, planned };
    let trial = trial(cluster, &[group], times).await?;
    let figures = trial.window.figures(&trial.copies(0))?;
    let shape = trial.groups[0].first().map(|report| report.granted.shape);
    let profile = shape.and_then(granted::profile);
    let point = Point {
        technology: *technology,
        copies: *copies,
        gpu: planned.target.gpu.uuid.to_string(),
        slice: profile.clone().or_else(|| shape.map(|shape| shape.to_string())).unwrap_or_default(),
        // Without a limit it is 100 %, because a copy that asks for no part of the compute may use all threads.
        threads_percent: (technology.kind() == Kind::Mps)
            .then(|| planned.threads.unwrap_or(ComputePercent::ALL).get()),
        profile,
        figures,
    };
    Ok((point, trial))
}

pub fn gpu(target: &Target, start: Option<&Start>) -> Gpu {
    let start = start.cloned().unwrap_or_default();
    Gpu {
        uuid: target.gpu.uuid.to_string(),
        node: target.node.clone(),
        model: target.gpu.model.clone(),
        memory_mib: target.gpu.memory.0,
        product: start.gpu,
        driver: start.driver,
        torch: start.torch,
    }
}

pub fn start(trial: &Trial) -> Option<Start> {
    trial.groups.iter().flatten().find_map(|report| report.output.start.clone())
}
