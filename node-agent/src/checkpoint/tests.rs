use super::*;
use kerf_core::contract::GpuNodeSpec;
use kerf_core::contract::{Shape, WantedSlice};
use kerf_core::ledger::Saved;
use kerf_core::names::SliceId;
use kerf_core::units::{MemoryMib, SizeGb};
use mirror::NAMES as MIRROR_NAMES;
use std::os::unix::fs::symlink;
use two_files::NAMES;

/// The checkpoint on the disk; it can be read while an agent holds it.
pub(crate) fn on_disk(folder: &Path) -> Option<Record> {
    let (_, contents) = TwoFiles::open(folder).unwrap();
    parse(Mirror::open(folder).unwrap().1, contents).unwrap()
}

/// How many records were written there; each costs one `fdatasync`.
pub(crate) fn writes(folder: &Path) -> u64 {
    TwoFiles::open(folder).unwrap().0.sequence()
}

/// The file that was written last.
pub(crate) fn newest(folder: &Path) -> &'static str {
    let number = |name: &str| two_files::sequence_in(&fs::read(folder.join(name)).unwrap_or_default());
    NAMES.into_iter().max_by_key(|name| number(name)).unwrap()
}

fn record(revision: u64) -> Record {
    let gpu = GpuUuid::new("GPU-0");
    let slice = WantedSlice {
        id: SliceId::new("s1"),
        gpu: gpu.clone(),
        shape: Shape::mps(SizeGb(4)),
        reservation: None,
    };
    let node = Restored {
        uid: Some("u".to_owned()),
        ledger: GpuNodeSpec { revision, epoch: 4, slices: vec![slice], ..GpuNodeSpec::default() }.into(),
        mig_on: BTreeSet::from([GpuUuid::new("GPU-1")]),
        exclusive: BTreeSet::from([gpu.clone()]),
        limits: [((gpu, "/kubepods/pod1".to_owned()), MemoryMib(4096))].into(),
        ..Restored::default()
    };
    Record::new("boot".to_owned(), node)
}

fn open(folder: &Path) -> (Checkpoint, Option<Record>) {
    match Checkpoint::open(folder).unwrap() {
        (checkpoint, Found::Record(record)) => (checkpoint, Some(*record)),
        (checkpoint, Found::Nothing) => (checkpoint, None),
        (_, Found::Unreadable(set_aside)) => panic!("{set_aside}"),
    }
}

#[test]
fn a_saved_record_is_restored_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("not/yet");
    let (mut checkpoint, before) = open(&state);
    assert_eq!(before, None);
    checkpoint.save(&record(1)).unwrap();
    checkpoint.save(&record(2)).unwrap();
    drop(checkpoint);
    assert_eq!(open(&state).1, Some(record(2)));
}

#[test]
fn a_record_that_the_disk_has_is_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    checkpoint.save(&record(1)).unwrap();
    assert_eq!(checkpoint.writes(), 1);
    drop(checkpoint);
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    assert_eq!(checkpoint.writes(), 1, "what was found at the start is known too");
    checkpoint.save(&record(2)).unwrap();
    assert_eq!(checkpoint.writes(), 2);
}

/// A text in the form of version 1, which agents without a ledger write.
fn old_text(revision: u64) -> String {
    let spec = serde_json::to_value(record(revision).node.ledger.desired).unwrap();
    let mut value = serde_json::to_value(record(revision)).unwrap();
    let fields = value.as_object_mut().unwrap();
    fields.remove("ledger");
    fields.insert("version".to_owned(), 1.into());
    fields.insert("spec".to_owned(), spec);
    value.to_string()
}

#[test]
fn the_record_of_an_agent_without_a_ledger_counts_until_it_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let old = folder.path().join(MIRROR_NAMES[0]);
    for (was, then) in [(1, 2), (3, 4)] {
        // In the second round an older agent has served the node in between.
        fs::write(&old, old_text(was)).unwrap();
        assert_eq!(open(folder.path()).1, Some(record(was)));
        let (mut checkpoint, _) = open(folder.path());
        checkpoint.save(&record(was)).unwrap();
        assert_eq!(on_disk(folder.path()), Some(record(was)));
        checkpoint.save(&record(then)).unwrap();
        drop(checkpoint);
        assert_eq!(open(folder.path()).1, Some(record(then)));
    }
}

/// After a rollback the previous agent version reads the same file.
#[test]
fn an_agent_without_a_ledger_finds_the_record_of_the_one_that_had_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = || {
        serde_json::from_slice::<serde_json::Value>(&fs::read(folder.path().join(MIRROR_NAMES[0])).unwrap())
    };
    let (mut checkpoint, _) = open(folder.path());
    let heard = |revision| {
        let mut record = record(revision);
        record.node.ledger.epoch = 9;
        record
    };
    checkpoint.save(&heard(1)).unwrap();
    let mut old: serde_json::Value = serde_json::from_str(&old_text(1)).unwrap();
    let fields = old.as_object_mut().unwrap();
    fields["spec"]["epoch"] = 9.into();
    fields.insert("mirrorsLedger".to_owned(), true.into());
    fields.insert("ledger".to_owned(), serde_json::to_value(Saved::default()).unwrap());
    assert_eq!(text().unwrap(), old);
    checkpoint.save(&heard(2)).unwrap();
    assert_eq!(text().unwrap()["spec"]["revision"], 1, "it costs no write each time");
    checkpoint.leave();
    assert_eq!(text().unwrap()["spec"]["revision"], 2);
    drop(checkpoint);
    assert_eq!(open(folder.path()).1, Some(heard(2)), "the ledger is what counts");
}

