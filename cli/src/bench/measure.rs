//! What the measuring commands have in common: the client's subject, one point from its plan to its figures, and an end that
//! leaves nothing behind.

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

/// Runs a measuring command.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

/// The client as its flags say.
pub fn client(pods: &PodArgs, run: &RunArgs) -> anyhow::Result<Subject> {
    let template = pods.template.as_deref().map(input::read).transpose().context("--template")?;
    let client = subject::client(pods, template.as_deref(), run.warm_up);
    Ok(client.map_err(|error| InputError::Bad(failure::told(&error.into())))?)
}

/// The folder for the results, made before anything is measured.
pub fn prepare(out: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(out)
        .with_context(|| format!("--output-directory {}: failed to make the folder", out.display()))
}

/// Writes one of the results.
pub fn write(out: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = out.join(name);
    std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
}

/// When a run begins, as its results have it.
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Does the work until it ends or a signal comes, and removes what it made in any case.
pub async fn leaving_nothing(
    cluster: &Cluster,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let stop = shutdown::on_signals()?;
    let worked = tokio::select! {
        worked = work => worked,
        () = stop.cancelled() => Err(anyhow::anyhow!("stopped by a signal; what was measured before is kept")),
    };
    match (worked, cluster.remove().await) {
        (Ok(()), removed) => removed,
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(left)) => Err(error.context(format!("{left:#}; and before"))),
    }
}

/// How long things take, by the flags.
pub fn times(run: &RunArgs) -> Times {
    Times { start_within: run.start_within, warm_up: run.warm_up, measure: run.measure }
}

/// Measures one planned point.
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
    let figures = trial.window.figures(&trial.told(0))?;
    let shape = trial.groups[0].first().map(|report| report.granted.shape);
    let profile = shape.and_then(granted::profile);
    let point = Point {
        technology: *technology,
        copies: *copies,
        gpu: planned.target.gpu.uuid.to_string(),
        slice: profile.clone().or_else(|| shape.map(|shape| shape.to_string())).unwrap_or_default(),
        // Who asks for no part is not limited.
        threads_percent: (technology.kind() == Kind::Mps)
            .then(|| planned.threads.unwrap_or(ComputePercent::ALL).get()),
        profile,
        figures,
    };
    Ok((point, trial))
}

/// What is known of the GPU: by its GpuNode, and by a client on it.
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

/// What the first copy of a trial told of itself.
pub fn start(trial: &Trial) -> Option<Start> {
    trial.groups.iter().flatten().find_map(|report| report.told.start.clone())
}
