use super::*;
use crate::contract::{Holder, Shape, SliceState, SliceStatus};
use crate::kind::Kind;
use crate::testing::{h100_shape, node_status, owner_in_epoch, request, slice_status, wanted};
use crate::units::SizeGb;
use std::collections::BTreeMap;

fn ids(spec: &GpuNodeSpec) -> Vec<(String, Option<String>)> {
    let pod = |s: &WantedSlice| s.reservation.as_ref().map(|r| r.pod.clone());
    spec.slices.iter().map(|s| (s.id.to_string(), pod(s))).collect()
}

fn reserve_for(spec: &GpuNodeSpec, status: &GpuNodeStatus, pod: &str) -> GpuNodeSpec {
    reserve(spec, status, &request("nvidia.com/mig-1g.10gb", 1), &owner_in_epoch(pod), &Fleet::default())
        .unwrap()
}

#[test]
fn a_reservation_is_made_once() {
    let status = node_status(&["H100-80GB"]);
    let once = reserve_for(&GpuNodeSpec::default(), &status, "a");
    assert_eq!(reserve_for(&once, &status, "a"), once);
    assert_eq!(ids(&once), [("s1".into(), Some("a".into()))]);
}

#[test]
fn a_slice_under_a_neutral_name_is_used_again_under_any_name_of_its_kind() {
    let mut status = node_status(&["H100-80GB"]);
    status.neutral_up_to = Some(SizeGb(80));
    let mut neutral = request("kerf.dev/gpu-10gb", 1);
    neutral.containers[0].kinds = vec![Kind::Mps, Kind::Mig];
    let ask = |spec: &GpuNodeSpec, request: &RequestDocument, pod: &str| {
        reserve(spec, &status, request, &owner_in_epoch(pod), &Fleet::default()).unwrap()
    };
    let name = |spec: &GpuNodeSpec| spec.slices[0].reservation.as_ref().unwrap().resource.to_string();
    let spec = ask(&GpuNodeSpec::default(), &neutral, "a");
    assert_eq!(
        (spec.slices[0].shape, name(&spec)),
        (h100_shape("1g.10gb", 6), "kerf.dev/gpu-10gb".to_owned())
    );
    let idle = release(&spec, &owner_in_epoch("a").uid).unwrap();
    for request in [&neutral, &request("nvidia.com/mig-1g.10gb", 1)] {
        let again = ask(&idle, request, "b");
        assert_eq!(ids(&again), [("s1".into(), Some("b".into()))]);
        assert_eq!(name(&again), request.containers[0].resource.to_string());
    }
}

#[test]
fn a_released_slice_stays_idle_and_is_used_again_under_its_own_id() {
    let status = node_status(&["H100-80GB"]);
    let spec = reserve_for(&GpuNodeSpec::default(), &status, "a");
    let idle = release(&spec, &owner_in_epoch("a").uid).unwrap();
    assert_eq!(ids(&idle), [("s1".into(), None)]);
    assert_eq!(ids(&reserve_for(&idle, &status, "b")), [("s1".into(), Some("b".into()))]);
    assert_eq!(release(&idle, &owner_in_epoch("a").uid), None);
}

#[test]
fn an_idle_slice_that_a_pod_holds_is_not_reserved() {
    let mut status = node_status(&["H100-80GB"]);
    let spec = reserve_for(&GpuNodeSpec::default(), &status, "a");
    status.slices = vec![slice_status(&spec.slices[0], true)];
    let released = release(&spec, &owner_in_epoch("a").uid).unwrap();
    let next = reserve_for(&released, &status, "b");
    assert_eq!(ids(&next), [("s2".into(), Some("b".into())), ("s1".into(), None)]);
}

#[test]
fn a_released_slice_is_reserved_as_it_is_or_not_at_all() {
    for (gpu, small, other) in [
        ("H100-80GB", "nvidia.com/mig-4g.40gb", "nvidia.com/mig-7g.80gb"),
        ("T4-16GB", "nvidia.com/gpu-8gb", "nvidia.com/gpu-4gb.shared"),
    ] {
        let mut status = node_status(&[gpu]);
        let ask = |spec: &GpuNodeSpec, status: &GpuNodeStatus, name: &str, pod: &str| {
            reserve(spec, status, &request(name, 1), &owner_in_epoch(pod), &Fleet::default())
        };
        let spec = ask(&GpuNodeSpec::default(), &status, small, "a").unwrap();
        status.slices = vec![slice_status(&spec.slices[0], false)];
        let released = release(&spec, &owner_in_epoch("a").uid).unwrap();
        assert_eq!(ids(&ask(&released, &status, small, "b").unwrap()), [("s1".into(), Some("b".into()))]);
        assert_eq!(ask(&released, &status, other, "b"), Err(Refusal::NoRoom));
        status.slices[0].state = SliceState::Held;
        assert_ne!(
            ask(&released, &status, small, "b").ok().map(|spec| ids(&spec)[0].0.clone()),
            Some("s1".into())
        );
        status.slices[0].state = SliceState::Idle;
        assert_eq!(ids(&ask(&released, &status, other, "b").unwrap()), [("s2".into(), Some("b".into()))]);
    }
}

