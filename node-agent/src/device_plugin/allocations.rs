//! Tracks allocations under way. During one the kubelet is not asked for holders, and none begins while it is asked.
//!
//! The kubelet records the devices that it picked for a pod only after `Allocate` was answered. If it is asked for
//! holders before that, while another pod has just gone, it forgets the pick (`UpdateAllocatedDevices` of its device
//! manager, kubernetes v1.36), counts too few devices as allocatable, and rejects the pod (`OutOf…`). The kubelet picks
//! after it has requested a preference, and holds no lock during that request. So the agent delays its preference until
//! the list of holders was read.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};
use tokio::time::{Instant, sleep, timeout};

/// How long after the answer to `Allocate` the kubelet has surely recorded it.
const QUIET_INTERVAL: Duration = Duration::from_millis(50);

/// The longest wait for quiet. It is limited, because pods may keep coming, and a preference may be followed by no
/// `Allocate`.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest that an allocation waits for the list of holders, so that a kubelet that does not answer still starts
/// pods.
const ACCOUNT_TIMEOUT: Duration = Duration::from_secs(1);

/// The last allocation call of the kubelet, and whether the list of holders is being read. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Allocations {
    last: Arc<Mutex<Option<Said>>>,
    /// Locked for writing while the kubelet is asked for holders.
    account: Arc<RwLock<()>>,
}

/// The kubelet's last call about an allocation, and its time.
#[derive(Debug, Clone, Copy)]
enum Said {
    /// It requested a preference; `Allocate` follows.
    Asks(Instant),
    /// The container's `Allocate` call is running.
    Takes(Instant),
}

/// No allocation begins until this guard is dropped.
#[derive(Debug)]
pub struct Paused {
    _account: OwnedRwLockWriteGuard<()>,
}

impl Allocations {
    /// Called when the kubelet requests a preference. Returns once no list of holders is being read, or after
    /// [`ACCOUNT_TIMEOUT`].
    pub(super) async fn begin(&self) {
        let open = timeout(ACCOUNT_TIMEOUT, self.account.read()).await;
        self.say(Said::Asks(Instant::now()));
        drop(open);
    }

    /// Records a call of `Allocate`.
    pub(super) fn note(&self) {
        self.say(Said::Takes(Instant::now()));
    }

    fn say(&self, said: Said) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
    }

    /// Pauses allocations once none is under way, or after [`SETTLE_TIMEOUT`].
    pub async fn pause(&self) -> Paused {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            self.settled(deadline).await;
            let paused = Paused { _account: Arc::clone(&self.account).write_owned().await };
            // An allocation may have begun while this waited for the lock.
            if self.left().is_zero() || Instant::now() >= deadline {
                return paused;
            }
        }
    }

    async fn settled(&self, deadline: Instant) {
        loop {
            let left = self.left();
            if left.is_zero() || Instant::now() >= deadline {
                return;
            }
            sleep(left.min(QUIET_INTERVAL)).await;
        }
    }

    /// How long until the kubelet has surely recorded its last allocation.
    fn left(&self) -> Duration {
        match *self.last.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Duration::ZERO,
            Some(Said::Asks(at)) => SETTLE_TIMEOUT.saturating_sub(at.elapsed()),
            Some(Said::Takes(at)) => QUIET_INTERVAL.saturating_sub(at.elapsed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn holders_are_listed_once_the_kubelet_has_recorded_the_allocation() {
        let (allocations, began) = (Allocations::default(), Instant::now());
        drop(allocations.pause().await);
        assert_eq!(began.elapsed(), Duration::ZERO, "nothing is under way");
        allocations.begin().await;
        let taking = async {
            sleep(QUIET_INTERVAL * 2).await;
            allocations.note();
        };
        let asking = async {
            drop(allocations.pause().await);
            assert_eq!(began.elapsed(), QUIET_INTERVAL * 3, "a preference is no allocation yet");
        };
        tokio::join!(asking, taking);
    }

    #[tokio::test(start_paused = true)]
    async fn no_allocation_begins_while_holders_are_listed() {
        let (allocations, began) = (Allocations::default(), Instant::now());
        let asking = allocations.pause().await;
        let answered = async {
            sleep(ACCOUNT_TIMEOUT / 2).await;
            drop(asking);
        };
        tokio::join!(allocations.begin(), answered);
        assert_eq!(began.elapsed(), ACCOUNT_TIMEOUT / 2);
        allocations.note();
        drop(allocations.pause().await);
        assert_eq!(began.elapsed(), ACCOUNT_TIMEOUT / 2 + QUIET_INTERVAL, "the allocation has begun");
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_does_not_list_holders_still_starts_pods() {
        let (allocations, began) = (Allocations::default(), Instant::now());
        let _asking = allocations.pause().await;
        allocations.begin().await;
        assert_eq!(began.elapsed(), ACCOUNT_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn holders_are_listed_even_while_pods_keep_coming() {
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
            _ = allocations.pause() => {}
        }
        assert!(began.elapsed() >= SETTLE_TIMEOUT && began.elapsed() < SETTLE_TIMEOUT * 2);
    }
}
