//! Allocations under way: while one is, the kubelet is not asked who holds what.
//!
//! The kubelet writes down what it picked for a pod after `Allocate` was answered. Asked for its account before that, while
//! another pod has just gone, it forgets the pick (`UpdateAllocatedDevices` of its device manager, kubernetes v1.36), counts too
//! few devices as allocatable, and rejects the pod (`OutOf…`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long after its last word about an allocation the kubelet has surely written it down.
const QUIET_INTERVAL: Duration = Duration::from_millis(20);

/// The longest wait: a node to which pods come all the time is asked too.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);

/// When the kubelet spoke of an allocation last. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Allocations(Arc<Mutex<Option<Instant>>>);

impl Allocations {
    /// The kubelet asks which devices to take, or takes them.
    pub(super) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns once no allocation is under way, or after [`SETTLE_TIMEOUT`].
    pub async fn settled(&self) {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let left = last.map_or(Duration::ZERO, |last| QUIET_INTERVAL.saturating_sub(last.elapsed()));
            if left.is_zero() || Instant::now() >= deadline {
                return;
            }
            sleep(left).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_kubelet_is_asked_when_an_allocation_is_written_down() {
        let (allocations, began) = (Allocations::default(), Instant::now());
        allocations.settled().await;
        assert_eq!(began.elapsed(), Duration::ZERO, "nothing is under way");
        allocations.note();
        sleep(QUIET_INTERVAL / 2).await;
        allocations.note();
        allocations.settled().await;
        assert_eq!(began.elapsed(), QUIET_INTERVAL * 3 / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_to_which_pods_come_all_the_time_is_asked_too() {
        let (allocations, began) = (Allocations::default(), Instant::now());
        let noting = allocations.clone();
        noting.note();
        let coming = async {
            loop {
                noting.note();
                sleep(QUIET_INTERVAL / 4).await;
            }
        };
        tokio::select! {
            () = coming => {}
            () = allocations.settled() => {}
        }
        assert!(began.elapsed() >= SETTLE_TIMEOUT && began.elapsed() < SETTLE_TIMEOUT * 2);
    }
}
