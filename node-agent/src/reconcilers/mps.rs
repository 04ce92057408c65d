//! Reconciles the MPS daemons that the node's shares need, and reports what they do.

use super::loss::Losses;
use crate::event::{Event, Events};
use crate::gpu::{ComputeMode, GpuError, GpuThread};
use crate::mps::{ComputeModes, Observed, Paths, State, Targets, Timings, Wanted, supervise};
use crate::node::{Daemon, Daemons, DesiredSlices, WantedDaemon};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kerf_core::names::GpuUuid;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

impl ComputeModes for GpuThread {
    fn mode(&self, target: &str) -> BoxFuture<'_, Result<ComputeMode, String>> {
        let (thread, gpu) = (self.clone(), GpuUuid::new(target));
        async move {
            match thread.compute_mode(gpu).await {
                Err(GpuError::NoSuchGpu(_)) => Ok(ComputeMode::Default),
                result => result.map_err(|error| error.to_string()),
            }
        }
        .boxed()
    }

    fn set(&self, target: &str, mode: ComputeMode) -> BoxFuture<'_, Result<(), String>> {
        let (thread, gpu) = (self.clone(), GpuUuid::new(target));
        async move {
            match thread.set_compute_mode(gpu, mode).await {
                Err(GpuError::NoSuchGpu(_)) if mode != ComputeMode::ExclusiveProcess => Ok(()),
                result => result.map_err(|error| error.to_string()),
            }
        }
        .boxed()
    }
}

/// Runs the daemons until `stop`. After that they continue, because clients run on them.
pub async fn reconcile(
    paths: Paths,
    thread: GpuThread,
    mut wanted: watch::Receiver<Option<DesiredSlices>>,
    events: Events,
    stop: CancellationToken,
) {
    let (targets, to_run) = watch::channel(None);
    let (observed, mut seen) = watch::channel(Observed::new());
    let supervising = supervise(paths, Timings::default(), to_run, observed, thread, stop.clone());
    let passing_on = async {
        loop {
            let now = wanted.borrow_and_update().as_ref().map(desired_targets);
            targets.send_if_modified(|old| {
                *old != now && {
                    *old = now;
                    true
                }
            });
            if wanted.changed().await.is_err() {
                // The loop that publishes the desired state has ended; the daemons stay as they are until `stop`.
                return std::future::pending().await;
            }
        }
    };
    let reporting = async {
        let mut losses = Losses::default();
        while seen.changed().await.is_ok() {
            let now = seen.borrow_and_update().clone();
            for (target, how) in losses.since(&now) {
                events.send(Event::ServerLost(GpuUuid::new(target), how));
            }
            events.send(Event::Daemons(daemons(&now)));
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = supervising => {}
        () = passing_on => {}
        () = reporting => {}
    }
    stop.cancelled().await;
}

fn desired_targets(slices: &DesiredSlices) -> Targets {
    let wanted = slices.daemons.iter().map(|(gpu, daemon)| {
        let WantedDaemon { limit, threads, exclusive, in_use } = *daemon;
        let wanted = Wanted { limit, threads, exclusive, in_use };
        (gpu.as_str().to_owned(), wanted)
    });
    let spared = slices.spared.gpus.iter().map(ToString::to_string).collect();
    Targets { wanted: wanted.collect(), spared }
}

fn daemons(observed: &Observed) -> Daemons {
    let daemons = observed.iter().map(|(target, status)| {
        let generation = status.generation;
        let daemon = match &status.state {
            State::Starting | State::Restarting { .. } | State::Stopping => Daemon::Changing,
            State::Serving { limit, threads } | State::Adjusting { limit, threads } => {
                Daemon::Serving { generation, limit: *limit, threads: *threads }
            }
            State::Ill { text, .. } => Daemon::Ill(text.clone()),
        };
        (GpuUuid::new(target), daemon)
    });
    daemons.collect()
}
