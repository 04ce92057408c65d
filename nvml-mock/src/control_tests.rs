//! Tests the control file as it is written by hand, by builders, and by several programs at once.

use super::*;
use crate::code::NvmlCode;
use crate::fault::Strike;
use crate::happening::{EccKind, EccLocation};
use crate::load::ProcessKind;

/// The example of the README, which this test keeps correct.
fn readme_example() -> String {
    let readme = include_str!("../README.md");
    let from = readme.find("```json control").unwrap();
    let text = &readme[from..];
    let body = text.split_once('\n').unwrap().1;
    body.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_documented_json_is_read() {
    let control: MockControl = serde_json::from_str(&readme_example()).unwrap();
    assert_eq!(control.faults[0].strike, Strike::Code(NvmlCode::IN_USE));
    assert!(control.faults.iter().any(|fault| fault.strike == Strike::Kill && fault.after_effect));
    assert!(control.faults.iter().any(|fault| fault.strike == Strike::Hang));
    assert!(control.hangs("nvmlDeviceGetMemoryInfo_v2"));
    assert_eq!(control.delay_of("nvmlGpuInstanceDestroy"), Duration::from_millis(200));
    assert_eq!(control.processes[1].kind, ProcessKind::Mps);
    let ecc = &control.ecc_errors[0];
    assert_eq!((ecc.kind, ecc.location, ecc.count), (EccKind::Uncorrected, EccLocation::Dram, 1));
    assert_eq!(control.resets[0].gpu, 1);
    assert!(control.count_calls);
    let empty = serde_json::to_value(MockControl::new()).unwrap();
    let left_out: Vec<_> = serde_json::to_value(&control)
        .unwrap()
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, value)| empty[name.as_str()] == **value)
        .map(|(name, _)| name.clone())
        .collect();
    assert!(left_out.is_empty(), "{left_out:?}");
}

#[test]
fn a_fault_strikes_its_function_and_gpu_as_often_as_it_says() {
    let control = MockControl::new().fault(Fault::new("f", NvmlCode::TIMEOUT).times(2).on_gpu(1));
    let key = control.faults[0].key();
    let with = |struck: u32| BTreeMap::from([(key.clone(), struck)]);
    assert!(control.fault_for("f", Some(1), &with(1)).is_some());
    assert!(control.fault_for("f", Some(1), &with(2)).is_none());
    assert!(control.fault_for("f", Some(0), &with(0)).is_none());
    assert!(control.fault_for("f", None, &with(0)).is_none());
    assert!(control.fault_for("g", Some(1), &with(0)).is_none());
    assert!(control.has_fault(&key) && !control.has_fault("f"));
}

#[test]
fn edits_at_once_keep_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.json");
    std::thread::scope(|scope| {
        for pid in 0..8 {
            let path = &path;
            scope.spawn(move || {
                MockControl::edit(path, |control| control.processes.push(Process::on_gpu(pid, 0, 1)))
                    .unwrap();
            });
        }
    });
    assert_eq!(MockControl::load(&path).unwrap().processes.len(), 8);
}
