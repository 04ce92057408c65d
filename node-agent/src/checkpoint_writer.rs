//! Writes the checkpoint for the agent's tasks. It is written off the loop's thread, and before anything in it is
//! created, set or answered.

use crate::checkpoint::{Checkpoint, CheckpointError, Found, Record};
use crate::driver_load::DriverLoad;
use crate::node::Restored;
use kerf_runtime::telemetry::chain;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The checkpoint for all tasks. Clones share one state.
#[derive(Clone)]
pub struct CheckpointWriter {
    newest: Arc<Mutex<Newest>>,
    disk: Arc<tokio::sync::Mutex<Disk>>,
    boot_id: String,
    /// The load of the driver that this process works with; empty until a driver is loaded.
    load: Arc<OnceLock<DriverLoad>>,
    sys: PathBuf,
}

/// The newest checkpoint, whether it is on the disk or not.
struct Newest {
    /// How many records were handed over.
    number: u64,
    record: Record,
}

/// The checkpoint on the disk. Its lock lets one write run at a time.
struct Disk {
    checkpoint: Checkpoint,
    /// The number of the checkpoint that was last written, whether or not that succeeded.
    tried: u64,
    result: Result<(), String>,
}

impl Disk {
    fn write(&mut self, newest: &Mutex<Newest>) {
        let (number, record) = {
            let newest = newest.lock().unwrap_or_else(PoisonError::into_inner);
            (newest.number, newest.record.clone())
        };
        self.result = self.checkpoint.save(&record).map_err(|error| chain(&error));
        self.tried = number;
    }
}

impl CheckpointWriter {
    /// Opens the checkpoint in `folder`, in the boot `boot_id`, and returns what an earlier process recorded. `sys`,
    /// usually `/sys`, shows whether the driver was reloaded since.
    pub fn open(
        folder: &Path,
        boot_id: String,
        sys: PathBuf,
    ) -> Result<(Self, Option<Restored>), CheckpointError> {
        let (checkpoint, found) = Checkpoint::open(folder)?;
        let load = DriverLoad::read(&sys);
        let before = match found {
            Found::Nothing => None,
            Found::Record(record) => Some(restored(*record, &boot_id, load)),
            Found::Unreadable(_) => Some(Restored::lost()),
        };
        let newest = Newest { number: 0, record: Record::new(boot_id.clone(), Restored::default()) };
        let (newest, disk) = (Arc::new(Mutex::new(newest)), Disk { checkpoint, tried: 0, result: Ok(()) });
        let (disk, load) =
            (Arc::new(tokio::sync::Mutex::new(disk)), load.map_or_else(OnceLock::new, OnceLock::from));
        Ok((Self { newest, disk, boot_id, load: Arc::new(load), sys }, before))
    }

    #[must_use]
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Whether the driver was reloaded under this process. The first load that is seen counts as its own. Call this
    /// after NVML has answered: an open session keeps the driver from being unloaded, so the result is about this load.
    #[must_use]
    pub fn is_of_another_load(&self) -> bool {
        DriverLoad::read(&self.sys).is_some_and(|now| now != *self.load.get_or_init(|| now))
    }

    /// Writes what the node has, unless the disk has it already. Records are written in the order of these calls, not
    /// of the futures' polls. Records that arrive during a write share one write, of the newest.
    ///
    /// # Errors
    /// Returns what is wrong with the disk.
    pub fn save(&self, restored: Restored) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let record = self.record(restored);
        let number = {
            let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
            newest.number += 1;
            newest.record = record;
            newest.number
        };
        let (newest, disk) = (Arc::clone(&self.newest), Arc::clone(&self.disk));
        async move {
            let mut disk = disk.lock_owned().await;
            // Another call has tried to write this checkpoint or a newer one, so its result counts for this call too.
            if disk.tried >= number {
                return disk.result.clone();
            }
            let write = move || {
                disk.write(&newest);
                disk.result.clone()
            };
            tokio::task::spawn_blocking(write).await.map_err(|error| error.to_string())?
        }
    }

    /// Writes what the node has for the next process, which may be an older agent without a ledger.
    ///
    /// # Errors
    /// Returns what is wrong with the disk.
    pub async fn leave(&self, restored: Restored) -> Result<(), String> {
        self.save(restored).await?;
        let mut disk = Arc::clone(&self.disk).lock_owned().await;
        tokio::task::spawn_blocking(move || disk.checkpoint.leave()).await.map_err(|error| error.to_string())
    }

    fn record(&self, restored: Restored) -> Record {
        let driver_load = self.load.get().copied();
        Record { driver_load, ..Record::new(self.boot_id.clone(), restored) }
    }
}

