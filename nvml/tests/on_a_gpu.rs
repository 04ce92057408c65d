//! Tests what only a real driver can show: that it answers every query, and in the layouts that the code expects. It
//! changes nothing, so that it can run on a machine in use: `cargo test -p kerf-nvml --test on_a_gpu -- --ignored`.

use kerf_nvml::{EventWatch, GpuBackend as _, NvmlBackend};
use std::time::{Duration, Instant};

const LIBRARY: &str = "libnvidia-ml.so.1";

#[test]
#[ignore = "needs a GPU and its driver"]
fn a_real_driver_answers_every_query() {
    let mut nvml = NvmlBackend::open(LIBRARY.as_ref()).unwrap();
    println!("{:?}", nvml.driver().unwrap());
    let gpus = nvml.observe().unwrap();
    assert!(!gpus.is_empty() && nvml.unresponsive().is_empty(), "{:?}", nvml.unresponsive());
    for gpu in &gpus {
        println!("{gpu:#?}");
        assert!(gpu.memory.0 > 0 && gpu.used <= gpu.memory && gpu.capability.0 > 0);
        let table = nvml.profiles(&gpu.uuid).unwrap();
        assert!(table.entries().iter().all(|entry| entry.memory <= gpu.memory && !entry.starts.is_empty()));
    }
    assert_eq!(nvml.observe().unwrap().len(), gpus.len());
}

/// Prints the values and compares none, because they depend on what runs there.
#[test]
#[ignore = "needs a GPU and its driver"]
fn a_real_driver_reports_how_busy_its_gpus_are() {
    let mut nvml = NvmlBackend::open(LIBRARY.as_ref()).unwrap();
    for _ in 0..3 {
        let gpus = nvml.observe().unwrap();
        let began = Instant::now();
        let all = nvml.utilization(&gpus);
        println!("{:?} {all:?}", began.elapsed());
        for gpu in &gpus {
            let reported = &all[&gpu.uuid];
            let is_mig = gpu.mig.is_on();
            assert_eq!(
                (reported.gpu.is_none(), reported.processes.is_none()),
                (is_mig, is_mig),
                "{reported:?}"
            );
        }
        std::thread::sleep(Duration::from_secs(2));
    }
}

#[test]
#[ignore = "needs a GPU and its driver"]
fn a_real_driver_accepts_an_event_watch() {
    let mut watch = EventWatch::open(LIBRARY.as_ref()).unwrap();
    assert!(watch.gpus() > 0);
    println!("{:?}", watch.wait(Duration::from_millis(200)).unwrap());
}
