//! Whether a pod that waits for a full kind of slice would be served by another, were it chosen for anew.

use super::{Policy, Supply, choose};
use crate::contract::{ContainerRequest, RequestDocument};
use crate::request::{ContainerAsk, PodAsk, Want};
use crate::resource::ResourceName;

/// What would serve a pod that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternative {
    /// The first container for which another kind has room.
    pub container: String,
    /// What it waits for.
    pub full: ResourceName,
    /// What has room.
    pub other: ResourceName,
    /// For how many more.
    pub room: u32,
    /// Whether the pod would have to be written otherwise: it names the kind itself.
    pub is_named: bool,
    /// What all of the pod would be given.
    pub document: RequestDocument,
}

/// What `policy` would give to a pod with this document instead, if some of what it waits for is full and there is room for
/// all of the other.
#[must_use]
pub fn alternative(policy: &Policy, supply: &Supply, document: &RequestDocument) -> Option<Alternative> {
    let room = |request: &ContainerRequest| {
        supply.room_for(request.resource, request.size_gb, request.compute, &document.gpus)
    };
    if document.containers.iter().all(|request| room(request).room >= request.count) {
        return None;
    }
    let anew = choose(policy, supply, &by_size(document)).ok()?.document;
    let has_room = |request: &ContainerRequest| room(request).left() >= request.count;
    let mut pairs = document.containers.iter().zip(&anew.containers);
    let (before, after) = pairs.find(|(before, after)| before.resource != after.resource)?;
    let named = document.chosen.as_ref().map(|chosen| &chosen.named);
    let is_named = named.is_some_and(|named| !named.is_empty()) || before.profile.is_some();
    anew.containers.iter().all(has_room).then(|| Alternative {
        container: before.name.clone(),
        full: before.resource,
        other: after.resource,
        room: room(after).left(),
        is_named,
        document: anew.clone(),
    })
}

/// What a pod with this document asks for, by size alone.
fn by_size(document: &RequestDocument) -> PodAsk {
    let ask = |request: &ContainerRequest| ContainerAsk {
        name: request.name.clone(),
        role: request.role,
        want: Want::Size(request.size_gb),
        count: request.count,
        by: String::new(),
        memory: request.memory,
        compute: request.compute,
    };
    PodAsk {
        isolation: Some(document.isolation),
        containers: document.containers.iter().map(ask).collect(),
        gpus: document.gpus.clone(),
        dialect: None,
        ignored: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Chosen, GpuNodeSpec};
    use crate::kind::IsolationClass;
    use crate::ledger;
    use crate::packing::Fleet;
    use crate::policy::{PolicyDocument, SupplyIndex};
    use crate::testing::{node_status, promisee, request};
    use serde_json::json;

    fn policy() -> Policy {
        let document: PolicyDocument = serde_json::from_value(json!({
            "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"},
            "spec": {"defaultIsolation": "memory", "isolation": {"hardware": ["mig"], "memory": ["mig", "mps"]}},
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
}
