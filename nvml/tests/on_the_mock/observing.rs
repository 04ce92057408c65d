//! Tests what one observation returns.

use crate::node::{Node, instance, look, open, part, uuid};
use kerf_core::units::MemoryMib;
use kerf_nvml::{Compute, ComputeMode, Gpu, GpuBackend as _, MigMode, NvmlCode, Process, RowRemapping};
use kerf_nvml_mock::{
    EccErrors, EccLocation, Fault, GpuReset, MockControl, NvmlCode as Code, Process as MockProcess,
    ProcessKind,
};

pub fn an_observation_has_every_field_of_a_gpu(node: &Node) {
    let mut nvml = open();
    node.control(&MockControl::new().process(MockProcess::on_gpu(41, 1, 512)));
    let [h100, t4] = <[_; 2]>::try_from(nvml.observe().unwrap()).unwrap();
    assert_eq!((h100.index, h100.minor, h100.product.as_str()), (0, 0, "NVIDIA H100 80GB HBM3"));
    assert_eq!((h100.memory, h100.used, h100.capability), (MemoryMib(81_559), MemoryMib(0), (9, 0)));
    assert_eq!((h100.mig, h100.compute_mode), (MigMode::Settled(true), ComputeMode::Default));
    assert_eq!(h100.table.unwrap().entries().len(), 7);
    assert_eq!((h100.pending_repair, h100.fault), (None, None));
    assert!(h100.uuid.as_str().starts_with("GPU-") && h100.processes.is_empty());

    assert_eq!((t4.index, t4.minor, t4.capability), (1, 1, (7, 5)));
    assert_eq!((t4.mig, t4.table), (MigMode::Unsupported, None));
    assert_eq!(t4.used, MemoryMib(512));
    assert_eq!(t4.processes, [Process { pid: 41, memory: Some(MemoryMib(512)), gi: None, ci: None }]);
    assert_eq!(nvml.driver().unwrap().version, "580.159.04");
    assert_eq!(nvml.driver().unwrap().cuda, (13, 0));
}

pub fn a_process_in_several_lists_is_one_process(node: &Node) {
    let mut nvml = open();
    let gpu = look(&mut nvml, 0).uuid;
    let small = nvml.create(&gpu, instance("1g.10gb", 0, 1), None).unwrap();
    let on_it = |pid, used, kind| MockProcess { kind, ..MockProcess::on_instance(pid, 0, small.gi, used) };
    let processes = [
        on_it(41, 100, ProcessKind::Compute),
        on_it(41, 120, ProcessKind::Graphics),
        on_it(42, 7, ProcessKind::Mps),
        on_it(43, 9, ProcessKind::Holder),
    ];
    node.control(&processes.into_iter().fold(MockControl::new(), MockControl::process));
    let gpu = look(&mut nvml, 0);
    let listed = |pid, mib| Process { pid, memory: Some(MemoryMib(mib)), gi: Some(small.gi), ci: Some(0) };
    assert_eq!(gpu.processes, [listed(41, 120), listed(42, 7)]);
    assert!(gpu.instances[0].has_processes);
}

pub fn a_lost_gpu_keeps_its_last_state(node: &Node) {
    let mut nvml = open();
    let gpu = look(&mut nvml, 0).uuid;
    nvml.create(&gpu, instance("1g.10gb", 3, 1), None).unwrap();
    let before = nvml.observe().unwrap();

    node.control(&MockControl::new().fault(Fault::new("*", Code::GPU_IS_LOST).on_gpu(0)));
    let lost = nvml.observe().unwrap();
    assert_eq!(lost[0].fault.as_ref().unwrap().code(), NvmlCode::GpuIsLost);
    assert_eq!(lost[0].instances, before[0].instances);
    assert_eq!(lost[1], before[1], "the other goes on");
    let refused = nvml.create(&gpu, instance("1g.10gb", 4, 1), None).unwrap_err();
    assert_eq!(refused.code(), NvmlCode::GpuIsLost);

    // One failed call is as bad as a lost GPU, because the rest of the GPU's data is unknown then.
    let fault = Fault::new("nvmlGpuInstanceGetInfo", Code::NOT_FOUND).on_gpu(0).times(1);
    node.control(&MockControl::new().fault(fault));
    let unsure = look(&mut nvml, 0);
    assert_eq!((unsure.fault.is_some(), unsure.instances), (true, before[0].instances.clone()));
    assert_eq!(nvml.observe().unwrap(), before);
}

