//! The extender's leader: wants what comes to its mind, legal or not, and keeps its book by the status as the real one does.

use super::World;
use kerf_core::contract::{
    GpuNodeStatus, GpuRule, MigPart, MigReplicas, MigRule, ModeChange, MpsRule, NodePolicy, Reservation,
    Shape, WantedSlice,
};
use kerf_core::kind::Kind;
use kerf_core::ledger;
use kerf_core::mig::{ComputeInstance, ComputeProfile};
use kerf_core::names::{PodUid, SliceId};
use kerf_core::resource::{ResourceName, neutral_size};
use kerf_core::units::SizeGb;

use crate::gpu::fake::uuid;

/// A GPU, a profile, its first memory slice and how many; what of the instance.
type Cut = (u32, &'static str, u8, u8, MigPart);

/// How many pods may take turns on an instance. A spec may want more of them.
pub(super) const TURNS: u8 = 2;

const fn part(start: u8, compute: u8) -> MigPart {
    MigPart::Compute(ComputeInstance { start, compute })
}

const fn turn(replica: u8) -> MigPart {
    MigPart::Replica { replica }
}

/// What a spec may want of GPU instances.
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

/// What it may want of a GPU without MIG.
const SHARES: [Shape; 6] = [
    Shape::mps(SizeGb(4)),
    Shape::mps(SizeGb(8)),
    Shape::mps(SizeGb(4)),
    Shape::TimeSlicing { size_gb: SizeGb(4) },
    Shape::TimeSlicing { size_gb: SizeGb(8) },
    Shape::Whole { size_gb: SizeGb(15) },
];

/// How many slices a spec has at most.
const MOST: usize = 12;

fn shape(choice: usize) -> (u32, Shape) {
    // As often of the GPU that has no MIG mode as of the two others.
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
        // A smaller promise may be kept by a larger slice.
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

/// Whether a slice that is wanted has to go for another on its GPU.
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
    /// Wants a slice for a pod, or for nobody yet. Takes back what is in its way, also what a pod was promised; or forgets to.
    pub(super) fn want(&mut self, choice: usize) {
        let (gpu, shape) = shape(choice);
        let careless = choice % 7 == 3;
        self.spec.slices.retain(|w| w.gpu != uuid(gpu) || careless || !is_in_the_way(w.shape, shape));
        if self.spec.slices.len() >= MOST {
            self.spec.slices.remove(0);
        }
        self.spec.next_slice += 1;
        let number = self.spec.next_slice;
        let reservation = (choice % 5 != 4).then(|| Reservation {
            uid: PodUid::new(format!("u{number}")),
            namespace: "ns".into(),
            pod: format!("p{number}"),
            container: "main".into(),
            resource: if self.neutral { neutral_name(shape) } else { name(shape) },
            alone: choice % 31 == 30,
            epoch: 1,
        });
        let id = SliceId::new(format!("s{number}"));
        self.spec.slices.push(WantedSlice { id, gpu: uuid(gpu), shape, reservation });
        self.write();
    }

    pub(super) fn release(&mut self, choice: usize) {
        let count = self.spec.slices.len().max(1);
        match self.spec.slices.get_mut(choice % count) {
            Some(slice) if choice.is_multiple_of(2) => slice.reservation = None,
            Some(_) => drop(self.spec.slices.remove(choice % count)),
            None => {}
        }
        self.write();
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
        self.spec.policy = NodePolicy { gpus: vec![rule], ..NodePolicy::default() };
        self.write();
    }

    /// What the real leader does after each status: drops what failed, and follows the kubelet's choice.
    pub(super) fn upkeep(&mut self) {
        let Some(status) = self.published.clone().filter(GpuNodeStatus::is_ready) else { return };
        let bound = &self.kubelet.bound;
        let failed = ledger::drop_failed(&self.spec, &status);
        let next = failed.or_else(|| ledger::follow_holders(&self.spec, &status, |u| bound.contains_key(u)));
        if let Some(next) = next {
            self.spec = next;
            self.write();
        }
    }

    /// Takes a promise back whose pod has ended.
    pub(super) fn give_back(&mut self, uid: &PodUid) {
        if let Some(next) = ledger::release(&self.spec, uid) {
            self.spec = next;
            self.write();
        }
    }

    /// Binds the pods whose slices are ready.
    pub(super) fn bind(&mut self) {
        let Some(status) = &self.published else { return };
        let reserved = self.spec.slices.iter().filter_map(|w| Some((w, w.reservation.as_ref()?)));
        let ready = |w: &WantedSlice, r: &Reservation| {
            status.slice(&w.id).is_some_and(|s| s.ready_for.as_ref() == Some(&r.uid))
        };
        let ready = reserved.filter(|(w, r)| ready(w, r));
        let bound: Vec<_> = ready.map(|(_, r)| (r.uid.clone(), (r.key(), r.resource))).collect();
        self.kubelet.bound.extend(bound);
        self.tell_pods();
    }

    fn write(&mut self) {
        self.spec.revision += 1;
        self.node.on_spec(Some("uid".into()), Ok(self.spec.clone()));
    }
}
