//! The agent's record on the node's disk, as the executor needs it: written off the loop's thread, before what it tells of
//! is made.

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
    /// Opens the record in `folder`, in the boot `boot_id`. Gives what an earlier process recorded there.
    pub fn open(folder: &Path, boot_id: String) -> Result<(Self, Recalled), CheckpointError> {
        let (checkpoint, record) = Checkpoint::open(folder)?;
        let recalled = record.map(|record| recalled(record, &boot_id)).unwrap_or_default();
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
        let Recalled { spec, uid, mig, exclusive, limits, booted: _ } = recalled;
        let mut by_gpu: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for ((gpu, cgroup), limit) in limits {
            by_gpu.entry(gpu).or_default().insert(cgroup, limit);
        }
        Record { uid, spec, mig, exclusive, limits: by_gpu, ..Record::new(self.boot_id.clone()) }
    }
}

fn recalled(record: Record, boot_id: &str) -> Recalled {
    let Record { boot_id: written_in, uid, spec, mig, exclusive, limits, .. } = record;
    let limits = limits.into_iter().flat_map(|(gpu, by_cgroup)| {
        by_cgroup.into_iter().map(move |(cgroup, limit)| ((gpu.clone(), cgroup), limit))
    });
    let limits = limits.collect();
    Recalled { spec, uid, mig, exclusive, limits, booted: written_in != boot_id }
}
