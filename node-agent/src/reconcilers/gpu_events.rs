//! The thread that waits for GPU errors. NVML's wait blocks, so it has its own thread and its own NVML session.

use crate::access::Library;
use crate::event::{Event, Events};
use crate::gpu::GpuError;
use crate::metrics::Metrics;
use kerf_nvml::EventWatch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The shortest and the longest wait between tries while NVML does not answer.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// A flag that GPU handles may have changed, so that the event watch must be opened again.
#[derive(Debug, Clone, Default)]
pub struct Reopen(Arc<AtomicBool>);

impl Reopen {
    /// Requests that the watch is opened again.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether that was requested since the last call.
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Starts the thread. After `stop` it closes NVML and ends within [`POLL_INTERVAL`].
pub fn watch(
    library: Library,
    events: Events,
    reopen: Reopen,
    metrics: Metrics,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let wait = move || {
        let mut pause = Duration::ZERO;
        while !stop.is_cancelled() {
            let begun = Instant::now();
            if let Err(error) = watch_once(&library, &events, &reopen, &stop) {
                metrics.count_events(&error);
                pause = next_pause(pause, begun.elapsed());
                tracing::warn!(%error, ?pause, "the GPUs' error events are not read; opening them again");
                std::thread::sleep(pause);
            }
        }
    };
    std::thread::Builder::new().name("nvml-events".to_owned()).spawn(wait).map(drop)
}

/// How long to wait after a watch that failed after `lasted`; `last` is the previous wait. A watch that worked for long
/// is opened again at once, because events are lost meanwhile.
fn next_pause(last: Duration, lasted: Duration) -> Duration {
    let (first, longest) = BACKOFF;
    if lasted >= longest { Duration::ZERO } else { (last * 2).clamp(first, longest) }
}

fn watch_once(
    library: &Library,
    events: &Events,
    reopen: &Reopen,
    stop: &CancellationToken,
) -> Result<(), GpuError> {
    let mut watch = EventWatch::open(&library.find())?;
    while !stop.is_cancelled() && !reopen.take() {
        if watch.gpus() == 0 {
            std::thread::sleep(POLL_INTERVAL);
            // NVML may count more GPUs when it is opened again.
            if watch.count() == 0 {
                return Ok(());
            }
        } else if let Some(event) = watch.wait(POLL_INTERVAL)? {
            events.send(Event::Trouble(event));
            continue;
        } else {
            // NVML's wait may return at once, so limit the rate; nothing here is urgent.
            std::thread::sleep(Duration::from_millis(100));
        }
        watch.register_left_out()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_reopening_happens_once() {
        let reopen = Reopen::default();
        assert!(!reopen.take());
        reopen.ask();
        reopen.clone().ask();
        assert!(reopen.take() && !reopen.take());
    }

    #[test]
    fn a_long_lived_watch_is_reopened_at_once_and_a_failing_one_with_backoff() {
        assert_eq!(next_pause(BACKOFF.1, Duration::from_mins(1)), Duration::ZERO);
        let failing = |last: &Duration| Some(next_pause(*last, Duration::ZERO));
        let pauses: Vec<u128> = std::iter::successors(Some(Duration::ZERO), failing)
            .map(|pause| pause.as_millis())
            .take(10)
            .collect();
        assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }
}
