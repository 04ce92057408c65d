//! The extender's leader: it orders at random, legal or not.

use super::World;
use kerf_core::contract::{
    GpuRule, MigPart, MigReplicas, MigRule, ModeChange, MpsRule, NodePolicy, Shape, WantedSlice,
};
use kerf_core::kind::Kind;
use kerf_core::ledger::{Found, Order, OrderKind, Owner, Proposal, Rejection};
use kerf_core::mig::{ComputeInstance, ComputeProfile};
use kerf_core::names::{PodKey, PodUid};
use kerf_core::packing::{Placed, Source};
use kerf_core::resource::{ResourceName, neutral_size};
use kerf_core::units::SizeGb;

use crate::gpu::fake::uuid;

/// A GPU, a profile, its first memory slice, its number of memory slices, and the part of the instance.
type Cut = (u32, &'static str, u8, u8, MigPart);

const EPOCH: u64 = 1;

/// How many pods may take turns on an instance. The leader may order more of them.
pub(super) const TURNS: u8 = 2;

const fn part(start: u8, compute: u8) -> MigPart {
    MigPart::Compute(ComputeInstance { start, compute })
}

const fn turn(replica: u8) -> MigPart {
    MigPart::Replica { replica }
}

/// GPU instances that it may order.
const CUTS: [Cut; 17] = [
    (0, "1g.10gb", 0, 1, MigPart::Whole),
    (0, "1g.10gb", 4, 1, MigPart::Whole),
    (0, "1g.20gb", 4, 2, MigPart::Whole),
    (0, "3g.40gb", 4, 4, MigPart::Whole),
    (0, "7g.80gb", 0, 8, MigPart::Whole),
    (0, "3g.40gb", 4, 4, part(0, 1)),
    (0, "3g.40gb", 4, 4, part(1, 1)),
    (0, "3g.40gb", 4, 4, part(0, 2)),
    (0, "1g.10gb", 0, 1, turn(0)),
    (0, "1g.10gb", 0, 1, turn(1)),
    (0, "1g.10gb", 0, 1, turn(2)),
    (0, "1g.10gb", 4, 1, turn(0)),
    (1, "1g.5gb", 6, 1, MigPart::Whole),
    (1, "1g.5gb", 0, 1, MigPart::Whole),
    (1, "2g.10gb", 0, 2, MigPart::Whole),
    (1, "3g.20gb", 4, 4, MigPart::Whole),
    (1, "7g.40gb", 0, 8, MigPart::Whole),
];

/// Shares that it may order of a GPU without MIG.
const SHARES: [Shape; 6] = [
    Shape::mps(SizeGb(4)),
    Shape::mps(SizeGb(8)),
    Shape::mps(SizeGb(4)),
    Shape::TimeSlicing { size_gb: SizeGb(4) },
    Shape::TimeSlicing { size_gb: SizeGb(8) },
    Shape::Whole { size_gb: SizeGb(15) },
];

/// With this many slices on a GPU, it lists all idle ones there for destruction.
const MOST: usize = 12;

fn shape(choice: usize) -> (u32, Shape) {
    // Half of the shares are for the GPU without MIG mode, because only they can be on it.
    let choice = choice % (CUTS.len() + 2 * SHARES.len());
    if let Some((gpu, profile, start, size, part)) = CUTS.get(choice) {
        let shape = Shape::Mig { profile: profile.parse().unwrap(), start: *start, size: *size, part: *part };
        return (*gpu, shape);
    }
    let share = (choice - CUTS.len()) % SHARES.len();
    (if choice - CUTS.len() < SHARES.len() { 2 } else { u32::try_from(choice % 2).unwrap() }, SHARES[share])
}

fn name(shape: Shape) -> ResourceName {
    match shape {
        Shape::Mig { profile, part: MigPart::Compute(part), .. } => {
            ResourceName::Compute(ComputeProfile::new(part.compute, profile).unwrap())
        }
        Shape::Mig { profile, part: MigPart::Replica { .. }, .. } => ResourceName::MigReplica(profile),
        // A larger slice may serve a smaller reservation.
        Shape::Mig { profile, .. } if profile.to_string() == "1g.20gb" => {
            "nvidia.com/mig-1g.10gb".parse().unwrap()
        }
        Shape::Mig { profile, .. } => ResourceName::Mig(profile),
        Shape::Whole { .. } => ResourceName::Whole,
        Shape::Mps { size_gb, .. } => ResourceName::Mps(size_gb),
        Shape::TimeSlicing { size_gb } => ResourceName::TimeSlicing(size_gb),
    }
}

fn neutral_name(shape: Shape) -> ResourceName {
    ResourceName::Neutral(neutral_size(shape.size()).unwrap())
}

/// Whether a slice must give way to a new one on its GPU.
fn is_in_the_way(old: Shape, new: Shape) -> bool {
    let is_one_instance = old.instance() == new.instance();
    match (old.mig_part(), new.mig_part()) {
        (MigPart::Compute(a), MigPart::Compute(b)) => a.overlaps(b),
        (a @ MigPart::Replica { .. }, b @ MigPart::Replica { .. }) if is_one_instance => a == b,
        _ => match (old.instance(), new.instance()) {
            (Some(a), Some(b)) => a.placement.overlaps(b.placement),
            _ => old.kind() != new.kind() || new.kind() == Kind::Whole,
        },
    }
}

impl World {
    /// Orders a slice, for a pod or without one. It releases what is in its way, even a reservation, or forgets to. The
    /// agent may reject the order.
    pub(super) fn want(&mut self, choice: usize) {
        let (gpu, shape) = shape(choice);
        let careless = choice % 7 == 3;
        let is_in_the_way =
            |w: &WantedSlice| w.gpu == uuid(gpu) && !careless && is_in_the_way(w.shape, shape);
        let of_pods = self.node.desired().iter().filter(|w| is_in_the_way(w));
        let of_pods: Vec<_> = of_pods.filter_map(|w| Some(w.reservation.as_ref()?.uid.clone())).collect();
        for uid in of_pods {
            self.order(OrderKind::Release { uid, why: String::new() });
        }
        let is_full = self.node.desired().len() >= MOST;
        let mut idle = self.node.desired().iter().filter(|w| w.gpu == uuid(gpu) && w.reservation.is_none());
        let same = idle.clone().find(|w| w.shape == shape && choice.is_multiple_of(2));
        let source = if let Some(same) = same {
            Source::Idle(same.id.clone())
        } else {
            let is_named = |w: &&WantedSlice| is_full || is_in_the_way(w);
            Source::Cut(idle.by_ref().filter(is_named).map(|w| w.id.clone()).collect())
        };
        self.reserved += 1;
        let number = self.reserved;
        let uid = PodUid::new(format!("u{number}"));
        let place = Placed {
            container: "main".into(),
            resource: if self.neutral { neutral_name(shape) } else { name(shape) },
            alone: choice % 31 == 30,
            gpu: uuid(gpu),
            shape,
            source,
        };
        let owner = Owner { uid: uid.clone(), key: PodKey::new("ns", format!("p{number}")) };
        let is_accepted = self.order(OrderKind::Reserve(Proposal { owner, places: vec![place] }));
        if is_accepted {
            self.record();
            if choice % 5 == 4 {
                self.order(OrderKind::Release { uid, why: String::new() });
            }
        }
    }

    pub(super) fn release(&mut self, choice: usize) {
        let reserved = self.node.desired().iter().filter_map(|w| w.reservation.as_ref());
        let reserved: Vec<_> = reserved.map(|r| r.uid.clone()).collect();
        if let Some(uid) = reserved.get(choice % reserved.len().max(1)).cloned() {
            self.order(OrderKind::Release { uid, why: String::new() });
        }
    }

    /// Whether the agent accepts the order.
    fn order(&mut self, kind: OrderKind) -> bool {
        self.node.on_order(&Order { epoch: EPOCH, kind }, self.now).answer.is_ok()
    }

    /// Sends an order of a leader with an older epoch, if the agent has a newer one.
    pub(super) fn order_late(&mut self) {
        if self.node.ledger().epoch() < EPOCH {
            return;
        }
        let kind = OrderKind::Release { uid: "u1".into(), why: String::new() };
        let answer = self.node.on_order(&Order { epoch: EPOCH - 1, kind }, self.now).answer;
        assert_eq!(answer, Err(Rejection::OldEpoch));
    }

    pub(super) fn set_policy(&mut self, choice: usize) {
        use Kind::{Mig, Mps, TimeSlicing, Whole};
        let kinds: [&[Kind]; 6] =
            [&Kind::ALL, &[Mig], &[Mps, Whole], &[TimeSlicing], &[Mig, Mps], &Kind::ALL];
        let changes = [ModeChange::WithoutReset, ModeChange::WithReset, ModeChange::Never];
        let rule = GpuRule {
            kinds: kinds[choice % kinds.len()].to_vec(),
            mode_change: changes[choice / 8 % 3],
            compute_instances: true,
            mig: MigRule { time_slicing: MigReplicas::try_from(u32::from(TURNS)).ok() },
            mps: MpsRule { strict: choice & 32 == 0, exclusive: choice & 64 == 0, ..MpsRule::default() },
            ..GpuRule::default()
        };
        self.policy = NodePolicy { gpus: vec![rule], ..NodePolicy::default() };
        self.node.on_policy(Ok(self.policy.clone()));
    }

    pub(super) fn bind(&mut self) {
        let reserved = self.node.desired().iter().filter_map(|w| w.reservation.clone());
        let reserved: Vec<_> = reserved.collect();
        for reservation in reserved {
            let (uid, key, resource) = (reservation.uid.clone(), reservation.key(), reservation.resource);
            if self.order(OrderKind::Mark { uid: uid.clone(), attempt: 1 }) {
                self.kubelet.bound.insert(uid, (key, resource));
            }
        }
        self.report_pods();
    }

    /// Looks pods up on the agent's request.
    pub(super) fn look_up(&mut self, pods: impl Iterator<Item = PodUid>) {
        for uid in pods {
            let found = if self.kubelet.bound.contains_key(&uid) {
                Found::Here
            } else if self.kubelet.gone.contains(&uid) {
                Found::Gone
            } else {
                Found::Unbound
            };
            self.node.on_looked_up(&uid, self.now, found);
        }
    }
}
