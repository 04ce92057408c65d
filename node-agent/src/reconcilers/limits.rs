//! Sets the driver's limits on the GPU memory of pods' cgroups (R615 and later), and reports which are set.

use crate::event::{Event, Events};
use crate::gpu::limits::Limits;
use crate::gpu::{GpuError, GpuThread, NvmlCode};
use crate::node::DesiredSlices;
use kerf_core::names::GpuUuid;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The wait after a limit could not be set.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Sets and lifts limits until `stop`, once the desired ones are known, and reports which are set. An earlier process
/// has set those in `set`.
pub async fn reconcile(
    thread: GpuThread,
    mut set: Limits,
    mut wanted: watch::Receiver<Option<DesiredSlices>>,
    events: Events,
    stop: CancellationToken,
) {
    // The desired state changes often for other reasons, so remember what was tried: a limit that the driver refused is
    // not set again at each change.
    let (mut tried, mut again) = (None, None);
    loop {
        let now = wanted
            .borrow_and_update()
            .as_ref()
            .map(|slices| (slices.limits.clone(), slices.spared.gpus.clone()));
        if let Some(limits) =
            now.filter(|now| tried.as_ref() != Some(now) || again.is_some_and(|at| at <= Instant::now()))
        {
            let before = set.clone();
            let settled = apply(&thread, &mut set, (&limits.0, &limits.1)).await;
            if set != before {
                events.send(Event::Limits(set.clone()));
            }
            again = (!settled).then(|| Instant::now() + RETRY_INTERVAL);
            tried = Some(limits);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = wanted.changed() => if changed.is_err() { return stop.cancelled().await },
            () = tokio::time::sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {}
        }
    }
}

/// Returns whether all limits are as desired. Limits on the spared GPUs stay.
async fn apply(
    thread: &GpuThread,
    set: &mut Limits,
    (wanted, spared): (&Limits, &BTreeSet<GpuUuid>),
) -> bool {
    let stays = |key: &&(GpuUuid, String)| wanted.contains_key(*key) || spared.contains(&key.0);
    let gone: Vec<_> = set.keys().filter(|key| !stays(key)).cloned().collect();
    let new: Vec<_> = wanted.iter().filter(|(key, limit)| set.get(*key) != Some(limit)).collect();
    let lifts = gone.into_iter().map(|key| (key, None));
    let sets = new.into_iter().map(|(key, limit)| (key.clone(), Some(*limit)));
    let mut settled = true;
    for ((gpu, cgroup), limit) in lifts.chain(sets).collect::<Vec<_>>() {
        match (thread.limit_memory(gpu.clone(), cgroup.clone(), limit).await, limit) {
            (Ok(()), Some(limit)) => {
                tracing::info!(%gpu, cgroup, %limit, "GPU memory limited");
                set.insert((gpu, cgroup), limit);
            }
            (Ok(()), None) => drop(set.remove(&(gpu, cgroup))),
            // A GPU without memory limits, or a GPU that is gone, has no limit for this cgroup either.
            (Err(error), None) if has_none(&error) => drop(set.remove(&(gpu, cgroup))),
            (Err(error), limit) => {
                tracing::warn!(%gpu, cgroup, ?limit, %error, "the limit on a pod's GPU memory cannot be changed");
                settled = false;
            }
        }
    }
    settled
}

fn has_none(error: &GpuError) -> bool {
    matches!(error, GpuError::NoSuchGpu(_) | GpuError::TooOld { .. })
        || error.code() == NvmlCode::NotSupported
}