/// This agent does not need the mirror, so a failed write of it does no harm.
#[test]
fn a_failed_write_of_the_mirror_is_an_error_only_over_an_older_agents_record() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(MIRROR_NAMES[1])).unwrap();
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    // An older agent's checkpoint would count as newer.
    fs::write(folder.path().join(MIRROR_NAMES[0]), old_text(5)).unwrap();
    drop(checkpoint);
    let (mut checkpoint, found) = open(folder.path());
    assert_eq!(found, Some(record(5)));
    checkpoint.save(&record(6)).unwrap_err();
}

#[test]
fn an_unreadable_file_is_set_aside_with_the_reason() {
    let newer = serde_json::json!({"version": 3, "bootId": "boot"}).to_string();
    let cases: [(&str, &[u8], &str); 6] = [
        (MIRROR_NAMES[0], b"", "EOF"),
        (MIRROR_NAMES[0], b"\xff\xfe", "expected value"),
        (MIRROR_NAMES[0], newer.as_bytes(), "version 3"),
        (MIRROR_NAMES[0], br#"{"version": 1, "bootId": "b", "spec": {"policy": {"novel": 1}}}"#, "novel"),
        (NAMES[0], b"\xff\xfe", "no file is whole"),
        (NAMES[1], newer.as_bytes(), "no file is whole"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (number, (name, text, reason)) in (1..).zip(cases) {
        fs::write(folder.path().join(name), text).unwrap();
        let (mut checkpoint, found) = Checkpoint::open(folder.path()).unwrap();
        let Found::Unreadable(reported) = found else { panic!("{found:?}") };
        assert!(reported.reason.contains(reason), "{reported}");
        let kept = |name: &str| folder.path().join(format!("{name}.unreadable-{number}"));
        assert!(reported.paths.contains(&kept(name)), "{reported}");
        assert_eq!(fs::read(kept(name)).unwrap(), text);
        // Later records are found, and are set aside with the next unreadable one.
        assert_eq!(on_disk(folder.path()), None);
        checkpoint.save(&record(number)).unwrap();
        assert_eq!(on_disk(folder.path()), Some(record(number)));
        fs::remove_file(folder.path().join(NAMES[0])).unwrap();
    }
}

/// The newer of two whole documents is of a later agent version. The older one lacks what was accepted since.
#[test]
fn a_newer_version_is_not_passed_over_for_an_older_record() {
    let folder = tempfile::tempdir().unwrap();
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    checkpoint.save(&Record { version: VERSION + 1, ..record(2) }).unwrap();
    drop(checkpoint);
    let (_checkpoint, found) = Checkpoint::open(folder.path()).unwrap();
    let Found::Unreadable(reported) = found else { panic!("{found:?}") };
    assert!(reported.reason.contains("version 3"), "{reported}");
    assert_eq!(reported.paths.len(), 3, "{reported}");
}

/// A checkpoint of a few blocks.
fn long(revision: u64) -> Record {
    let paused = (0..300).map(|number| format!("label-{number}-{revision}-{}", "x".repeat(40)));
    let mut record = record(revision);
    record.node.paused = paused.collect();
    record
}

#[test]
fn an_interrupted_write_leaves_the_previous_record() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = folder.path().join(name);
        for file in NAMES {
            drop(fs::remove_file(folder.path().join(file)));
        }
        let (mut checkpoint, _) = open(folder.path());
        checkpoint.save(&long(1)).unwrap();
        checkpoint.save(&long(2)).unwrap();
        if name == NAMES[1] {
            checkpoint.save(&long(3)).unwrap();
        }
        let (before, old) = (on_disk(folder.path()), fs::read(&path).unwrap());
        let last = long(9);
        checkpoint.save(&last).unwrap();
        drop(checkpoint);
        let new = fs::read(&path).unwrap();
        assert_ne!(new, old, "{name} is the one that was written last");
        let end = 32 + serde_json::to_vec(&last).unwrap().len();
        assert!(end > 3 * 4096);
        for cut in (0..new.len()).step_by(61).chain([end - 1, end]) {
            // The file had this length before, or it ends at the cut.
            for torn in [[&new[..cut], &old[cut..]].concat(), new[..cut].to_vec()] {
                // The two documents may have the same end.
                let is_whole = torn.get(..end) == Some(&new[..end]);
                fs::write(&path, torn).unwrap();
                let found = on_disk(folder.path());
                assert!(
                    found == if is_whole { Some(last.clone()) } else { before.clone() },
                    "{name} at {cut}"
                );
            }
        }
        // A disk may write sectors in any order.
        let mut torn = new.clone();
        torn[4096..8192].copy_from_slice(&old[4096..8192]);
        fs::write(&path, torn).unwrap();
        assert_eq!(on_disk(folder.path()), before);

        // The next write goes to the torn file, because the other one is the only whole document.
        let (mut checkpoint, found) = open(folder.path());
        assert_eq!(found, before);
        let other = NAMES.into_iter().find(|other| *other != name).unwrap();
        let whole = fs::read(folder.path().join(other)).unwrap();
        checkpoint.save(&record(10)).unwrap();
        assert_eq!(fs::read(folder.path().join(other)).unwrap(), whole);
        drop(checkpoint);
        assert_eq!(open(folder.path()).1, Some(record(10)));
    }
}

#[test]
fn two_torn_files_are_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    checkpoint.save(&record(2)).unwrap();
    drop(checkpoint);
    for name in NAMES {
        let path = folder.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[40] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let (mut checkpoint, found) = Checkpoint::open(folder.path()).unwrap();
    let Found::Unreadable(reported) = found else { panic!("{found:?}") };
    let aside = |name: &str| folder.path().join(format!("{name}.unreadable-1"));
    assert_eq!(reported.paths, [MIRROR_NAMES[0], NAMES[0], NAMES[1]].map(aside));
    checkpoint.save(&record(3)).unwrap();
    drop(checkpoint);
    assert_eq!(open(folder.path()).1, Some(record(3)));
}

/// An agent that ended between the creation of a file and its first write has recorded nothing.
#[test]
fn empty_files_are_no_record() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(NAMES[0]), b"").unwrap();
    let (mut checkpoint, found) = open(folder.path());
    assert_eq!(found, None);
    checkpoint.save(&record(1)).unwrap();
    drop(checkpoint);
    assert_eq!(open(folder.path()).1, Some(record(1)));
}

