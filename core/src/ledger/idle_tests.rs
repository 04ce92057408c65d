use super::*;
use crate::contract::{NodePolicy, WarmSlices};
use crate::kind::Kind;
use crate::ledger::{OwnerInEpoch, release, reserve};
use crate::mig::{ComputeInstance, Geometry};
use crate::packing::Source;
use crate::testing::{
    gpu_uuid, h100_shape, node_status, owner_in_epoch, request, request_sized, slice_status, wanted,
};
use crate::units::MemoryMib;
use proptest::prelude::*;

fn warm_policy(warm: &[(&str, u32)]) -> NodePolicy {
    let warm = warm.iter().map(|(name, count)| WarmSlices { resource: name.parse().unwrap(), count: *count });
    NodePolicy { warm: warm.collect(), ..NodePolicy::default() }
}

fn spec(policy: NodePolicy) -> GpuNodeSpec {
    GpuNodeSpec { policy, ..GpuNodeSpec::default() }
}

fn kept(spec: &GpuNodeSpec, status: &GpuNodeStatus) -> Option<GpuNodeSpec> {
    keep_warm(spec, status, &BTreeSet::new(), &Fleet::default())
}

fn shapes(spec: &GpuNodeSpec) -> Vec<String> {
    spec.slices.iter().map(|s| s.shape.to_string()).collect()
}

#[test]
fn idle_slices_are_cut_ahead_of_demand_and_reserved_by_pods() {
    let status = node_status(&["H100-80GB"]);
    let cold = spec(warm_policy(&[("nvidia.com/mig-1g.10gb", 2)]));
    let warm = kept(&cold, &status).unwrap();
    assert_eq!(warm.slices.len(), 2);
    assert_eq!(kept(&warm, &status), None);
    let small = request("nvidia.com/mig-1g.10gb", 1);
    let taken = reserve(&warm, &status, &small, &owner_in_epoch("a"), &Fleet::default()).unwrap();
    assert_eq!(taken.slices.len(), 2, "nothing is cut for it");
    assert_eq!(taken.slices[0].reservation.as_ref().unwrap().pod, "a", "and it comes first");
    let refilled = kept(&taken, &status).unwrap();
    assert_eq!(refilled.slices.iter().filter(|s| s.reservation.is_none()).count(), 2);
}

#[test]
fn a_bigger_request_may_destroy_a_warm_slice() {
    let status = node_status(&["H100-80GB"]);
    let warm = kept(&spec(warm_policy(&[("nvidia.com/mig-1g.10gb", 1)])), &status).unwrap();
    let whole = request("nvidia.com/mig-7g.80gb", 1);
    let full = reserve(&warm, &status, &whole, &owner_in_epoch("a"), &Fleet::default()).unwrap();
    assert_eq!(shapes(&full), ["7g.80gb at 0:8"]);
    assert_eq!(kept(&full, &status), None, "there is no room");
    let mut status = status;
    let free = release(&full, &owner_in_epoch("a").uid).unwrap();
    status.slices = free.slices.iter().map(|s| slice_status(s, false)).collect();
    assert_eq!(kept(&free, &status), None, "what lies idle is not destroyed for it");
}

#[test]
fn a_warm_slice_is_one_that_a_pod_would_get_under_the_name() {
    let status = node_status(&["H200-141GB", "T4-16GB"]);
    let names = [
        ("nvidia.com/mig-1g.10gb", "1g.18gb at 6:1"),
        ("nvidia.com/mig-2g.35gb", "2g.35gb at 4:2"),
        ("nvidia.com/gpu-4gb", "4gb MPS share"),
        ("nvidia.com/gpu-3gb.shared", "3gb time slice"),
        ("nvidia.com/gpu", "whole GPU of 15 GB"),
    ];
    for (name, shape) in names {
        let warm = kept(&spec(warm_policy(&[(name, 1)])), &status).unwrap();
        assert_eq!(shapes(&warm), [shape], "{name}");
        let size = warm.slices[0].shape.size();
        let asked = request_sized(
            name.parse().unwrap(),
            size.min(name.parse::<crate::resource::ResourceName>().unwrap().size().unwrap_or(size)),
            1,
        );
        let fit = crate::packing::fit(&NodeInventory::from_spec(&warm, &status), &asked, &Fleet::default())
            .unwrap();
        assert_eq!(fit.slices[0].source, Source::Idle(warm.slices[0].id.clone()), "{name}");
    }
}

