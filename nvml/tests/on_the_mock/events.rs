//! Tests the errors of GPUs that the driver reports.

use crate::node::{Node, instance, open, uuid, watch};
use kerf_nvml::{GpuBackend as _, GpuEvent, GpuTrouble};
use kerf_nvml_mock::{EccErrors, Fault, MockControl, NvmlCode as Code, Xid};
use std::time::Duration;

/// The wait ends with the event, so only a missing event takes this long.
const EVENT_TIMEOUT: Duration = Duration::from_mins(1);
const QUIET_TIMEOUT: Duration = Duration::from_millis(30);

fn xid(id: &str, gpu: u32, xid: u64, gi: Option<u32>) -> Xid {
    Xid { id: id.to_owned(), gpu, xid, gi, ci: gi.map(|_| 0) }
}

pub fn errors_come_once_with_their_instance(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 1);
    let small = nvml.create(&gpu, instance("1g.10gb", 0, 1), None).unwrap();
    let mut control = MockControl { xids: vec![xid("past", 1, 13, None)], ..MockControl::new() };
    node.control(&control);
    let mut watch = watch();
    assert_eq!(watch.gpus(), 2);
    assert_eq!(watch.wait(QUIET_TIMEOUT), Ok(None), "earlier errors are not reported");
    control.xids.push(xid("new", 1, 94, Some(small.gi)));
    node.control(&control);
    let reported = watch.wait(EVENT_TIMEOUT).unwrap().unwrap();
    let (what, gi) = (GpuTrouble::Xid(94), Some(small.gi));
    assert_eq!(reported, GpuEvent { gpu: Some(gpu), what, gi, ci: Some(0) });
    assert_eq!(watch.wait(QUIET_TIMEOUT), Ok(None));
}

pub fn a_gpu_that_fell_off_the_bus_is_still_named(node: &Node) {
    let gpu = uuid(&mut open(), 0);
    let mut watch = watch();
    let lost = MockControl::new().fault(Fault::new("*", Code::GPU_IS_LOST).on_gpu(0));
    node.control(&MockControl { xids: vec![xid("x", 0, 79, None)], ..lost });
    let reported = watch.wait(EVENT_TIMEOUT).unwrap().unwrap();
    assert_eq!((reported.gpu, reported.what), (Some(gpu), GpuTrouble::Xid(79)));
}

pub fn an_event_with_a_new_handle_is_attributed_to_its_gpu(node: &Node) {
    let gpu = uuid(&mut open(), 1);
    let mut watch = watch();
    let renewed = MockControl { renewed_handles: true, ..MockControl::new() };
    let control = MockControl { xids: vec![xid("x", 1, 62, None)], ..renewed };
    node.control(&control);
    assert_eq!(watch.wait(EVENT_TIMEOUT).unwrap().unwrap().gpu, Some(gpu));
    // The GPU of the event cannot be determined, and the event is reported all the same.
    let lost = control.fault(Fault::new("nvmlDeviceGetUUID", Code::GPU_IS_LOST));
    node.control(&MockControl { xids: vec![xid("y", 1, 79, None)], ..lost });
    let reported = watch.wait(EVENT_TIMEOUT).unwrap().unwrap();
    assert_eq!((reported.gpu, reported.what), (None, GpuTrouble::Xid(79)));
}

pub fn memory_errors_come_as_events(node: &Node) {
    let gpu = uuid(&mut open(), 0);
    let mut watch = watch();
    node.control(&MockControl { ecc_errors: vec![EccErrors::double_bit("e", 0)], ..MockControl::new() });
    let reported = watch.wait(EVENT_TIMEOUT).unwrap().unwrap();
    assert_eq!(reported, GpuEvent { gpu: Some(gpu), what: GpuTrouble::DoubleBitEcc, gi: None, ci: None });
}

pub fn gpus_that_do_not_answer_are_not_watched(node: &Node) {
    node.control(&MockControl::new().fault(Fault::new("*", Code::GPU_IS_LOST).on_gpu(0)));
    let mut watch = watch();
    assert_eq!((watch.gpus(), watch.count()), (1, 2));
    watch.register_left_out().unwrap();
    assert_eq!(watch.gpus(), 1);
    node.control(&MockControl { xids: vec![xid("x", 1, 48, None)], ..MockControl::new() });
    assert_eq!(watch.wait(EVENT_TIMEOUT).unwrap().unwrap().what, GpuTrouble::Xid(48));
    let gone = Fault::new("nvmlEventSetWait_v2", Code::UNINITIALIZED);
    node.control(&MockControl::new().fault(gone));
    assert!(watch.wait(QUIET_TIMEOUT).unwrap_err().needs_reopening());
}

pub fn a_gpu_that_could_not_be_registered_is_watched_once_it_answers(node: &Node) {
    let gpu = uuid(&mut open(), 0);
    let fault = Fault::new("nvmlDeviceRegisterEvents", Code::UNKNOWN).on_gpu(0);
    node.control(&MockControl::new().fault(fault));
    let mut watch = watch();
    assert_eq!(watch.gpus(), 1);
    node.control(&MockControl::new());
    watch.register_left_out().unwrap();
    assert_eq!(watch.gpus(), 2);
    node.control(&MockControl { xids: vec![xid("x", 0, 48, None)], ..MockControl::new() });
    assert_eq!(watch.wait(EVENT_TIMEOUT).unwrap().unwrap().gpu, Some(gpu));
}
