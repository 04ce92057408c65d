use super::*;
use kerf_nvml_mock::{ComputeInstance, GpuInstance, MigMode, MockConfig, Model, Placement};
use serde_json::{Value, json};

const MIG_DEVICE: &str = "MIG-1";

/// A GPU with an instance `1g.18gb` at 2:1, and a shared one.
fn nvml() -> MockState {
    let config =
        MockConfig::new().gpus(Model::H200, 1, MigMode::Enabled).gpus(Model::H200, 1, MigMode::Disabled);
    let mut nvml = MockState::first_boot(&config).unwrap();
    let profile = Model::H200.profile_named("1g.18gb").unwrap();
    let placement = Placement { start: 2, size: 1 };
    let device = ComputeInstance {
        id: 0,
        profile_id: 0,
        placement: Placement { start: 0, size: 1 },
        serial: 2,
        uuid: MIG_DEVICE.to_owned(),
        mig_index: 0,
    };
    nvml.gpus[0].instances.push(GpuInstance {
        id: 7,
        profile_id: profile.id,
        placement,
        serial: 1,
        compute: vec![device],
        sram_uncorrected: 0,
    });
    nvml
}

fn gpu(nvml: &MockState, number: usize) -> String {
    nvml.gpus[number].uuid.clone()
}

/// The devices and variables of a container.
fn given(devices: &[&str], variables: &[(&str, &str)]) -> Given {
    Given {
        devices: devices.iter().map(|device| (*device).to_owned()).collect(),
        environment: variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
    }
}

fn assigned(slices: &[(&str, &str, Value)]) -> AssignmentDocument {
    let slices = slices
        .iter()
        .map(|(id, gpu, shape)| json!({"container": "main", "id": id, "gpu": gpu, "shape": shape}));
    serde_json::from_value(json!({"version": 1, "slices": slices.collect::<Vec<_>>()})).unwrap()
}

fn mig(start: u8) -> Value {
    json!({"kind": "mig", "profile": "1g.18gb", "start": start, "size": 1})
}

#[test]
fn a_mig_instance_is_what_nvml_says() {
    let nvml = nvml();
    let mig_gpu = gpu(&nvml, 0);
    let reported = |shape: &str, gpu: &str| {
        given(&[MIG_DEVICE], &[(SLICES, &format!("s1 {shape} on {gpu}"))]).slices(&nvml)
    };
    let slices = reported("1g.18gb at 2:1", &mig_gpu).unwrap();
    assert_eq!(compare(&slices, &assigned(&[("s1", &mig_gpu, mig(2))])), Verdict::AsAssigned);
    assert_eq!(compare(&slices, &assigned(&[("s2", &mig_gpu, mig(3))])), Verdict::Equal);
    for (shape, gpu) in
        [("1g.18gb at 3:1", mig_gpu.as_str()), ("2g.35gb at 2:1", &mig_gpu), ("1g.18gb at 2:1", "GPU-x")]
    {
        assert!(reported(shape, gpu).unwrap_err().contains("holds {\"MIG-1\"}"), "{shape} on {gpu}");
    }
}

#[test]
fn a_share_of_another_kind_is_held_otherwise() {
    let nvml = nvml();
    let shared = gpu(&nvml, 1);
    let (device, pipe) = (format!("{shared}::3"), format!("/run/{shared}/pipe"));
    let share = format!("s3 14gb MPS share on {shared}");
    let limits = [(MPS_MEMORY, "0=14336M"), (MPS_PIPE, pipe.as_str())];
    let slices =
        given(&[&device], &[&[(SLICES, share.as_str())][..], &limits].concat()).slices(&nvml).unwrap();
    let of = |kind: &str, gb: u32| assigned(&[("s3", &shared, json!({"kind": kind, "sizeGb": gb}))]);
    assert_eq!(compare(&slices, &of("mps", 14)), Verdict::AsAssigned);
    for other in
        [of("time-slicing", 14), of("mps", 12), of("whole", 14), assigned(&[("s3", &shared, mig(2))])]
    {
        assert!(matches!(compare(&slices, &other), Verdict::Otherwise(_)), "{other:?}");
    }
}

#[test]
fn differences_between_kubelet_and_container_are_found() {
    let nvml = nvml();
    let shared = gpu(&nvml, 1);
    let (third, pipe) = (format!("{shared}::3"), format!("/run/{shared}/pipe"));
    let (share, turn) = (format!("s3 14gb MPS share on {shared}"), format!("s3 14gb time slice on {shared}"));
    let (whole, instance) =
        (format!("s3 whole GPU of 141 GB on {shared}"), format!("s3 1g.18gb at 2:1 on {shared}"));
    let (limit, pipe) = ((MPS_MEMORY, "0=14336M"), (MPS_PIPE, pipe.as_str()));
    let named = |text| (SLICES, text);
    for (devices, variables, part) in [
        (vec![&*third], vec![], "has no KERF_SLICE"),
        (vec![&*third], vec![named("s3")], "cannot be read"),
        (vec![], vec![named(&share), limit, pipe], "holds {}"),
        (vec![&*third, MIG_DEVICE], vec![named(&share), limit, pipe], "also holds {\"MIG-1\"}"),
        (vec![&*third], vec![named(&share)], "None, not Some"),
        (vec![&*third], vec![named(&share), (MPS_MEMORY, "0=1M"), pipe], "not Some"),
        (vec![&*third], vec![named(&share), limit], MPS_PIPE),
        (vec![&*third], vec![named(&turn), limit, pipe], "not None"),
        (vec![&*third], vec![named(&whole), limit, pipe], "not None"),
        (vec![&*third], vec![named(&instance)], "holds"),
        (vec![&*shared], vec![named(&whole)], "holds"),
    ] {
        let why = given(&devices, &variables).slices(&nvml).unwrap_err();
        assert!(why.contains(part), "{variables:?}: {why}");
    }
    for text in [&whole, &turn] {
        assert!(given(&[&third], &[named(text)]).slices(&nvml).is_ok(), "{text}");
    }
}
