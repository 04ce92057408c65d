//! Which devices the kubelet may hand out, under which names.
//!
//! The kubelet picks any healthy free device of a name and tells nobody for which pod. So a node lists as healthy only
//! what is reserved or held; and of the reservations of one name that are not allocated yet, only such as are
//! equivalent, so that whichever device a pod gets is as good as the one that it was promised.
//!
//! A pod that must be alone gets its own devices and no others: nothing else of the name is free meanwhile. So its MPS shares are
//! of one GPU, its slices are of different GPUs, and on GPUs that it selects.

use crate::contract::{MigPart, Reservation, Shape};
use crate::kind::Kind;
use crate::mig::Profile;
use crate::names::{DeviceId, SliceId};
use crate::resource::ResourceName;
use crate::units::{ComputePercent, SizeGb};
use std::collections::{BTreeMap, BTreeSet};

/// A slice that exists on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingSlice {
    /// Its name in the spec.
    pub id: SliceId,
    /// Its device id.
    pub device: DeviceId,
    /// What it is.
    pub shape: Shape,
    /// The GPU's model.
    pub model: String,
    /// The name under which a container holds it, by the kubelet's account.
    pub held_as: Option<ResourceName>,
    /// Who it is promised to.
    pub reservation: Option<Reservation>,
}

/// What the node offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// Healthy devices of each name.
    pub healthy: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
    /// Reserved slices that must wait until others of their name are allocated.
    pub waiting: BTreeSet<SliceId>,
}

/// What makes two slices of one name equally good for any pod that asks by that name.
#[derive(PartialEq)]
struct Worth<'s> {
    model: &'s str,
    /// Under a neutral name slices of several kinds are reserved.
    kind: Kind,
    profile: Option<Profile>,
    part: Part,
    size: SizeGb,
    compute: Option<ComputePercent>,
}

/// What of its GPU instance a slice is, wherever it lies there.
#[derive(PartialEq)]
enum Part {
    Whole,
    Compute(u8),
    Replica,
}

fn worth(slice: &ExistingSlice) -> Worth<'_> {
    let part = match slice.shape.mig_part() {
        MigPart::Whole => Part::Whole,
        MigPart::Compute(instance) => Part::Compute(instance.compute),
        MigPart::Replica { .. } => Part::Replica,
    };
    Worth {
        model: &slice.model,
        kind: slice.shape.kind(),
        profile: slice.shape.instance().map(|instance| instance.profile),
        part,
        size: slice.shape.size(),
        compute: slice.shape.compute(),
    }
}

/// The offer for `slices`, which come in the order of their promises.
#[must_use]
pub fn offer(slices: &[ExistingSlice]) -> Offer {
    let mut offer = Offer::default();
    let mut first: BTreeMap<ResourceName, &ExistingSlice> = BTreeMap::new();
    for slice in slices {
        if let Some(name) = slice.held_as {
            offer.healthy.entry(name).or_default().insert(slice.device.clone());
            continue;
        }
        let Some(reservation) = &slice.reservation else { continue };
        let leader = first.entry(reservation.resource).or_insert(slice);
        let same_pod = leader.reservation.as_ref().is_some_and(|r| r.uid == reservation.uid);
        // The slices of one pod are offered together, whatever they are: its containers are allocated in one go. But
        // a second pod joins only if nothing that is offered differs from what it was promised, and neither is alone.
        if same_pod || !reservation.alone && all_equal(slices, leader, slice) {
            offer.healthy.entry(reservation.resource).or_default().insert(slice.device.clone());
        } else {
            offer.waiting.insert(slice.id.clone());
        }
    }
    offer
}