pub fn a_gpu_that_never_answered_is_left_out(node: &Node) {
    node.control(&MockControl::new().fault(Fault::new("*", Code::GPU_IS_LOST).on_gpu(0)));
    let mut nvml = open();
    let seen = nvml.observe().unwrap();
    assert_eq!(seen.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [1]);
    assert_eq!(nvml.unresponsive().keys().collect::<Vec<_>>(), [&0]);
    node.control(&MockControl::new());
    assert_eq!(nvml.observe().unwrap().len(), 2);
    assert!(nvml.unresponsive().is_empty());
}

pub fn an_error_of_all_of_nvml_fails_the_observation(node: &Node) {
    let mut nvml = open();
    for code in [Code::UNINITIALIZED, Code::DRIVER_NOT_LOADED, Code::LIB_RM_VERSION_MISMATCH] {
        node.control(&MockControl::new().fault(Fault::new("nvmlDeviceGetMigMode", code).on_gpu(1)));
        assert!(nvml.observe().unwrap_err().needs_reopening());
    }
    node.control(&MockControl::new().fault(Fault::new("nvmlDeviceGetCount_v2", Code::UNKNOWN)));
    assert_eq!(nvml.observe().unwrap_err().to_string(), "nvmlDeviceGetCount_v2 answered UNKNOWN");
}

pub fn after_a_reboot_hopper_has_no_instances(node: &Node) {
    let mut nvml = open();
    let before = look(&mut nvml, 0);
    nvml.create(&before.uuid, instance("7g.80gb", 0, 8), None).unwrap();
    node.control(&MockControl::new().boot("boot-2"));
    let after = look(&mut nvml, 0);
    assert_eq!((after.mig, after.table, after.instances), (MigMode::Settled(false), None, Vec::new()));
    assert_eq!(after.uuid, before.uuid);
}

pub fn instances_of_another_program_are_foreign(node: &Node) {
    let mut nvml = open();
    let gpu = look(&mut nvml, 0).uuid;
    let large = instance("3g.40gb", 4, 4);
    nvml.create(&gpu, large, Some(part(0, 2))).unwrap();
    let mut state = node.state();
    state.gpus[0].instances[0].compute[0].placement.start = 1;
    node.set_state(&state);
    let seen = look(&mut nvml, 0).instances.swap_remove(0);
    assert_eq!(seen.compute, Compute::Foreign, "two slices of three begin at the first");
    assert!(nvml.destroy(&gpu, &seen, None).is_err(), "it cannot be identified");
    assert_eq!(node.state(), state);
}

pub fn profiles_are_listed_with_mig_mode_off_too(_: &Node) {
    let mut nvml = open();
    let [a30, l4] = <[_; 2]>::try_from(nvml.observe().unwrap()).unwrap();
    assert_eq!(a30.table, None, "nothing can be cut now");
    let names: Vec<String> =
        nvml.profiles(&a30.uuid).unwrap().entries().iter().map(|e| e.profile.to_string()).collect();
    assert_eq!(names, ["1g.6gb", "2g.12gb", "4g.24gb", "1g.6gb+me", "2g.12gb+me"]);
    assert!(nvml.profiles(&l4.uuid).unwrap().is_empty());
}