#[test]
fn replicas_and_compute_instances_are_kept_warm_by_policy() {
    let status = node_status(&["H100-80GB", "T4-16GB"]);
    let policy: NodePolicy = serde_json::from_str(
        r#"{"gpus": [{"select": {"indexes": [0]}, "kinds": ["mig"], "computeInstances": true},
                     {"kinds": ["time-slicing"], "timeSlicing": {"replicas": 3}}],
            "warm": [{"resource": "nvidia.com/mig-1c.3g.40gb", "count": 2},
                     {"resource": "nvidia.com/gpu.shared", "count": 9},
                     {"resource": "nvidia.com/gpu-4gb.shared", "count": 1}]}"#,
    )
    .unwrap();
    let warm = kept(&spec(policy), &status).unwrap();
    let expected = [
        "1c.3g.40gb at 4:4, compute 0",
        "1c.3g.40gb at 4:4, compute 1",
        "4gb time slice",
        "4gb time slice",
        "4gb time slice",
    ];
    assert_eq!(shapes(&warm), expected);
    assert_eq!(kept(&warm, &status), None);
}

#[test]
fn an_idle_replica_does_not_count_for_a_name_by_size() {
    let status = node_status(&["T4-16GB", "T4-16GB"]);
    let mut policy: NodePolicy = serde_json::from_str(
        r#"{"gpus": [{"select": {"indexes": [0]}, "kinds": ["time-slicing"], "timeSlicing": {"replicas": 3}}],
            "warm": [{"resource": "nvidia.com/gpu.shared", "count": 3}]}"#,
    )
    .unwrap();
    let replicas = kept(&spec(policy.clone()), &status).unwrap();
    assert_eq!(shapes(&replicas), ["4gb time slice"; 3]);
    policy.warm = warm_policy(&[("nvidia.com/gpu-4gb.shared", 1)]).warm;
    let warm = kept(&GpuNodeSpec { policy, ..replicas }, &status).unwrap();
    let gpus: Vec<_> = warm.slices.iter().map(|slice| &slice.gpu).collect();
    assert_eq!(gpus, [&gpu_uuid(0), &gpu_uuid(0), &gpu_uuid(0), &gpu_uuid(1)]);
    assert_eq!(shapes(&warm), ["4gb time slice"; 4]);
    assert_eq!(kept(&warm, &status), None);
}

#[test]
fn no_warm_slice_is_cut_on_a_resting_gpu() {
    let status = node_status(&["H100-80GB"]);
    let cold = spec(warm_policy(&[("nvidia.com/mig-1g.10gb", 1)]));
    assert_eq!(keep_warm(&cold, &status, &BTreeSet::from([gpu_uuid(0)]), &Fleet::default()), None);
}

#[test]
fn idle_slices_that_policy_disallows_are_dropped() {
    let mut status = node_status(&["T4-16GB"]);
    let share = |spec: &GpuNodeSpec, status: &GpuNodeStatus, pod: &str| {
        reserve(spec, status, &request("nvidia.com/gpu-4gb", 1), &owner_in_epoch(pod), &Fleet::default())
            .unwrap()
    };
    let both = share(&share(&GpuNodeSpec::default(), &status, "a"), &status, "b");
    let mut spec = release(&both, &owner_in_epoch("a").uid).unwrap();
    status.slices = spec.slices.iter().map(|s| slice_status(s, false)).collect();
    assert_eq!(drop_disallowed(&spec, &status), None);
    spec.policy = serde_json::from_str(r#"{"gpus": [{"kinds": ["whole"]}]}"#).unwrap();
    let dropped = drop_disallowed(&spec, &status).unwrap();
    assert_eq!(dropped.slices.len(), 1);
    assert_eq!(dropped.slices[0].reservation.as_ref().unwrap().pod, "b");
    status.slices[0].state = crate::contract::SliceState::Held;
    assert_eq!(drop_disallowed(&spec, &status), None, "by the agent's word somebody has it");
}

#[test]
fn a_layout_holds_on_the_gpus_of_its_rule() {
    let mut status = node_status(&["H100-80GB", "T4-16GB"]);
    let policy: NodePolicy = serde_json::from_str(
        r#"{"gpus": [{"select": {"indexes": [0]}, "layout": [{"resource": "nvidia.com/mig-4g.40gb", "count": 1}]},
                     {"kinds": ["mps"]}]}"#,
    )
    .unwrap();
    let empty = spec(policy);
    let laid_out = kept(&empty, &status).unwrap();
    assert_eq!(shapes(&laid_out), ["4g.40gb at 0:4"]);
    assert_eq!(kept(&laid_out, &status), None);
    let resting = BTreeSet::from([gpu_uuid(0)]);
    assert_eq!(keep_warm(&empty, &status, &resting, &Fleet::default()), None);

    let mut strange = laid_out.clone();
    strange.slices.extend(wanted(&[h100_shape("1g.10gb", 6)]));
    let share = Shape::mps(crate::units::SizeGb(4));
    let of_t4 = (SliceId::new("s9"), gpu_uuid(1));
    strange.slices.push(WantedSlice { id: of_t4.0, gpu: of_t4.1, shape: share, reservation: None });
    let dropped = drop_disallowed(&strange, &status).unwrap();
    assert_eq!(shapes(&dropped), ["4g.40gb at 0:4", "4gb MPS share"], "the other GPU has no layout");
    status.gpus[0].profiles = crate::mig::MigTable::default();
    assert_eq!(drop_disallowed(&strange, &status), None, "its profiles are unknown while MIG mode is off");
}

