//! Who would be served by what else, as a function of the policy, the supply and what a pod waits for.

use super::*;
use crate::contract::{Chosen, GpuNodeSpec};
use crate::kind::IsolationClass;
use crate::ledger;
use crate::packing::Fleet;
use crate::policy::{PolicyDocument, SupplyIndex};
use crate::request::Role;
use crate::testing::{node_status, promisee, request, request_sized};
use serde_json::json;

fn policy() -> Policy {
    policy_by(json!({"hardware": ["mig"], "memory": ["mig", "mps"]}))
}

#[expect(clippy::needless_pass_by_value, reason = "so that it reads as a policy does")]
fn policy_by(isolation: serde_json::Value) -> Policy {
    let document: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"},
        "spec": {"defaultIsolation": "memory", "isolation": isolation},
    }))
    .unwrap();
    document.try_into().unwrap()
}

/// An H100 of which so many seventh parts are taken, beside a T4.
fn supply(taken: u32) -> Supply {
    let status = node_status(&["H100-80GB", "T4-16GB"]);
    let spec = (0..taken).fold(GpuNodeSpec::default(), |spec, pod| {
        let ask = request("nvidia.com/mig-1g.10gb", 1);
        ledger::reserve(&spec, &status, &ask, &promisee(&pod.to_string()), &Fleet::default()).unwrap()
    });
    let mut index = SupplyIndex::default();
    index.show("n".into(), &spec, &status, true);
    index.supply()
}

/// Two nodes with an H100, of each of which so many seventh parts are taken, and one with an L40S.
fn two_nodes(taken: u32) -> Supply {
    let status = node_status(&["H100-80GB"]);
    let ask = request("nvidia.com/mig-1g.10gb", taken);
    let spec =
        ledger::reserve(&GpuNodeSpec::default(), &status, &ask, &promisee("p"), &Fleet::default()).unwrap();
    let mut index = SupplyIndex::default();
    for name in ["a", "b"] {
        index.show(name.into(), &spec, &status, true);
    }
    index.show("l40s".into(), &GpuNodeSpec::default(), &node_status(&["L40S-48GB"]), true);
    index.supply()
}

#[test]
fn slices_on_two_nodes_serve_no_pod_that_wants_them_on_one() {
    let found = |count| {
        let mut several = waiting("nvidia.com/mig-1g.10gb", IsolationClass::Memory);
        several.containers[0].count = count;
        let found = alternative(&policy(), &two_nodes(4), &several)?;
        Some((found.full.to_string(), found.other.to_string(), found.room))
    };
    assert_eq!(found(3), None, "there is room on either");
    let share = ("nvidia.com/mig-1g.10gb".to_owned(), "nvidia.com/gpu-10gb".to_owned(), 4);
    assert_eq!(found(4), Some(share));
    assert_eq!(found(5), None, "the shares are of one GPU");
}

fn waiting(name: &str, class: IsolationClass) -> RequestDocument {
    RequestDocument { isolation: class, chosen: Some(Chosen::default()), ..request(name, 1) }
}

fn found(taken: u32, document: &RequestDocument) -> Option<(String, u32, bool)> {
    let found = alternative(&policy(), &supply(taken), document)?;
    assert_eq!(found.full, document.containers[0].resource);
    Some((found.other.to_string(), found.room, found.is_named))
}

#[test]
fn what_waits_for_a_full_kind_is_served_by_the_next_that_has_room() {
    let small = waiting("nvidia.com/mig-1g.10gb", IsolationClass::Memory);
    assert_eq!(found(7, &small), Some(("nvidia.com/gpu-10gb".to_owned(), 1, false)));
    assert_eq!(found(6, &small), None, "there is room: it waits for something else");
    assert_eq!(found(7, &waiting("nvidia.com/mig-1g.10gb", IsolationClass::Hardware)), None);
    assert_eq!(
        found(7, &waiting("nvidia.com/mig-1g.20gb", IsolationClass::Memory)),
        None,
        "no share is so large"
    );
}

#[test]
fn who_may_be_on_some_nodes_only_is_offered_nothing_of_the_others() {
    let mut elsewhere = waiting("nvidia.com/mig-1g.10gb", IsolationClass::Memory);
    elsewhere.chosen = Some(Chosen { selects_nodes: true, ..Chosen::default() });
    assert_eq!(found(7, &elsewhere), None);
}

#[test]
fn others_who_wait_come_first() {
    let small = waiting("nvidia.com/mig-1g.10gb", IsolationClass::Memory);
    let busy = supply(7).wanted([("nvidia.com/gpu-10gb".parse().unwrap(), 1)].into());
    assert_eq!(alternative(&policy(), &busy, &small), None);
}