pub fn errors_in_remapped_memory_do_not_close_a_gpu(node: &Node) {
    let mut nvml = open();
    let mut reported = || -> Vec<_> {
        let seen = nvml.observe().unwrap().into_iter();
        seen.map(|gpu| (gpu.remapping, gpu.pending_repair, gpu.fault)).collect()
    };
    let (can, cannot) = (RowRemapping::Settled, RowRemapping::Unsupported);
    assert_eq!(reported(), [(can, None, None), (cannot, None, None)]);
    let mut control =
        MockControl::new().ecc(EccErrors::double_bit("e1", 0)).ecc(EccErrors::double_bit("e2", 1));
    node.control(&control);
    let page = Some("a page of its memory is retired at its next reset".to_owned());
    assert_eq!(reported(), [(RowRemapping::Pending, None, None), (cannot, page, None)]);
    // Bad memory in a cache cannot be replaced.
    let in_cache = EccErrors { location: EccLocation::Sram, ..EccErrors::double_bit("e3", 0) };
    control = control.ecc(in_cache);
    node.control(&control);
    let caches = || Some("1 uncorrected errors in its caches since its last reset".to_owned());
    assert_eq!(reported()[0], (RowRemapping::Pending, caches(), None));
    // Unknown health keeps its last value, because a pending repair does not end by itself.
    let fails = Fault::new("nvmlDeviceGetRemappedRows", Code::UNKNOWN).on_gpu(0);
    node.control(&control.clone().fault(fails));
    assert_eq!(reported()[0], (RowRemapping::Pending, caches(), None));
    let reset = |gpu| GpuReset { id: format!("r{gpu}"), gpu };
    node.control(&MockControl { resets: vec![reset(0), reset(1)], ..control.clone() });
    assert_eq!(reported(), [(can, None, None), (cannot, None, None)]);

    let too_old = |call| Fault::new(call, Code::FUNCTION_NOT_FOUND);
    let calls = ["nvmlDeviceGetRemappedRows", "nvmlDeviceGetTotalEccErrors"];
    node.control(&calls.map(too_old).into_iter().fold(MockControl::new(), MockControl::fault));
    assert_eq!(reported()[0], (cannot, None, None), "an older driver does not report it");
}

pub fn failed_optional_queries_are_unknown(node: &Node) {
    let mut nvml = open();
    let gpu = look(&mut nvml, 0).uuid;
    let small = nvml.create(&gpu, instance("1g.10gb", 3, 1), None).unwrap();
    let before = look(&mut nvml, 0);
    assert!(!before.instances[0].has_processes);
    for call in ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"] {
        node.control(&MockControl::new().fault(Fault::new(call, Code::UNKNOWN).on_gpu(0)));
        let unsure = look(&mut nvml, 0);
        assert_eq!(unsure.fault, None, "{call}");
        assert!(unsure.instances[0].has_processes, "somebody may be on it");
        assert!(nvml.destroy(&gpu, &small, None).is_err(), "{call}");
    }
    let lost = Fault::new("nvmlDeviceGetComputeRunningProcesses_v3", Code::GPU_IS_LOST).on_gpu(0);
    node.control(&MockControl::new().fault(lost));
    assert!(look(&mut nvml, 0).fault.is_some(), "that it is lost is no detail");
    node.control(&MockControl::new());
    assert_eq!(look(&mut nvml, 0), before);
}

pub fn a_backend_for_one_gpu_touches_no_other(node: &Node) {
    let mut all = open();
    assert_eq!(all.count(), Ok(2));
    let [first, second] = [uuid(&mut all, 0), uuid(&mut all, 1)];
    node.control(&MockControl::new().fault(Fault::gpu_lost(0)));
    // By nvml.h a search by UUID fails as long as any GPU is lost.
    all.create(&second, instance("1g.10gb", 0, 1), None).unwrap();
    let mut one = all.for_one(1);
    drop(all);
    let seen = one.observe().unwrap();
    assert_eq!(seen.iter().map(|gpu| (&gpu.uuid, gpu.instances.len())).collect::<Vec<_>>(), [(&second, 1)]);
    assert!(one.unresponsive().is_empty());
    one.set_compute_mode(&second, ComputeMode::ExclusiveProcess).unwrap();
    let refused = one.set_compute_mode(&first, ComputeMode::ExclusiveProcess);
    assert_eq!(refused, Err(kerf_nvml::GpuError::NoSuchGpu(first)), "it is another's");
}