/// Whether every unallocated slice of the leader's pod under this name, and `slice`, are worth the same; never beside a pod
/// that must be alone.
fn all_equal(slices: &[ExistingSlice], leader: &ExistingSlice, slice: &ExistingSlice) -> bool {
    let Some(promised) = leader.reservation.as_ref().filter(|promised| !promised.alone) else { return false };
    let of_leader = slices.iter().filter(|s| {
        s.held_as.is_none()
            && s.reservation
                .as_ref()
                .is_some_and(|r| r.uid == promised.uid && r.resource == promised.resource)
    });
    of_leader.chain([slice]).all(|s| worth(s) == worth(leader))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::PodUid;
    use proptest::prelude::*;

    fn slice(n: usize, profile: &str, model: &str, pod: Option<&str>, held: bool) -> ExistingSlice {
        let profile = profile.parse().unwrap();
        let name = ResourceName::Mig("1g.10gb".parse().unwrap());
        ExistingSlice {
            id: SliceId::new(format!("s{n}")),
            device: DeviceId::new(format!("MIG-{n}")),
            shape: Shape::Mig { profile, start: 0, size: 1, part: MigPart::Whole },
            model: model.to_owned(),
            held_as: held.then_some(name),
            reservation: pod.map(|pod| Reservation {
                uid: PodUid::new(pod),
                namespace: "ns".into(),
                pod: pod.into(),
                container: "main".into(),
                resource: name,
                alone: false,
                epoch: 1,
            }),
        }
    }

    fn devices(offer: &Offer) -> Vec<&str> {
        offer.healthy.values().flatten().map(DeviceId::as_str).collect()
    }

    #[test]
    fn an_idle_slice_is_not_offered() {
        assert_eq!(offer(&[slice(1, "1g.10gb", "H100-80GB", None, false)]), Offer::default());
    }

    #[test]
    fn a_held_slice_stays_offered_though_its_reservation_is_gone() {
        assert_eq!(devices(&offer(&[slice(1, "1g.10gb", "H100-80GB", None, true)])), ["MIG-1"]);
    }

    #[test]
    fn equal_slices_are_offered_together_and_others_wait() {
        let slices = [
            slice(1, "1g.10gb", "H100-80GB", Some("a"), false),
            slice(2, "1g.18gb", "H200-141GB", Some("b"), false),
            slice(3, "1g.10gb", "H100-80GB", Some("c"), false),
        ];
        let offer = offer(&slices);
        assert_eq!(devices(&offer), ["MIG-1", "MIG-3"]);
        assert_eq!(offer.waiting.iter().map(SliceId::as_str).collect::<Vec<_>>(), ["s2"]);
    }

    #[test]
    fn slices_of_several_kinds_under_one_name_are_not_offered_together() {
        let neutral = ResourceName::Neutral(SizeGb(10));
        let of = |n, pod, shape| {
            let mut slice = slice(n, "1g.10gb", "H100-80GB", Some(pod), false);
            slice.shape = shape;
            slice.reservation.as_mut().unwrap().resource = neutral;
            slice
        };
        let (share, turns) = (Shape::mps(SizeGb(10)), Shape::TimeSlicing { size_gb: SizeGb(10) });
        let whole = Shape::Whole { size_gb: SizeGb(10) };
        let slices =
            [of(1, "a", share), of(2, "b", turns), of(3, "c", share), of(4, "d", whole), of(5, "e", turns)];
        let offer = offer(&slices);
        assert_eq!(devices(&offer), ["MIG-1", "MIG-3"]);
        assert_eq!(offer.waiting.len(), 3);
    }

    #[test]
    fn a_gpu_instance_is_not_offered_beside_a_part_of_one() {
        let part = |part| Shape::Mig { profile: "1g.10gb".parse().unwrap(), start: 0, size: 1, part };
        let of = |n, pod, part| {
            let mut slice = slice(n, "1g.10gb", "H100-80GB", Some(pod), false);
            slice.shape = part;
            slice
        };
        let replica = part(MigPart::Replica { replica: 0 });
        let slices =
            [of(1, "a", part(MigPart::Whole)), of(2, "b", replica), of(3, "c", part(MigPart::Whole))];
        assert_eq!(devices(&offer(&slices)), ["MIG-1", "MIG-3"]);
    }

    #[test]
    fn mps_shares_with_other_parts_of_the_compute_are_not_offered_together() {
        let share = |n, pod, compute| {
            let mut slice = slice(n, "1g.10gb", "T4-16GB", Some(pod), false);
            slice.shape = Shape::Mps { size_gb: SizeGb(4), compute: ComputePercent::new(compute) };
            slice
        };
        let slices = [share(1, "a", 30), share(2, "b", 40), share(3, "c", 30), share(4, "d", 0)];
        assert_eq!(devices(&offer(&slices)), ["MIG-1", "MIG-3"]);
    }

    #[test]
    fn the_slices_of_one_pod_are_offered_together_and_alone_if_they_differ() {
        let slices = [
            slice(1, "1g.10gb", "H100-80GB", Some("a"), false),
            slice(2, "1g.18gb", "H200-141GB", Some("a"), false),
            slice(3, "1g.10gb", "H100-80GB", Some("c"), false),
        ];
        assert_eq!(devices(&offer(&slices)), ["MIG-1", "MIG-2"]);
    }

    #[test]
    fn a_pod_that_must_be_alone_waits_for_the_others_and_they_for_it() {
        let alone = |n, pod, held| {
            let mut slice = slice(n, "1g.10gb", "H100-80GB", Some(pod), held);
            slice.reservation.as_mut().unwrap().alone = true;
            slice
        };
        let other = |n, held| slice(n, "1g.10gb", "H100-80GB", Some("b"), held);
        let offered = |slices: &[ExistingSlice]| devices(&offer(slices)).join(" ");
        assert_eq!(offered(&[alone(1, "a", false), alone(2, "a", false), other(3, false)]), "MIG-1 MIG-2");
        assert_eq!(offered(&[alone(1, "a", true), alone(2, "a", false), other(3, false)]), "MIG-1 MIG-2");
        assert_eq!(
            offered(&[alone(1, "a", true), alone(2, "a", true), other(3, false)]),
            "MIG-1 MIG-2 MIG-3"
        );
        assert_eq!(offered(&[other(1, false), alone(2, "a", false), other(3, false)]), "MIG-1 MIG-3");
        assert_eq!(offered(&[other(1, true), alone(2, "a", false), other(3, true)]), "MIG-1 MIG-2 MIG-3");
    }

    proptest! {
        #[test]
        fn whichever_device_the_kubelet_picks_is_worth_what_was_promised(
            choices in prop::collection::vec((0_usize..2, 0_usize..4, any::<bool>(), any::<bool>()), 0..10),
            alone in 0_usize..4,
        ) {
            let slices: Vec<_> = choices.iter().enumerate().map(|(n, (model, pod, reserved, held))| {
                let (profile, model) = [("1g.10gb", "H100-80GB"), ("1g.18gb", "H200-141GB")][*model];
                let mut slice = slice(n, profile, model, reserved.then_some(["a", "b", "c", "d"][*pod]), *held);
                slice.reservation.iter_mut().for_each(|r| r.alone = *pod == alone);
                slice
            }).collect();
            let offer = offer(&slices);
            let free: Vec<_> = slices.iter().filter(|s| s.held_as.is_none()
                && offer.healthy.values().any(|d| d.contains(&s.device))).collect();
            let pods: BTreeSet<_> = free.iter().filter_map(|s| s.reservation.as_ref().map(|r| &r.uid)).collect();
            // Either all free devices are worth the same, or they belong to one pod.
            prop_assert!(pods.len() <= 1 || free.iter().all(|s| worth(s) == worth(free[0])));
            let is_alone = |s: &&&ExistingSlice| s.reservation.as_ref().is_some_and(|r| r.alone);
            prop_assert!(pods.len() <= 1 || !free.iter().any(|s| is_alone(&s)));
            // Nothing idle is offered, and every reservation is offered, held or waiting.
            for s in &slices {
                let offered = offer.healthy.values().any(|d| d.contains(&s.device));
                prop_assert_eq!(offered || offer.waiting.contains(&s.id), s.held_as.is_some() || s.reservation.is_some());
            }
        }
    }
}