#[test]
fn an_unreserved_slice_is_idle_while_it_does_not_exist() {
    let slice = wanted(&[h100_shape("1g.10gb", 0)]).remove(0);
    let mut status = node_status(&["H100-80GB"]);
    let mut is_idle = |state: SliceState, exists: bool| {
        let observed = slice_status(&slice, false);
        let device = observed.device.clone().filter(|_| exists);
        status.slices = vec![SliceStatus { state, device, ..observed }];
        crate::inventory::is_idle(&slice, &status)
    };
    for state in [SliceState::Preparing, SliceState::Failed] {
        assert!(is_idle(state, false), "{state:?}");
        assert!(!is_idle(state, true), "{state:?}: the kubelet may have handed it out");
    }
}

#[test]
fn a_slice_that_only_the_status_has_is_not_overlapped() {
    let mut status = node_status(&["H100-80GB"]);
    let spec = reserve_for(&GpuNodeSpec::default(), &status, "a");
    status.slices = vec![SliceStatus { id: None, ..slice_status(&spec.slices[0], false) }];
    let next = reserve_for(&GpuNodeSpec::default(), &status, "b");
    assert_ne!(next.slices[0].shape, spec.slices[0].shape);
}

/// Follows holders whose UIDs are known and that are bound.
fn follow(spec: &GpuNodeSpec, status: &GpuNodeStatus) -> Option<GpuNodeSpec> {
    let holder = |s: &SliceStatus| Some((s.id.clone()?, owner_in_epoch(&s.holder.as_ref()?.pod).uid));
    let owners: BTreeMap<SliceId, PodUid> = status.slices.iter().filter_map(holder).collect();
    follow_holders(spec, status, |shown| owners.get(shown.id.as_ref()?))
}

#[test]
fn swapped_holders_swap_their_reservations() {
    let mut status = node_status(&["H100-80GB"]);
    let spec = reserve_for(&GpuNodeSpec::default(), &status, "a");
    let spec = reserve_for(&spec, &status, "b");
    let holder =
        |pod: &str| Holder { namespace: "default".into(), pod: pod.into(), container: "main".into() };
    status.slices = vec![slice_status(&spec.slices[0], true), slice_status(&spec.slices[1], false)];
    assert_eq!(follow(&spec, &status), None);
    status.slices[0].holder = Some(holder("b"));
    let swapped = follow(&spec, &status).unwrap();
    assert_eq!(ids(&swapped), [("s1".into(), Some("b".into())), ("s2".into(), Some("a".into()))]);
    status.slices[1].holder = Some(holder("a"));
    assert_eq!(follow(&swapped, &status), None);
}

#[test]
fn holders_that_changed_places_in_one_report_are_followed_too() {
    let mut status = node_status(&["H100-80GB"]);
    let specs = ["a", "b", "c"].iter().fold(GpuNodeSpec::default(), |s, pod| reserve_for(&s, &status, pod));
    let several = reserve(
        &specs,
        &status,
        &request("nvidia.com/mig-1g.10gb", 2),
        &owner_in_epoch("d"),
        &Fleet::default(),
    )
    .unwrap();
    status.slices = several.slices.iter().map(|s| slice_status(s, true)).collect();
    let [first, second, third, ..] = &mut status.slices[..] else { panic!("five slices") };
    std::mem::swap(&mut first.holder, &mut second.holder);
    std::mem::swap(&mut second.holder, &mut third.holder);
    let followed = follow(&several, &status).unwrap();
    let pods: Vec<_> = ids(&followed).into_iter().filter_map(|(_, pod)| pod).collect();
    assert_eq!(pods, ["b", "c", "a", "d", "d"]);
    assert_eq!(follow(&followed, &status), None);
}

#[test]
fn a_pod_does_not_follow_the_slice_of_its_namesake() {
    let mut status = node_status(&["H100-80GB"]);
    let first = reserve_for(&GpuNodeSpec::default(), &status, "a");
    status.slices = vec![slice_status(&first.slices[0], true)];
    let asked = request("nvidia.com/mig-1g.10gb", 1);
    let again = OwnerInEpoch { uid: PodUid::new("uid-again"), ..owner_in_epoch("a") };
    let (older, newer) = (owner_in_epoch("a").uid, again.uid.clone());
    // The older pod was deleted by force and still runs, whether or not its reservation is still there.
    let released = release(&first, &older).unwrap();
    for spec in [&first, &released] {
        let spec = reserve(spec, &status, &asked, &again, &Fleet::default()).unwrap();
        assert_eq!(follow_holders(&spec, &status, |_| None), None, "which of the two holds it is unknown");
        assert_eq!(follow_holders(&spec, &status, |_| Some(&older)), None);
    }
    let spec = reserve(&released, &status, &asked, &again, &Fleet::default()).unwrap();
    assert!(follow_holders(&spec, &status, |_| Some(&newer)).is_some());
}