pub fn an_answer_with_less_than_before_is_rejected(node: &Node) {
    let (mut nvml, one) = (open(), |function, code| Fault::new(function, code).on_gpu(0).times(1));
    let gpu = look(&mut nvml, 0).uuid;
    nvml.create(&gpu, instance("1g.10gb", 3, 1), None).unwrap();
    let before = look(&mut nvml, 0);
    for (function, code) in [
        ("nvmlDeviceGetMigMode", Code::NOT_SUPPORTED),
        ("nvmlDeviceGetGpuInstanceProfileInfoV", Code::NOT_SUPPORTED),
        ("nvmlDeviceGetGpuInstanceProfileInfoV", Code::INVALID_ARGUMENT),
    ] {
        // The first two observations read the profiles.
        let mut nvml = open();
        look(&mut nvml, 0);
        node.control(&MockControl::new().fault(one(function, code)));
        let unsure = look(&mut nvml, 0);
        assert_eq!(
            (unsure.fault.is_some(), unsure.instances),
            (true, before.instances.clone()),
            "{function}"
        );
        assert_eq!(look(&mut nvml, 0), before);
    }
    // Nothing is known at the first observation, so it is believed. The next one corrects it.
    let first = one("nvmlDeviceGetGpuInstanceProfileInfoV", Code::INVALID_ARGUMENT);
    node.control(&MockControl::new().fault(first));
    let mut nvml = open();
    assert!(look(&mut nvml, 0).instances.is_empty());
    assert_eq!(look(&mut nvml, 0), before);
    // However often the driver lists less than the catalog, the next observation corrects it.
    let always = Fault::new("nvmlDeviceGetGpuInstanceProfileInfoV", Code::NOT_SUPPORTED).on_gpu(0);
    node.control(&MockControl::new().fault(always));
    let mut nvml = open();
    for _ in 0..3 {
        assert!(look(&mut nvml, 0).instances.is_empty());
    }
    node.control(&MockControl::new());
    assert_eq!(look(&mut nvml, 0), before);
}

pub fn the_topology_is_read_once(node: &Node) {
    let sys = node.folder("sys");
    let mut nvml = open().with_sys(sys.clone());
    node.state().write_sys(&sys).unwrap();
    let links = |gpus: &[Gpu]| -> Vec<Vec<(String, u32)>> {
        let links = |gpu: &Gpu| gpu.topology.nvlinks.iter().map(|(end, n)| (end.to_string(), *n)).collect();
        gpus.iter().map(links).collect()
    };
    let to = |end: &str, links| vec![(end.to_owned(), links)];
    let switch = "ffffffff:ff:ff.0";
    // A failed call leaves out one link, and nothing else.
    node.control(&MockControl::new().fault(Fault::new("nvmlDeviceGetNvLinkState", Code::UNKNOWN).times(2)));
    let seen = nvml.observe().unwrap();
    let numa: Vec<_> = seen.iter().map(|gpu| gpu.topology.numa).collect();
    assert_eq!(numa, [Some(0), Some(1), None, None]);
    let reported = [to("0000:1f:00.0", 4), to("0000:1b:00.0", 6), vec![], to(switch, 18)];
    assert_eq!(links(&seen), reported);

    node.control(&MockControl::new().count_calls());
    assert_eq!(links(&nvml.observe().unwrap()), reported);
    let asked = |call: &String| call.contains("NvLink");
    assert!(!node.state().calls.keys().any(asked));
    // Out of MIG mode a GPU has its links again.
    nvml.set_mig_mode(&seen[2].uuid, false, false).unwrap();
    assert_eq!(links(&nvml.observe().unwrap())[2], to(switch, 18));
}
