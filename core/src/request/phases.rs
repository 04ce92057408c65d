//! The phases of a pod's life, and the devices that the pod holds over all of them.
//!
//! Ordinary init containers run one after the other, before the app containers. Sidecars are init containers that
//! restart always; they run beside everything after them. The kubelet first gives a container the devices of earlier
//! ordinary init containers (`devicesToReuse` of its device manager, kubernetes v1.36). It frees all devices when the
//! pod ends.

use super::SpecView;
use crate::resource::ResourceName;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// When a container runs in its pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A container of `spec.containers`. It starts after all init containers have ended, or run as sidecars.
    #[default]
    App,
    /// An ordinary init container. It ends before the next one starts, and later containers get its devices.
    Init,
    /// An init container that restarts always. It runs from its start to the pod's end.
    Sidecar,
}

impl Role {
    /// The role of a container of `spec.initContainers` with this `restartPolicy`.
    #[must_use]
    pub fn before_apps(restart_policy: Option<&str>) -> Self {
        if restart_policy == Some("Always") { Self::Sidecar } else { Self::Init }
    }

    /// Whether it is an app container. Documents leave out this role, because it is the default.
    #[must_use]
    pub fn is_app(&self) -> bool {
        *self == Self::App
    }
}

/// Whether a pod in this `status.phase` has ended: all its containers have, for good.
#[must_use]
pub fn has_ended(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// A container's claim to slices of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim<Name = ResourceName> {
    /// When the container runs in its pod's life.
    pub role: Role,
    /// The resource name of the slices.
    pub resource: Name,
    /// How many slices the container claims.
    pub count: u32,
}

/// How many slices the pod holds for each of its claims. The claims are in the kubelet's order: init containers and
/// sidecars, then app containers.
///
/// The sum is the most that the pod needs at any time, name by name. App containers and sidecars hold what they claim.
/// An ordinary init container holds only what the containers after it leave of its devices. Of the init containers of a
/// name only one holds anything: the first of those that need the most.
#[must_use]
pub fn held<Name: Ord + Copy>(claims: &[Claim<Name>]) -> Vec<u32> {
    let mut held: Vec<u32> = claims.iter().map(|c| if c.role == Role::Init { 0 } else { c.count }).collect();
    let names: BTreeSet<Name> = claims.iter().map(|c| c.resource).collect();
    for (init, left) in names.into_iter().filter_map(|name| left_over(claims, name)) {
        held[init] = left;
    }
    held
}

/// The first ordinary init container that needs the most of a name, including the sidecars before it. The number is how
/// much more that is than all app containers and sidecars need in the end.
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

/// The devices that a pod holds until it ends, by its limits: a number for each of kerf's names. Empty if it asks for
/// none.
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
    fn an_init_container_holds_the_devices_that_later_containers_leave() {
        let held = |list| held(&claims(list));
        assert_eq!(held(&[('i', 3), ('a', 1)]), [2, 1]);
        assert_eq!(held(&[('i', 1), ('i', 2), ('a', 1), ('a', 1)]), [0, 0, 1, 1]);
        assert_eq!(held(&[('i', 3), ('i', 3), ('a', 1)]), [2, 0, 1], "the first of the greediest");
        assert_eq!(held(&[('s', 1), ('i', 3), ('a', 1)]), [1, 2, 1], "beside the sidecar");
        assert_eq!(held(&[('i', 3), ('s', 1), ('a', 1)]), [1, 1, 1], "the sidecar takes one over");
        assert_eq!(held(&[('i', 2)]), [2]);
    }

    #[test]
    fn a_pods_devices_are_counted_from_its_limits() {
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

    /// A model of the kubelet's device manager for one name: how many devices each container holds, and how many all
    /// together.
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
