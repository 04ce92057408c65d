//! The thread that waits for the GPUs' own errors. NVML's wait blocks, so it has a thread and a session of its own.

use super::GpuError;
use crate::access::Library;
use crate::metrics::Metrics;
use crate::reconcile::{Event, Events};
use kerf_nvml::EventWatch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long one wait takes at most.
const WAIT: Duration = Duration::from_secs(5);

/// The wait after NVML did not answer.
const AGAIN: Duration = Duration::from_secs(5);

/// Says that the GPUs' handles may have changed, so that the watch is opened anew.
#[derive(Debug, Clone, Default)]
pub struct Reopen(Arc<AtomicBool>);

impl Reopen {
    /// Has the watch opened anew.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts the thread. It closes NVML and ends within [`WAIT`] after `stop`.
pub fn watch(
    library: Library,
    events: Events,
    reopen: Reopen,
    metrics: Metrics,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let wait = move || {
        while !stop.is_cancelled() {
            let begun = Instant::now();
            if let Err(error) = watch_once(&library, &events, &reopen, &stop) {
                metrics.count_events(&error);
                tracing::warn!(%error, "the GPUs' error events are not heard; trying again");
                // Meanwhile nobody hears: only what fails at once is waited for.
                if begun.elapsed() < AGAIN {
                    std::thread::sleep(AGAIN);
                }
            }
        }
    };
    std::thread::Builder::new().name("nvml-events".to_owned()).spawn(wait).map(drop)
}

fn watch_once(
    library: &Library,
    events: &Events,
    reopen: &Reopen,
    stop: &CancellationToken,
) -> Result<(), GpuError> {
    let mut watch = EventWatch::open(&library.find())?;
    while !stop.is_cancelled() && !reopen.0.swap(false, Ordering::Relaxed) {
        if watch.gpus() == 0 {
            std::thread::sleep(WAIT);
            // NVML may count more of them when it is opened anew.
            if watch.count() == 0 {
                return Ok(());
            }
        } else if let Some(event) = watch.wait(WAIT)? {
            events.send(Event::Trouble(event));
            continue;
        } else {
            // NVML may give up at once; nobody is in a hurry here.
            std::thread::sleep(Duration::from_millis(100));
        }
        watch.register_left_out()?;
    }
    Ok(())
}
