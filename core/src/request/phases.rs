//! A pod's life in phases, and what the pod holds over all of them.
//!
//! Ordinary init containers run one after the other before the app containers; sidecars (init containers that restart
//! always) run beside everything that comes after them. The kubelet gives a container the devices of earlier ordinary init
//! containers first (`devicesToReuse` of its device manager, kubernetes v1.36), and frees all of them when the pod ends.

use super::SpecView;
use crate::resource::ResourceName;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// When in its pod's life a container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// One of the pod's containers proper: after all init containers have ended or stay.
    #[default]
    App,
    /// An ordinary init container: before those that come after it, which get its devices.
    Init,
    /// An init container that restarts always: from its start to the pod's end.
    Sidecar,
}

impl Role {
    /// Whether it is an app container, which documents do not say.
    #[must_use]
    pub fn is_app(&self) -> bool {
        *self == Self::App
    }
}

/// How many slices of one name a container asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim<Name = ResourceName> {
    /// When the container runs.
    pub role: Role,
    /// The name.
    pub resource: Name,
    /// How many.
    pub count: u32,
}

/// How many slices the pod holds for each of its claims, which come in the kubelet's order: init containers and sidecars,
/// then app containers.
///
/// Together they are the most that the pod needs at any time, name by name. App containers and sidecars hold what they
/// claim. An ordinary init container holds only what is left over when the containers after it have taken its devices: of
/// the init containers of a name that is the first of those that need the most, and no other.
#[must_use]
pub fn held<Name: Ord + Copy>(claims: &[Claim<Name>]) -> Vec<u32> {
    let mut held: Vec<u32> = claims.iter().map(|c| if c.role == Role::Init { 0 } else { c.count }).collect();
    let names: BTreeSet<Name> = claims.iter().map(|c| c.resource).collect();
    for (init, left) in names.into_iter().filter_map(|name| left_over(claims, name)) {
        held[init] = left;
    }
    held
}

/// The first of the ordinary init containers that need the most of a name, beside the sidecars before them, and what of
/// that is more than all containers that stay need in the end.
fn left_over<Name: Ord + Copy>(claims: &[Claim<Name>], name: Name) -> Option<(usize, u32)> {
    let mut staying = 0_u32;
    let mut most: Option<(usize, u32)> = None;
    for (index, claim) in claims.iter().enumerate().filter(|(_, claim)| claim.resource == name) {
        let together = staying.saturating_add(claim.count);
        if claim.role != Role::Init {
            staying = together;
        } else if most.is_none_or(|(_, most)| together > most) {
            most = Some((index, together));
        }
    }
    most.map(|(index, most)| (index, most.saturating_sub(staying)))
}

/// What a pod asks of kerf's names by its limits: how many devices of each its containers hold together until it ends. Empty if
/// it asks for nothing.
#[must_use]
pub fn devices(pod: &SpecView) -> BTreeMap<ResourceName, usize> {
    let limits = pod.in_order().flat_map(|(container, role)| {
        let names = container.resources.limits.iter();
        names.filter_map(move |(name, count)| {
            Some(Claim { role, resource: name.parse().ok()?, count: count.parse().ok()? })
        })
    });
    let claims: Vec<Claim> = limits.collect();
    let mut all: BTreeMap<ResourceName, usize> = BTreeMap::new();
    for (claim, count) in claims.iter().zip(held(&claims)) {
        let sum = all.entry(claim.resource).or_default();
        *sum = sum.saturating_add(usize::try_from(count).unwrap_or(usize::MAX));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn claims(list: &[(char, u32)]) -> Vec<Claim> {
        let role = |c| match c {
            'i' => Role::Init,
            's' => Role::Sidecar,
            _ => Role::App,
        };
        let resource = "nvidia.com/mig-1g.10gb".parse().unwrap();
        list.iter().map(|(c, count)| Claim { role: role(*c), resource, count: *count }).collect()
    }

    #[test]
    fn an_init_container_holds_what_the_later_ones_leave_over() {
        let held = |list| held(&claims(list));
        assert_eq!(held(&[('i', 3), ('a', 1)]), [2, 1]);
        assert_eq!(held(&[('i', 1), ('i', 2), ('a', 1), ('a', 1)]), [0, 0, 1, 1]);
        assert_eq!(held(&[('i', 3), ('i', 3), ('a', 1)]), [2, 0, 1], "the first of the greediest");
        assert_eq!(held(&[('s', 1), ('i', 3), ('a', 1)]), [1, 2, 1], "beside the sidecar");
        assert_eq!(held(&[('i', 3), ('s', 1), ('a', 1)]), [1, 1, 1], "the sidecar takes one over");
        assert_eq!(held(&[('i', 2)]), [2]);
    }

    #[test]
    fn how_many_devices_a_pod_holds_is_read_from_the_limits() {
        let container = |name: &str, limits| json!({"name": name, "resources": {"limits": limits}});
        let mut proxy = container("proxy", json!({"nvidia.com/gpu-4gb": "1"}));
        proxy["restartPolicy"] = json!("Always");
        let load =
            container("load", json!({"nvidia.com/mig-1g.10gb": "3", "nvidia.com/gpu-4gb": 1, "cpu": "1"}));
        let main = container("main", json!({"nvidia.com/mig-1g.10gb": "1", "nvidia.com/gpu-5gb": "1"}));
        let spec = json!({"initContainers": [proxy, load], "containers": [main]});
        let spec: SpecView = serde_json::from_value(spec).unwrap();
        let counts = devices(&spec).into_iter().map(|(name, count)| (name.to_string(), count));
        let expected = [("nvidia.com/mig-1g.10gb", 3), ("nvidia.com/gpu-4gb", 2), ("nvidia.com/gpu-5gb", 1)];
        assert_eq!(counts.collect::<Vec<_>>(), expected.map(|(name, count)| (name.to_owned(), count)));
    }

    /// The kubelet's device manager on one name: how many devices each container holds, and how many all together.
    fn kubelet(claims: &[Claim]) -> (usize, BTreeSet<u32>) {
        let (mut next, mut reusable, mut lasting) = (0_u32, BTreeSet::new(), BTreeSet::new());
        for claim in claims {
            let wanted = usize::try_from(claim.count).unwrap();
            let mut devices: BTreeSet<u32> = reusable.iter().copied().take(wanted).collect();
            while devices.len() < wanted {
                devices.insert(next);
                next += 1;
            }
            if claim.role == Role::Init {
                reusable.extend(devices);
            } else {
                reusable.retain(|device| !devices.contains(device));
                lasting.extend(devices);
            }
        }
        (usize::try_from(next).unwrap(), lasting)
    }

    proptest! {
        #[test]
        fn the_kubelet_never_needs_more_nor_less(
            inits in prop::collection::vec((prop::sample::select(vec!['i', 's']), 0_u32..4), 0..5),
            apps in prop::collection::vec(0_u32..4, 1..4),
        ) {
            let list: Vec<_> = inits.into_iter().chain(apps.into_iter().map(|count| ('a', count))).collect();
            let claims = claims(&list);
            let (all, lasting) = kubelet(&claims);
            let held = held(&claims);
            let of = |init: bool| claims.iter().zip(&held).filter(move |(c, _)| (c.role == Role::Init) == init)
                .map(|(_, held)| usize::try_from(*held).unwrap()).sum::<usize>();
            prop_assert_eq!(of(true) + of(false), all);
            prop_assert_eq!(of(false), lasting.len());
        }
    }
}
