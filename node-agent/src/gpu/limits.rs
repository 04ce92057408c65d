//! Keeps the driver's limits on the GPU memory of pods' cgroups (R615 and later) as they should be.

use super::GpuThread;
use crate::node::Kept;
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Limits by GPU and cgroup.
pub type Limits = BTreeMap<(GpuUuid, String), MemoryMib>;

/// The wait after a limit could not be set.
const AGAIN: Duration = Duration::from_secs(30);

/// Sets and lifts limits until `stop`, once it is known which are wanted. Those in `set` are there already: an earlier process set them.
pub async fn keep(
    thread: GpuThread,
    mut set: Limits,
    mut wanted: watch::Receiver<Option<Kept>>,
    stop: CancellationToken,
) {
    loop {
        let now = wanted.borrow_and_update().as_ref().map(|kept| kept.limits.clone());
        let settled = match now {
            Some(now) => apply(&thread, &mut set, &now).await,
            None => true,
        };
        let again = tokio::time::sleep(AGAIN);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = wanted.changed() => if changed.is_err() { return stop.cancelled().await },
            () = again, if !settled => {}
        }
    }
}

/// Whether everything is as wanted.
async fn apply(thread: &GpuThread, set: &mut Limits, wanted: &Limits) -> bool {
    let gone: Vec<_> = set.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
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
            // A cgroup that is gone has no limit either.
            (Ok(()) | Err(_), None) => drop(set.remove(&(gpu, cgroup))),
            (Err(error), Some(_)) => {
                tracing::warn!(%gpu, cgroup, %error, "the GPU memory of a pod cannot be limited");
                settled = false;
            }
        }
    }
    settled
}