/// After a failed write the disk's content is unknown, so even an equal record is written again.
#[test]
fn a_full_disk_leaves_the_previous_record() {
    let folder = tempfile::tempdir().unwrap();
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    let full = folder.path().join(NAMES[1]);
    symlink("/dev/full", &full).unwrap();
    for _ in 0..2 {
        let error = checkpoint.save(&record(2)).unwrap_err();
        let CheckpointError::Io { step: "write", path, source } = &error else { panic!("{error:?}") };
        assert_eq!((path, source.kind()), (&full, io::ErrorKind::StorageFull));
    }
    fs::remove_file(&full).unwrap();
    assert_eq!(on_disk(folder.path()), Some(record(1)));
    checkpoint.save(&record(1)).unwrap();
    assert_eq!(checkpoint.writes(), 2, "it is written where it would have been");
    checkpoint.save(&record(2)).unwrap();
    drop(checkpoint);
    assert_eq!(open(folder.path()).1, Some(record(2)));
}

#[test]
fn a_file_that_cannot_be_opened_leaves_the_previous_record() {
    let folder = tempfile::tempdir().unwrap();
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    let in_the_way = folder.path().join(NAMES[1]);
    fs::create_dir(&in_the_way).unwrap();
    let error = checkpoint.save(&record(2)).unwrap_err();
    assert!(matches!(&error, CheckpointError::Io { step: "open", .. }), "{error}");
    fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(on_disk(folder.path()), Some(record(1)));
    checkpoint.save(&record(2)).unwrap();
    assert_eq!(on_disk(folder.path()), Some(record(2)));
}

/// If somebody empties the folder of a running agent, the agent must not go on writing into deleted files.
#[test]
fn deleted_files_are_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut checkpoint, _) = open(folder.path());
    for revision in 1..4 {
        checkpoint.save(&record(revision)).unwrap();
    }
    for name in NAMES {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    checkpoint.save(&record(4)).unwrap();
    assert_eq!(on_disk(folder.path()), Some(record(4)));
}

#[test]
fn only_one_agent_at_a_time_opens_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, _) = open(folder.path());
    let second = Checkpoint::open(folder.path()).unwrap_err();
    assert!(matches!(second, CheckpointError::InUse(_)), "{second}");
    drop(checkpoint);
    open(folder.path());
}

#[test]
fn a_removed_checkpoint_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    checkpoint.save(&record(2)).unwrap();
    fs::write(folder.path().join(MIRROR_NAMES[0]), old_text(3)).unwrap();
    checkpoint.remove().unwrap();
    let (checkpoint, before) = open(folder.path());
    assert_eq!(before, None);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the lock stays");
    checkpoint.remove().unwrap();
}

#[test]
fn the_boot_id_is_read_without_the_newline() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("boot_id");
    fs::write(&path, "ca9e8b0c-1\n").unwrap();
    assert_eq!(boot_id(&path).unwrap(), "ca9e8b0c-1");
    assert!(boot_id(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
}