/// A pod whose init container `load` needs two slices; `main` needs one of them later.
fn staged(spec: &GpuNodeSpec, status: &GpuNodeStatus, pod: &str) -> GpuNodeSpec {
    let mut document = request("nvidia.com/mig-1g.10gb", 2);
    let main = crate::contract::ContainerRequest { count: 1, ..document.containers[0].clone() };
    document.containers[0].name = "load".into();
    document.containers[0].role = crate::request::Role::Init;
    document.containers.push(main);
    reserve(spec, status, &document, &owner_in_epoch(pod), &Fleet::default()).unwrap()
}

fn containers(spec: &GpuNodeSpec) -> Vec<String> {
    let text = |s: &WantedSlice| s.reservation.as_ref().map(|r| format!("{}/{}", r.pod, r.container));
    spec.slices.iter().map(|s| text(s).unwrap_or_default()).collect()
}

#[test]
fn slices_of_an_init_container_are_reserved_until_the_pod_ends() {
    let status = node_status(&["H100-80GB"]);
    let spec = staged(&GpuNodeSpec::default(), &status, "a");
    assert_eq!(containers(&spec), ["a/load", "a/main"]);
    let released = release(&spec, &owner_in_epoch("a").uid).unwrap();
    assert_eq!(containers(&released), ["", ""]);
}

#[test]
fn an_init_container_may_hold_any_slice_of_its_pod() {
    let mut status = node_status(&["H100-80GB"]);
    let spec = staged(&GpuNodeSpec::default(), &status, "a");
    let spec = reserve_for(&spec, &status, "b");
    let holder = |pod: &str, container: &str| {
        Some(Holder { namespace: "default".into(), pod: pod.into(), container: container.into() })
    };
    let follow = |status: &GpuNodeStatus| follow(&spec, status).map(|next| containers(&next));
    status.slices = spec.slices.iter().map(|s| slice_status(s, true)).collect();
    assert_eq!(follow(&status), None);
    status.slices[0].holder = holder("a", "main");
    status.slices[1].holder = None;
    assert_eq!(follow(&status).unwrap(), ["a/main", "a/load", "b/main"], "main got the other one");
    status.slices[0].holder = holder("a", "another init container");
    assert_eq!(follow(&status), None, "it is the pod's own");
    status.slices[2].holder = holder("a", "another init container");
    for (first, expected) in [
        (holder("a", "load"), ["a/load", "b/main", "a/main"]),
        (holder("c", "main"), ["b/main", "a/main", "a/load"]),
    ] {
        status.slices[0].holder = first;
        assert_eq!(follow(&status).unwrap(), expected, "the slice that the pod holds stays its own");
    }
    status.slices[0].holder = None;
    status.slices[2].holder = holder("a", "another init container");
    assert_eq!(
        follow(&status).unwrap(),
        ["b/main", "a/main", "a/load"],
        "a pod's reservation is on the slice that it holds"
    );
}

#[test]
fn slice_ids_are_never_used_twice() {
    let status = node_status(&["T4-16GB"]);
    let mps = request("nvidia.com/gpu-8gb", 1);
    let spec =
        reserve(&GpuNodeSpec::default(), &status, &mps, &owner_in_epoch("a"), &Fleet::default()).unwrap();
    let idle = release(&spec, &owner_in_epoch("a").uid).unwrap();
    let other =
        reserve(&idle, &status, &request("nvidia.com/gpu-12gb", 1), &owner_in_epoch("b"), &Fleet::default())
            .unwrap();
    assert_eq!(ids(&other), [("s2".into(), Some("b".into()))]);
    assert_eq!(other.slices[0].shape, Shape::mps(crate::units::SizeGb(12)));
}

#[test]
fn a_renewal_proposes_the_places_that_the_owner_has() {
    let mut status = node_status(&["H100-80GB"]);
    let spec = ["a", "b"].iter().fold(GpuNodeSpec::default(), |s, pod| reserve_for(&s, &status, pod));
    let idle = release(&reserve_for(&spec, &status, "c"), &owner_in_epoch("c").uid).unwrap();
    status.slices = idle.slices.iter().map(|slice| slice_status(slice, false)).collect();
    let of_b = OwnerInEpoch { epoch: 2, ..owner_in_epoch("b") };
    let owner = Owner { uid: of_b.uid.clone(), key: of_b.key };
    let renewal = Proposal::renewal(owner.clone(), &status);
    assert_eq!(renewal.owner, owner);
    let [place] = &renewal.places[..] else { panic!("{:?}", renewal.places) };
    assert_eq!(place.source, Source::Idle("s2".into()));
    assert_eq!((&place.gpu, place.shape), (&idle.slices[1].gpu, idle.slices[1].shape));
    assert_eq!(
        (place.container.as_str(), place.resource.to_string()),
        ("main", "nvidia.com/mig-1g.10gb".into())
    );
}
