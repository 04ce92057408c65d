use super::*;
use std::path::Path;

fn slicer() -> TimeSlicer {
    TimeSlicer::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/time_slice_stand_in.sh"))
}

/// A GPU with this behaviour.
fn gpu(folder: &Path, behaviour: &str) -> GpuUuid {
    let state = folder.join(behaviour);
    std::fs::create_dir_all(&state).unwrap();
    GpuUuid::new(state.display().to_string())
}

#[tokio::test]
async fn every_length_is_set_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let (slicer, gpu) = (slicer(), gpu(folder.path(), "well"));
    assert_eq!(slicer.length(&gpu).await.unwrap(), SliceLength::Default);
    for length in [SliceLength::Short, SliceLength::Medium, SliceLength::Long, SliceLength::Default] {
        slicer.set(&gpu, length).await.unwrap();
        assert_eq!(slicer.length(&gpu).await.unwrap(), length);
    }
    slicer.set(&gpu, SliceLength::Default).await.unwrap();
    let calls = std::fs::read_to_string(folder.path().join("well/calls")).unwrap();
    assert_eq!(calls, "1\n2\n3\n0\n", "what is so already is not set");
}

#[tokio::test]
async fn an_error_has_the_programs_output() {
    let folder = tempfile::tempdir().unwrap();
    let error = async |behaviour: &str| {
        slicer().set(&gpu(folder.path(), behaviour), SliceLength::Long).await.unwrap_err().to_string()
    };
    for (behaviour, expected) in [
        ("absent", "exit code Some(6): No devices were found"),
        ("forbidden", "exit code Some(4): Insufficient Permissions"),
        ("novel", "cannot read: |   0   Timeslice       Endless"),
        ("deaf", "are Default after they were set to Long"),
    ] {
        let reported = error(behaviour).await;
        assert!(reported.contains(expected), "{behaviour}: {reported}");
    }
}

#[tokio::test]
async fn a_hung_program_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let hasty = TimeSlicer { timeout: Duration::from_millis(300), ..slicer() };
    let error = hasty.length(&gpu(folder.path(), "hangs")).await.unwrap_err();
    assert!(matches!(error, TimeSliceError::Hangs { .. }), "{error}");
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let error =
        TimeSlicer::new("/nowhere/nvidia-smi".into()).length(&GpuUuid::new("GPU-0")).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/nvidia-smi"), "{error}");
}

#[test]
fn a_table_without_exactly_one_gpu_is_rejected() {
    let row = "|   0   Timeslice       Default       |";
    assert_eq!(listed(row), Some(SliceLength::Default));
    assert_eq!(listed(&format!("{row}\n{row}")), None);
    assert_eq!(listed("No devices were found"), None);
}

#[tokio::test]
async fn a_length_that_an_earlier_process_set_is_reset_if_it_is_not_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (gpu(folder.path(), "well"), gpu(folder.path(), "absent"));
    slicer().set(&ours, SliceLength::Long).await.unwrap();
    let wanted = BTreeMap::from([&ours, &theirs].map(|gpu| (gpu.clone(), SliceLength::Default)));
    let (sender, receiver) = watch::channel(wanted);
    let stop = CancellationToken::new();
    let keeping = tokio::spawn(keep(slicer(), [ours.clone()].into(), receiver, stop.clone()));
    tokio::time::timeout(TIMEOUT, async {
        while slicer().length(&ours).await.unwrap() != SliceLength::Default {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    stop.cancel();
    keeping.await.unwrap();
    drop(sender);
}