#[test]
fn who_names_the_kind_must_write_otherwise() {
    let mut named = waiting("nvidia.com/mig-1g.10gb", IsolationClass::Memory);
    named.chosen = Some(Chosen { named: vec!["main".to_owned()], ..Chosen::default() });
    assert_eq!(found(7, &named), Some(("nvidia.com/gpu-10gb".to_owned(), 1, true)));
}

#[test]
fn a_weaker_kind_than_the_first_choice_gives_way_to_it() {
    let share = waiting("nvidia.com/gpu-16gb", IsolationClass::Memory);
    assert_eq!(found(0, &share).map(|found| found.0), Some("nvidia.com/mig-1g.20gb".to_owned()));
}

/// A pod with a container of each of these names, `a`, `b` and so on.
fn several(asks: &[(Role, &str)]) -> RequestDocument {
    let container = |((role, resource), name): (&(Role, &str), char)| {
        let asked = request(resource, 1).containers.remove(0);
        ContainerRequest { name: name.to_string(), role: *role, ..asked }
    };
    let containers = asks.iter().zip('a'..).map(container).collect();
    RequestDocument { containers, ..waiting("nvidia.com/mig-1g.10gb", IsolationClass::Memory) }
}

/// Which container waits for what, by what else it would be served, and whether the pod has to be written otherwise.
type Told = (String, String, String, bool);

fn told(taken: u32, document: &RequestDocument) -> Option<Told> {
    let Alternative { container, full, other, is_named, .. } =
        alternative(&policy(), &supply(taken), document)?;
    Some((container, full.to_string(), other.to_string(), is_named))
}

const MIG: (Role, &str) = (Role::App, "nvidia.com/mig-1g.10gb");
const MPS: (Role, &str) = (Role::App, "nvidia.com/gpu-10gb");

fn to_share(container: &str, is_named: bool) -> Told {
    (container.to_owned(), MIG.1.to_owned(), MPS.1.to_owned(), is_named)
}

#[test]
fn two_containers_that_want_the_last_slice_wait_for_it_and_one_has_another_kind() {
    assert_eq!(told(6, &several(&[MIG, MIG])), Some(to_share("b", false)));
    assert_eq!(told(5, &several(&[MIG, MIG])), None, "there is room for both");
    assert_eq!(told(7, &several(&[MIG, MIG])), None, "the one share that is left serves one of them");
}

#[test]
fn what_has_room_for_each_container_and_not_for_all_of_them_serves_nobody() {
    let shares = several(&[MPS, MPS, MPS]);
    assert_eq!(told(6, &shares), None, "an instance, a share, and a third slice that is not there");
    assert_eq!(told(5, &shares).map(|(container, ..)| container), Some("a".to_owned()));
}

#[test]
fn an_init_container_and_the_one_after_it_need_one_slice() {
    let pod = several(&[(Role::Init, MIG.1), MIG]);
    assert_eq!(told(6, &pod), None, "there is room: it waits for something else");
    assert_eq!(told(7, &pod), Some(to_share("a", false)));
    assert_eq!(told(7, &several(&[(Role::Sidecar, MIG.1), MIG])), None, "a sidecar keeps its own");
}

#[test]
fn a_container_that_has_room_is_not_the_one_that_waits() {
    let mut pod = several(&[(Role::App, "nvidia.com/gpu-4gb"), (Role::App, "nvidia.com/mig-2g.20gb")]);
    pod.containers[1].size_gb = SizeGb(12);
    let (container, full, ..) = told(6, &pod).unwrap();
    assert_eq!((container.as_str(), full.as_str()), ("b", "nvidia.com/mig-2g.20gb"));
}

#[test]
fn who_names_what_has_room_keeps_it_while_another_container_is_chosen_for_anew() {
    let named = |names: &[&str]| {
        let named = names.iter().map(|name| (*name).to_owned()).collect();
        RequestDocument { chosen: Some(Chosen { named, ..Chosen::default() }), ..several(&[MIG, MIG]) }
    };
    assert_eq!(told(6, &named(&["a"])), Some(to_share("b", false)));
    assert_eq!(
        told(6, &named(&["b"])),
        Some(to_share("b", true)),
        "chosen for anew, the first would get the instance"
    );
    assert_eq!(told(6, &named(&["a", "b"])), Some(to_share("b", true)));
}

#[test]
fn who_names_what_has_no_size_is_offered_none() {
    let whole = RequestDocument {
        isolation: IsolationClass::Hardware,
        chosen: Some(Chosen { named: vec!["main".to_owned()], ..Chosen::default() }),
        ..request_sized(ResourceName::Whole, SizeGb::ANY, 1)
    };
    let status = node_status(&["H100-80GB"]);
    let supply = Supply::of([&status]);
    assert_eq!(
        alternative(&policy_by(json!({"hardware": ["whole", "mig"], "memory": ["mig"]})), &supply, &whole),
        None
    );
}
