//! Reconciles the files by which containers reach their devices, and reports which devices can be reached.

use crate::access::AccessFiles;
use crate::event::{Event, Events};
use crate::node::DesiredSlices;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often the files are checked without a change, because somebody may have removed one.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// The wait after a file could not be made.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Creates the desired files and removes the others, until `stop`. Nothing is removed before the desired devices are
/// known.
pub async fn reconcile(
    files: AccessFiles,
    mut wanted: watch::Receiver<Option<DesiredSlices>>,
    events: Events,
    stop: CancellationToken,
) {
    let files = Arc::new(files);
    loop {
        let now = wanted
            .borrow_and_update()
            .as_ref()
            .map(|slices| (slices.reach.clone(), slices.spared.devices.clone()));
        let Some((now, spared)) = now else {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = wanted.changed() => if changed.is_err() { return stop.cancelled().await },
            }
            continue;
        };
        let files = Arc::clone(&files);
        // Runs off the loop's thread, so that a folder on a slow disk does not block anything else.
        let Ok(made) = tokio::task::spawn_blocking(move || files.ensure(&now, &spared)).await else { return };
        let failed = made.values().any(Result::is_err);
        let reported =
            made.into_iter().map(|(device, made)| (device, made.map_err(|error| error.to_string())));
        events.send(Event::Reachable(reported.collect()));
        tokio::select! {
            () = stop.cancelled() => return,
            changed = wanted.changed() => if changed.is_err() { return stop.cancelled().await },
            () = tokio::time::sleep(if failed { RETRY_INTERVAL } else { POLL_INTERVAL }) => {}
        }
    }
}
