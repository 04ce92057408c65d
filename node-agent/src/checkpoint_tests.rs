use super::*;
use kerf_core::contract::{Shape, WantedSlice};
use kerf_core::names::SliceId;
use kerf_core::units::SizeGb;
use std::os::unix::fs::MetadataExt as _;

fn record(revision: u64) -> Record {
    let gpu = GpuUuid::new("GPU-0");
    let slice = WantedSlice {
        id: SliceId::new("s1"),
        gpu: gpu.clone(),
        shape: Shape::mps(SizeGb(4)),
        reservation: None,
    };
    let limits = BTreeMap::from([("/kubepods/pod1".to_owned(), MemoryMib(4096))]);
    Record {
        uid: Some("u".to_owned()),
        spec: GpuNodeSpec { revision, slices: vec![slice], ..GpuNodeSpec::default() },
        mig: BTreeSet::from([GpuUuid::new("GPU-1")]),
        exclusive: BTreeSet::from([gpu.clone()]),
        limits: BTreeMap::from([(gpu, limits)]),
        ..Record::new("boot".to_owned())
    }
}

fn open(folder: &Path) -> (Checkpoint, Option<Record>) {
    match Checkpoint::open(folder).unwrap() {
        (checkpoint, Found::Record(record)) => (checkpoint, Some(*record)),
        (checkpoint, Found::Nothing) => (checkpoint, None),
        (_, Found::Unreadable(set_aside)) => panic!("{set_aside}"),
    }
}

#[test]
fn a_record_comes_back_as_it_was_saved() {
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
fn what_is_on_the_disk_is_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let inode = || fs::metadata(folder.path().join(NAME)).unwrap().ino();
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    let first = inode();
    checkpoint.save(&record(1)).unwrap();
    assert_eq!(inode(), first);
    drop(checkpoint);
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    assert_eq!(inode(), first, "what was found at the start is known too");
    checkpoint.save(&record(2)).unwrap();
    assert_ne!(inode(), first);
}

#[test]
fn what_cannot_be_read_is_kept_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let newer = serde_json::json!({"version": 2, "bootId": "boot"}).to_string();
    let cases: [(&[u8], &str); 4] = [
        (b"", "EOF"),
        (b"\xff\xfe", "expected value"),
        (newer.as_bytes(), "version 2"),
        (br#"{"version": 1, "bootId": "b", "spec": {"policy": {"novel": 1}}}"#, "novel"),
    ];
    for (number, (text, reason)) in (1..).zip(cases) {
        fs::write(folder.path().join(NAME), text).unwrap();
        let (_, found) = Checkpoint::open(folder.path()).unwrap();
        let Found::Unreadable(told) = found else { panic!("{found:?}") };
        assert!(told.reason.contains(reason), "{told}");
        assert_eq!(told.path, folder.path().join(format!("{NAME}.unreadable-{number}")));
        assert_eq!(fs::read(&told.path).unwrap(), text);
        assert!(!folder.path().join(NAME).exists());
    }
}

#[test]
fn a_write_that_was_cut_short_leaves_the_record_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    drop(checkpoint);
    fs::write(folder.path().join(NEW_NAME), b"{\"version\": 1, \"bo").unwrap();
    let (mut checkpoint, before) = open(folder.path());
    assert_eq!(before, Some(record(1)));
    checkpoint.save(&record(2)).unwrap();
    drop(checkpoint);
    assert_eq!(open(folder.path()).1, Some(record(2)));
}

/// After a write that failed nobody knows what is on the disk, so not even an equal record is left out.
#[test]
fn a_failed_write_is_told_and_done_at_the_next_save() {
    let folder = tempfile::tempdir().unwrap();
    let (mut checkpoint, _) = open(folder.path());
    checkpoint.save(&record(1)).unwrap();
    let in_the_way = folder.path().join(NEW_NAME);
    fs::create_dir(&in_the_way).unwrap();
    let error = checkpoint.save(&record(2)).unwrap_err();
    assert!(matches!(&error, CheckpointError::Io { step: "write", .. }), "{error}");
    fs::remove_dir(&in_the_way).unwrap();
    fs::remove_file(folder.path().join(NAME)).unwrap();
    checkpoint.save(&record(1)).unwrap();
    drop(checkpoint);
    assert_eq!(open(folder.path()).1, Some(record(1)));
}

#[test]
fn one_agent_at_a_time_has_it() {
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
    checkpoint.remove().unwrap();
    let (checkpoint, before) = open(folder.path());
    assert_eq!(before, None);
    checkpoint.remove().unwrap();
}

#[test]
fn the_boots_id_is_a_line_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("boot_id");
    fs::write(&path, "ca9e8b0c-1\n").unwrap();
    assert_eq!(boot_id(&path).unwrap(), "ca9e8b0c-1");
    assert!(boot_id(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
}