#[test]
fn idle_parts_of_an_instance_that_policy_disallows_are_dropped() {
    let mut status = node_status(&["H100-80GB"]);
    let part = |part| Shape::from_instance(h100_shape("3g.40gb", 4).instance().unwrap(), part);
    let compute = part(MigPart::Compute(ComputeInstance { start: 0, compute: 1 }));
    let replica = part(MigPart::Replica { replica: 0 });
    let with = |rule: &str| {
        let policy = serde_json::from_str(&format!(r#"{{"gpus": [{rule}]}}"#)).unwrap();
        GpuNodeSpec { slices: wanted(&[compute, replica]), ..spec(policy) }
    };
    for (rule, stays) in [
        ("{}", vec![]),
        (r#"{"computeInstances": true}"#, vec![compute.to_string()]),
        (r#"{"mig": {"timeSlicing": 2}}"#, vec![replica.to_string()]),
    ] {
        assert_eq!(shapes(&drop_disallowed(&with(rule), &status).unwrap()), stays, "{rule}");
    }
    status.gpus.clear();
    assert_eq!(drop_disallowed(&with("{}"), &status), None, "a GPU that is not reported may come back");
}

const NAMES: [&str; 9] = [
    "mig-1g.10gb",
    "mig-1g.12gb",
    "mig-2g.12gb",
    "mig-1g.18gb",
    "mig-3g.40gb",
    "gpu-4gb",
    "gpu-3gb.shared",
    "gpu",
    "mig-1c.3g.40gb",
];

/// Every GPU's slices in the spec can exist together.
fn is_legal(spec: &GpuNodeSpec, status: &GpuNodeStatus) -> bool {
    status.gpus.iter().all(|gpu| {
        let here = || spec.slices.iter().filter(|s| s.gpu == gpu.uuid).map(|s| s.shape);
        let alone = here().filter(|shape| shape.part().is_none()).filter_map(Shape::instance);
        let in_parts: BTreeSet<_> =
            here().filter(|shape| shape.part().is_some()).filter_map(Shape::instance).collect();
        let uncut = here().filter(|shape| shape.kind() != Kind::Mig);
        let memory: MemoryMib = uncut.map(|shape| shape.memory_of(gpu.memory)).sum();
        let kinds: BTreeSet<_> = here().map(Shape::kind).collect();
        let is_fine = Geometry::from_instances(&gpu.profiles, alone.chain(in_parts)).is_ok();
        is_fine && memory <= gpu.memory && kinds.len() <= 1
    })
}

proptest! {
    /// For all existing and desired slices: added slices are legal, nothing is destroyed for them, and a second call
    /// adds nothing.
    #[test]
    fn keeping_warm_destroys_nothing_and_settles(
        asks in prop::collection::vec((0_usize..9, 0_usize..8, any::<bool>()), 0..24),
        warm in prop::collection::vec((0_usize..9, 0_u32..5), 0..4),
    ) {
        let status = node_status(&["H200-141GB", "H100-80GB", "T4-16GB", "L4-24GB"]);
        let warm: Vec<_> = warm.into_iter().map(|(name, count)| (format!("nvidia.com/{}", NAMES[name]), count)).collect();
        let warm: Vec<_> = warm.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        let gpus = vec![GpuRule { compute_instances: true, ..GpuRule::default() }];
        let mut spec = spec(NodePolicy { gpus, ..warm_policy(&warm) });
        let mut fleet = Fleet::default();
        for gpu in &status.gpus {
            fleet.add(&gpu.profiles, [], []);
        }
        let mut pods: Vec<OwnerInEpoch> = Vec::new();
        for (n, (name, leaving, leaves)) in asks.into_iter().enumerate() {
            if leaves && !pods.is_empty() {
                spec = release(&spec, &pods.swap_remove(leaving % pods.len()).uid).unwrap();
            }
            let name: crate::resource::ResourceName = format!("nvidia.com/{}", NAMES[name]).parse().unwrap();
            let asked = request_sized(name, name.size().unwrap_or(crate::units::SizeGb(20)), 1);
            let pod = owner_in_epoch(&n.to_string());
            if let Ok(next) = reserve(&spec, &status, &asked, &pod, &fleet) {
                spec = next;
                pods.push(pod);
            }
        }
        prop_assert!(is_legal(&spec, &status), "{:?}", shapes(&spec));
        let Some(next) = keep_warm(&spec, &status, &BTreeSet::new(), &fleet) else { return Ok(()) };
        prop_assert_eq!(&next.slices[..spec.slices.len()], &spec.slices[..]);
        prop_assert!(next.slices[spec.slices.len()..].iter().all(|s| s.reservation.is_none()));
        prop_assert!(is_legal(&next, &status), "{:?}", shapes(&next));
        prop_assert_eq!(keep_warm(&next, &status, &BTreeSet::new(), &fleet), None);
    }
}