fn restored(record: Record, boot_id: &str, load: Option<DriverLoad>) -> Restored {
    // A driver that is not loaded now will be loaded again, so its state is lost as well.
    let is_lost = record.boot_id != boot_id || record.driver_load.is_some() && record.driver_load != load;
    let Record { mut node, mig_lost, .. } = record;
    // An older agent kept lost and set modes in one field. During a node's recovery they all count as lost.
    let old = || if node.booted { node.mig_on.clone() } else { BTreeSet::new() };
    node.mig_lost = mig_lost.unwrap_or_else(old);
    if is_lost { node.after_reload() } else { node }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Ill;
    use kerf_core::names::GpuUuid;
    use kerf_core::units::MemoryMib;

    fn busy() -> Restored {
        let gpu = GpuUuid::new("GPU-0");
        let limits = [((gpu.clone(), "/pod1".to_owned()), MemoryMib(4096))].into();
        let ills = vec![Ill { gpu: gpu.clone(), gi: Some(3), text: "XID 94".to_owned() }];
        let (exclusive, lengths) = ([gpu.clone()].into(), [gpu].into());
        Restored { exclusive, limits, lengths, ills, ..Restored::default() }
    }

    async fn after(folder: &Path, boot: &str, saved: Option<Restored>) -> Restored {
        let (writer, before) = CheckpointWriter::open(folder, boot.to_owned(), folder.join("sys")).unwrap();
        if let Some(saved) = saved {
            writer.save(saved).await.unwrap();
        }
        before.unwrap_or_default()
    }

    #[tokio::test]
    async fn modes_limits_and_illnesses_are_restored_after_a_restart_and_not_after_a_boot() {
        let folder = tempfile::tempdir().unwrap();
        after(folder.path(), "one", Some(busy())).await;
        assert_eq!(after(folder.path(), "one", None).await, busy());
        let booted = Restored { booted: true, ..Restored::default() };
        assert_eq!(after(folder.path(), "two", None).await, booted);
    }

    /// A mode that somebody switches off between two processes was not lost.
    #[tokio::test]
    async fn a_mode_that_was_on_is_lost_by_a_boot_alone() {
        let (folder, gpu) = (tempfile::tempdir().unwrap(), GpuUuid::new("GPU-0"));
        let on = Restored { mig_on: [gpu.clone()].into(), ..Restored::default() };
        after(folder.path(), "one", Some(on)).await;
        assert_eq!(after(folder.path(), "one", None).await.mig_lost, BTreeSet::new());
        let booted = after(folder.path(), "two", None).await;
        assert_eq!((booted.mig_on.len(), &booted.mig_lost), (0, &[gpu].into()));
        after(folder.path(), "two", Some(Restored { booted: false, ..booted.clone() })).await;
        assert_eq!(
            after(folder.path(), "two", None).await.mig_lost,
            booted.mig_lost,
            "it is still to come back"
        );
    }

    /// Orders that a leader sends at once are accepted with one write.
    #[tokio::test]
    async fn records_that_arrive_during_a_write_share_one_write() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, _) =
            CheckpointWriter::open(folder.path(), "one".to_owned(), folder.path().join("sys")).unwrap();
        let of = |revision| {
            let mut restored = Restored::default();
            restored.ledger.desired.revision = revision;
            restored
        };
        writer.save(of(1)).await.unwrap();
        let writing = Arc::clone(&writer.disk).lock_owned().await;
        let saves = (2..10).map(|revision| tokio::spawn(writer.save(of(revision))));
        let saves: Vec<_> = saves.collect();
        tokio::task::yield_now().await;
        assert!(saves.iter().all(|save| !save.is_finished()), "none is answered before it is written");
        drop(writing);
        for save in saves {
            save.await.unwrap().unwrap();
        }
        assert_eq!(writer.disk.lock().await.checkpoint.writes(), 2);
        drop(writer);
        assert_eq!(after(folder.path(), "one", None).await, of(9));
    }

    /// A step carries the checkpoint of its decision, and may begin after a newer one was handed over.
    #[tokio::test]
    async fn an_older_record_never_follows_a_newer_one() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, _) =
            CheckpointWriter::open(folder.path(), "one".to_owned(), folder.path().join("sys")).unwrap();
        let (older, newer) = (writer.save(Restored::default()), writer.save(busy()));
        newer.await.unwrap();
        older.await.unwrap();
        drop(writer);
        assert_eq!(after(folder.path(), "one", None).await, busy());
    }

    #[tokio::test]
    async fn a_failed_write_fails_every_record_that_it_covers_and_the_next_write_is_tried() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, _) =
            CheckpointWriter::open(folder.path(), "one".to_owned(), folder.path().join("sys")).unwrap();
        let full = folder.path().join("ledger.0");
        std::os::unix::fs::symlink("/dev/full", &full).unwrap();
        let (first, second) = (writer.save(Restored::default()), writer.save(busy()));
        for failed in [first.await, second.await] {
            assert!(failed.unwrap_err().contains("No space left on device"));
        }
        std::fs::remove_file(&full).unwrap();
        writer.save(busy()).await.unwrap();
        drop(writer);
        assert_eq!(after(folder.path(), "one", None).await, busy());
    }

    fn set_loaded(folder: &Path, loaded: bool) {
        let module = folder.join("sys/module/nvidia");
        if loaded {
            return std::fs::create_dir_all(module).unwrap();
        }
        // Rename it instead of removing it, so that its inode number is not reused.
        let gone = tempfile::tempdir_in(folder).unwrap().keep();
        std::fs::rename(module, gone).unwrap();
    }

    /// GPU Operator upgrades the driver without a reboot, and most GPUs lose their MIG mode in it.
    #[tokio::test]
    async fn a_mode_is_lost_with_the_load_of_the_driver_in_the_same_boot() {
        let (folder, gpu) = (tempfile::tempdir().unwrap(), GpuUuid::new("GPU-0"));
        let folder = folder.path();
        let on = Restored { mig_on: [gpu.clone()].into(), ..busy() };
        set_loaded(folder, true);
        after(folder, "one", Some(on.clone())).await;
        assert_eq!(after(folder, "one", None).await, on, "an admin may switch it off now");
        set_loaded(folder, false);
        let unloaded = after(folder, "one", None).await;
        set_loaded(folder, true);
        let loaded = after(folder, "one", None).await;
        assert_eq!(loaded, Restored { mig_lost: [gpu].into(), booted: true, ..Restored::default() });
        assert_eq!(unloaded, loaded, "what is not loaded now is loaded anew");
        after(folder, "one", Some(loaded.clone())).await;
        assert_eq!(after(folder, "one", None).await, loaded, "until it is back, and then it is of this load");
    }

    #[tokio::test]
    async fn a_process_works_with_one_load_of_the_driver() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (writer, _) = CheckpointWriter::open(folder, "one".to_owned(), folder.join("sys")).unwrap();
        assert!(!writer.is_of_another_load(), "none is loaded");
        set_loaded(folder, true);
        assert!(!writer.is_of_another_load(), "the first one");
        writer.save(busy()).await.unwrap();
        set_loaded(folder, false);
        assert!(!writer.is_of_another_load(), "NVML reports that");
        set_loaded(folder, true);
        assert!(writer.is_of_another_load());
        drop(writer);
        assert!(after(folder, "one", None).await.booted);
    }

    #[test]
    fn modes_in_an_older_agents_record_count_as_lost_during_recovery() {
        let sys = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(sys.path().join("module/nvidia")).unwrap();
        let load = DriverLoad::read(sys.path()).unwrap();
        for (recovering, lost) in [(true, 1), (false, 0)] {
            let text = format!(r#"{{"version":1,"bootId":"one","mig":["GPU-0"],"recovering":{recovering}}}"#);
            let restored = restored(serde_json::from_str(&text).unwrap(), "one", Some(load));
            assert_eq!((restored.mig_on.len(), restored.mig_lost.len()), (1, lost));
        }
    }

    #[tokio::test]
    async fn a_recovery_continues_in_the_next_process_until_its_end_is_recorded() {
        let folder = tempfile::tempdir().unwrap();
        after(folder.path(), "one", Some(Restored::default())).await;
        let half = after(folder.path(), "two", None).await;
        after(folder.path(), "two", Some(half.clone())).await;
        assert!(after(folder.path(), "two", None).await.booted, "not all is there");
        after(folder.path(), "two", Some(Restored { booted: false, ..half })).await;
        assert!(!after(folder.path(), "two", None).await.booted);
    }
}
