//! The agent's record on the node's disk, as the executor needs it: written off the loop's thread, before what it tells of
//! is made or set.

use crate::checkpoint::{Checkpoint, CheckpointError, Record};
use crate::node::Recalled;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The record. Its clones are one.
#[derive(Clone)]
pub struct Recording {
    checkpoint: Arc<Mutex<Checkpoint>>,
    boot_id: String,
}

impl Recording {
    /// Opens the record in `folder`, in the boot `boot_id`. Gives what an earlier process recorded there, if one did.
    pub fn open(folder: &Path, boot_id: String) -> Result<(Self, Option<Recalled>), CheckpointError> {
        let (checkpoint, record) = Checkpoint::open(folder)?;
        let recalled = record.map(|record| recalled(record, &boot_id));
        Ok((Self { checkpoint: Arc::new(Mutex::new(checkpoint)), boot_id }, recalled))
    }

    /// Writes what the node has, unless it stands there already.
    ///
    /// # Errors
    /// The text of what is wrong with the disk, and the remedy.
    pub async fn save(&self, recalled: Recalled) -> Result<(), String> {
        let (checkpoint, record) = (Arc::clone(&self.checkpoint), self.record(recalled));
        let write = move || checkpoint.lock().unwrap_or_else(PoisonError::into_inner).save(&record);
        let written = tokio::task::spawn_blocking(write).await.map_err(|error| error.to_string())?;
        written.map_err(|error| error.to_string())
    }

    fn record(&self, recalled: Recalled) -> Record {
        let Recalled { spec, uid, shares, mig, exclusive, limits, ills, booted: recovering } = recalled;
        let mut by_gpu: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for ((gpu, cgroup), limit) in limits {
            by_gpu.entry(gpu).or_default().insert(cgroup, limit);
        }
        let new = Record::new(self.boot_id.clone());
        Record { uid, spec, shares, mig, exclusive, limits: by_gpu, ills, recovering, ..new }
    }
}

fn recalled(record: Record, boot_id: &str) -> Recalled {
    let Record { boot_id: written_in, uid, spec, shares, mig, exclusive, limits, ills, recovering, .. } =
        record;
    if written_in != boot_id {
        // Compute modes and limits do not outlive a boot: whatever is set now was set by somebody else. A GPU that is still
        // ill says so again. Shares are the kubelet's to hand out, and it remembers to whom it did.
        return Recalled { spec, uid, shares, mig, booted: true, ..Recalled::default() };
    }
    let limits = limits.into_iter().flat_map(|(gpu, by_cgroup)| {
        by_cgroup.into_iter().map(move |(cgroup, limit)| ((gpu.clone(), cgroup), limit))
    });
    let limits = limits.collect();
    Recalled { spec, uid, shares, mig, exclusive, limits, ills, booted: recovering }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Ill;
    use kerf_core::names::GpuUuid;
    use kerf_core::units::MemoryMib;

    fn busy() -> Recalled {
        let gpu = GpuUuid::new("GPU-0");
        let limits = [((gpu.clone(), "/pod1".to_owned()), MemoryMib(4096))].into();
        let ills = vec![Ill { gpu: gpu.clone(), gi: Some(3), text: "XID 94".to_owned() }];
        Recalled { exclusive: [gpu].into(), limits, ills, ..Recalled::default() }
    }

    async fn after(folder: &Path, boot: &str, saved: Option<Recalled>) -> Recalled {
        let (recording, recalled) = Recording::open(folder, boot.to_owned()).unwrap();
        if let Some(saved) = saved {
            recording.save(saved).await.unwrap();
        }
        recalled.unwrap_or_default()
    }

    #[tokio::test]
    async fn modes_limits_and_illnesses_come_back_after_a_restart_and_not_after_a_boot() {
        let folder = tempfile::tempdir().unwrap();
        after(folder.path(), "one", Some(busy())).await;
        assert_eq!(after(folder.path(), "one", None).await, busy());
        let booted = Recalled { booted: true, ..Recalled::default() };
        assert_eq!(after(folder.path(), "two", None).await, booted);
    }

    #[tokio::test]
    async fn a_recovery_goes_on_in_the_next_process_until_it_is_recorded_as_ended() {
        let folder = tempfile::tempdir().unwrap();
        after(folder.path(), "one", Some(Recalled::default())).await;
        let half = after(folder.path(), "two", None).await;
        after(folder.path(), "two", Some(half.clone())).await;
        assert!(after(folder.path(), "two", None).await.booted, "not all is there");
        after(folder.path(), "two", Some(Recalled { booted: false, ..half })).await;
        assert!(!after(folder.path(), "two", None).await.booted);
    }
}
