use super::*;
use kerf_core::contract::Shape;
use kerf_core::contract::{NodePolicy, Reservation, WantedSlice};
use kerf_core::names::{PodUid, SliceId};
use kerf_core::testing::{gpu_uuid, node_status, wanted as slices};

fn node(models: &[&str], policy: &str) -> Node {
    let policy: NodePolicy = serde_json::from_str(policy).unwrap();
    let status = node_status(models);
    Node { name: "n".to_owned(), spec: GpuNodeSpec { policy, ..GpuNodeSpec::default() }, status }
}

fn wanted<'w>(technologies: &'w [Technology], copies: &'w [u32], gb: u32) -> Wanted<'w> {
    Wanted { technologies, copies, size: SizeGb(gb), threads: ComputePercent::new(14).unwrap() }
}

fn lines(plan: &Plan) -> Vec<String> {
    let point = |point: &Planned| {
        let threads = point.threads.map(|threads| format!(" with {threads}")).unwrap_or_default();
        let gpu = &point.target.gpu.uuid;
        format!("{} x {} of {}{threads} on {gpu}", point.copies, point.technology, point.size)
    };
    plan.points.iter().map(point).collect()
}

#[test]
fn every_offered_technology_is_planned_and_shares_are_on_one_gpu() {
    // One H100 in MIG mode, and one L4 without MIG.
    let free = free(&[node(&["H100-80GB", "L4-24GB"], "{}")], None).unwrap();
    let plan = plan(wanted(&[], &[1, 2, 7], 10), &free).unwrap();
    assert_eq!(
        lines(&plan),
        [
            "1 x time-slicing of 10 GB on GPU-1",
            "2 x time-slicing of 10 GB on GPU-1",
            "1 x mps of 10 GB with 100 % on GPU-1",
            "2 x mps of 10 GB with 50 % on GPU-1",
            "1 x mps-limited of 10 GB with 14 % on GPU-1",
            "2 x mps-limited of 10 GB with 14 % on GPU-1",
            "1 x whole of 23 GB on GPU-1",
            "1 x mig of 10 GB on GPU-0",
            "2 x mig of 10 GB on GPU-0",
            "7 x mig of 10 GB on GPU-0",
        ]
    );
    let left: Vec<_> = plan.left_out.iter().map(|left| (left.technology, left.copies)).collect();
    assert_eq!(
        left,
        [(Technology::TimeSlicing, Some(7)), (Technology::Mps, Some(7)), (Technology::MpsLimited, Some(7))]
    );
    assert!(plan.left_out[0].reason.contains("room for 2 of 10 GB"), "{}", plan.left_out[0].reason);
}

#[test]
fn copies_get_all_threads_within_the_nodes_overcommit_limit() {
    let policy = r#"{"gpus": [{"mps": {"memoryPercent": 400}}]}"#;
    let free = free(&[node(&["L4-24GB"], policy)], None).unwrap();
    let plan = plan(wanted(&[Technology::Mps], &[1, 3, 4, 7], 2), &free).unwrap();
    let threads: Vec<_> = plan.points.iter().map(|point| point.threads.unwrap().get()).collect();
    assert_eq!(threads, [100, 100, 100, 57]);
}

#[test]
fn without_compute_limits_no_copy_asks_for_a_thread_percentage() {
    let policy = r#"{"gpus": [{"mps": {"computeLimit": "none"}}]}"#;
    let free = free(&[node(&["L4-24GB"], policy)], None).unwrap();
    let shared = plan(wanted(&[Technology::Mps], &[1, 7], 2), &free).unwrap();
    assert_eq!(lines(&shared), ["1 x mps of 2 GB on GPU-0", "7 x mps of 2 GB on GPU-0"]);
    let refused = plan(wanted(&[Technology::MpsLimited], &[1], 2), &free).unwrap_err().to_string();
    assert!(refused.contains("computeLimit: none"), "{refused}");
}

#[test]
fn too_large_thread_limits_are_left_out_with_the_largest_possible_one() {
    let free = free(&[node(&["L4-24GB"], "{}")], None).unwrap();
    let plan = plan(wanted(&[Technology::MpsLimited], &[7, 8], 1), &free).unwrap();
    assert_eq!(lines(&plan), ["7 x mps-limited of 1 GB with 14 % on GPU-0"]);
    assert!(
        plan.left_out[0].reason.contains("ask for 12 or less by --threads"),
        "{}",
        plan.left_out[0].reason
    );
}

#[test]
fn a_technology_without_free_gpus_is_left_out_or_refused_if_the_flag_names_it() {
    let policy = r#"{"gpus": [{"kinds": ["mps"]}]}"#;
    let free = free(&[node(&["L4-24GB"], policy)], None).unwrap();
    let all = plan(wanted(&[], &[1], 1), &free).unwrap();
    let left: Vec<_> = all.left_out.iter().map(|left| left.technology).collect();
    assert_eq!(left, [Technology::TimeSlicing, Technology::Whole, Technology::Mig]);
    let refused = plan(wanted(&[Technology::Mig], &[1], 1), &free).unwrap_err().to_string();
    assert!(refused.starts_with("--technologies mig: no free GPU offers mig now"), "{refused}");
    assert!(refused.contains("offers mps"), "{refused}");
}

#[test]
fn equal_replicas_are_not_planned_as_slices_by_size() {
    let policy = r#"{"gpus": [{"timeSlicing": {"replicas": 4}}]}"#;
    let free = free(&[node(&["L4-24GB"], policy)], None).unwrap();
    let refused = plan(wanted(&[Technology::TimeSlicing], &[1], 1), &free).unwrap_err().to_string();
    assert!(refused.contains("equal replicas"), "{refused}");
}

#[test]
fn a_used_or_unhealthy_gpu_is_not_measured() {
    let mut used = node(&["L4-24GB", "L4-24GB", "L4-24GB"], "{}");
    let reservation = Reservation {
        uid: PodUid::new("u"),
        namespace: "default".to_owned(),
        pod: "p".to_owned(),
        container: "c".to_owned(),
        resource: "nvidia.com/gpu-4gb".parse().unwrap(),
        alone: false,
        epoch: 1,
    };
    let reserved = WantedSlice {
        id: SliceId::new("s"),
        gpu: gpu_uuid(0),
        shape: Shape::mps(SizeGb(4)),
        reservation: Some(reservation),
    };
    // Idle slices belong to no pod, so they do not keep a GPU from being measured.
    let idle = WantedSlice { gpu: gpu_uuid(2), ..slices(&[Shape::mps(SizeGb(4))]).remove(0) };
    used.spec.slices = vec![reserved, idle];
    used.status.gpus[1].message = Some("XID 79".to_owned());
    let uuids = |free: Vec<Target>| free.iter().map(|t| t.gpu.uuid.to_string()).collect::<Vec<_>>();
    assert_eq!(uuids(free(std::slice::from_ref(&used), None).unwrap()), ["GPU-2"]);
    let refused = |named| free(std::slice::from_ref(&used), Some(named)).unwrap_err().to_string();
    assert!(refused("GPU-0").contains("has a slice that is a pod's (4gb MPS share)"));
    assert!(refused("GPU-1").contains("is sick: XID 79"));
    assert!(refused("GPU-9").contains("there are GPU-0, GPU-1, GPU-2"));
    used.status.conditions.clear();
    assert_eq!(free(&[used], None), Err(PlanError::NoNode));
}
