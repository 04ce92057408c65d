//! Random histories of a node whose pods take slices of several kinds under one name. Extender, agent and kubelet are
//! models that lag behind each other; only the offer is the real code. The caller chooses the steps and thus the
//! randomness.
//!
//! The check does not use the offer's definition of equal worth: each slice has the number of a *ware*, and a pod must
//! get the wares that it has reserved.

mod agent;
mod checks;
mod kubelet;
mod ware;

use crate::contract::Reservation;
use crate::names::{DeviceId, PodUid, SliceId};
use crate::resource::ResourceName;
use crate::units::SizeGb;
use agent::Agent;
use kubelet::Kubelet;
use std::collections::BTreeSet;
use std::ops::AddAssign;
use ware::{WARES, Ware};

/// The names in the pods' requests.
const NAMES: [ResourceName; 2] = [ResourceName::Neutral(SizeGb(10)), ResourceName::Neutral(SizeGb(20))];
/// The most pods that have not ended.
const PODS_LIMIT: usize = 7;
/// The number of kinds of step; frequent kinds count several times.
const STEPS: u8 = 64;

/// Devices by the index of their name in [`NAMES`].
type Devices = [BTreeSet<DeviceId>; 2];

/// The number of a step (only its remainder counts) and the seed of its choices.
pub type Step = (u8, u64);

/// The counts of a history's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Pods that the kubelet admitted.
    pub admitted: usize,
    /// Admitted pods that hold other devices than they had reserved.
    pub otherwise: usize,
    /// Pods that the agent refused because the kubelet picked a device that it had freed before the agent saw the pod's
    /// end.
    pub refused: usize,
    /// Pods that the kubelet rejected for another reason.
    pub rejected: usize,
}

impl AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.otherwise += other.otherwise;
        self.refused += other.refused;
        self.rejected += other.rejected;
    }
}

#[derive(Debug, Clone)]
struct Slice {
    id: SliceId,
    device: DeviceId,
    /// The index of the name under which it is offered; no device is healthy under two.
    name: usize,
    ware: Ware,
    /// Whether it exists, and whether a container can use it.
    made: bool,
    served: bool,
    reservation: Option<Reservation>,
}

impl Slice {
    fn pod(&self) -> Option<&PodUid> {
        self.reservation.as_ref().map(|reservation| &reservation.uid)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Pending,
    Bound,
    Running,
    /// It has ended, was rejected, or was deleted.
    Over,
}

/// A container, with the number of devices in its request for each name.
#[derive(Debug, Clone)]
struct Container {
    is_init: bool,
    wants: [usize; 2],
}

#[derive(Debug, Clone)]
struct Pod {
    uid: PodUid,
    alone: bool,
    containers: Vec<Container>,
    /// The wares that it has reserved, by name, sorted.
    wares: Vec<(usize, usize)>,
    /// Whether the extender's bind is open, so that the reservation is not released.
    bind_open: bool,
    /// Whether all its slices were ready at some time.
    was_ready: bool,
    stage: Stage,
}

/// The state of a node and its pods during a history.
#[derive(Debug, Default)]
pub struct Life {
    slices: Vec<Slice>,
    pods: Vec<Pod>,
    kubelet: Kubelet,
    agent: Agent,
    /// The number of IDs so far.
    given: usize,
    /// The results of the history so far.
    pub outcome: Outcome,
}

/// Draws small numbers from one large number.
#[derive(Debug)]
struct Draw(u64);

impl Draw {
    fn new(seed: usize) -> Self {
        Self(u64::try_from(seed).unwrap_or(0).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        let (rest, drawn) = (self.0 / bound, self.0 % bound);
        self.0 = rest;
        usize::try_from(drawn).unwrap_or(0)
    }

    fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    fn choose<T>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        let mut from: Vec<T> = from.into_iter().collect();
        (!from.is_empty()).then(|| from.swap_remove(self.below(from.len())))
    }
}

impl Life {
    /// Executes one step and checks every condition.
    ///
    /// # Errors
    /// The condition that does not hold after the step.
    pub fn step(&mut self, (step, choice): Step) -> Result<(), String> {
        let mut draw = Draw(choice);
        let is_late = draw.one_in(6);
        match step % STEPS {
            0..=5 => self.reserve(&mut draw),
            6..=13 => self.make(&mut draw),
            14 => self.change_service(&mut draw),
            15..=23 => self.take_list(&mut draw),
            24..=27 => self.acknowledge(),
            28..=34 => self.bind(&mut draw),
            35 => self.end_bind(&mut draw),
            36 => self.release(&mut draw),
            37..=48 => self.allocate(&mut draw),
            49..=52 => self.report_holders(draw.one_in(3)),
            53..=55 => self.report_pods(),
            56..=57 => self.end(&mut draw),
            58..=59 => self.release_ended(),
            60 => self.follow_holders(),
            61 if draw.one_in(4) => self.restart_agent(),
            62 if draw.one_in(4) => self.restart_kubelet(),
            _ => self.forget_idle(),
        }
        // The agent decides a moment after an event, and sometimes once for several events.
        if is_late {
            return self.check_pods();
        }
        self.decide();
        self.check()
    }

    /// Ends the history without further faults, after which every pod with a reservation must get its slices.
    ///
    /// # Errors
    /// The pod that never gets them.
    pub fn finish(&mut self) -> Result<(), String> {
        for round in 0..2 * PODS_LIMIT {
            for slice in self.slices.iter_mut().filter(|slice| slice.reservation.is_some()) {
                (slice.made, slice.served) = (true, true);
            }
            self.pods.iter_mut().for_each(|pod| pod.bind_open = true);
            self.report_pods();
            // Twice, because the account of held devices follows the previous decision.
            for _ in 0..2 {
                self.decide();
                self.report_holders(true);
            }
            self.follow_holders();
            self.release_ended();
            self.decide();
            self.kubelet.taken.clone_from(&self.agent.sent);
            self.acknowledge();
            self.decide();
            for chosen in 0..PODS_LIMIT {
                self.bind(&mut Draw::new(round + chosen));
            }
            while self.pods.iter().any(|pod| pod.stage == Stage::Bound) {
                self.allocate(&mut Draw::new(round));
                self.check_pods()?;
            }
        }
        match self.pods.iter().find(|pod| pod.stage == Stage::Pending) {
            Some(pod) => Err(format!("pod {} never gets what it has reserved", pod.uid)),
            None => Ok(()),
        }
    }

    fn number(&mut self) -> usize {
        self.given += 1;
        self.given
    }

    /// The agent reserves slices for a new pod; they must still be made.
    fn reserve(&mut self, draw: &mut Draw) {
        if self.pods.iter().filter(|pod| pod.stage != Stage::Over).count() >= PODS_LIMIT {
            return;
        }
        let uid = PodUid::new(format!("u{}", self.number()));
        let alone = draw.one_in(6);
        // Few wares at a time, so that some slices are equal.
        let mut wares: Vec<(usize, usize)> = (0..=draw.below(3))
            .map(|_| {
                (
                    usize::from(draw.one_in(4)),
                    if draw.one_in(3) { draw.below(WARES) } else { draw.below(3) * 4 },
                )
            })
            .collect();
        wares.sort_unstable();
        for (name, ware) in &wares {
            let reservation = Reservation {
                uid: uid.clone(),
                namespace: "ns".to_owned(),
                pod: uid.as_str().to_owned(),
                container: "main".to_owned(),
                resource: NAMES[*name],
                alone,
                epoch: 1,
            };
            let slice = self.slice_for(*name, *ware, draw);
            slice.reservation = Some(reservation);
        }
        let containers = containers(&wares, draw.below(5));
        self.pods.push(Pod {
            uid,
            alone,
            containers,
            wares,
            bind_open: true,
            was_ready: false,
            stage: Stage::Pending,
        });
    }

    /// An idle slice, or one that must still be made. The agent knows idle slices at once, because it reserves itself.
    fn slice_for(&mut self, name: usize, ware: usize, draw: &mut Draw) -> &mut Slice {
        let (agent, may_be_idle) = (&self.agent, !draw.one_in(4));
        let is_idle = |slice: &Slice| {
            let is_its = slice.name == name && slice.ware.number == ware && slice.reservation.is_none();
            may_be_idle && is_its && slice.made && agent.held_as(&slice.device).is_none()
        };
        let at = self.slices.iter().position(is_idle).unwrap_or_else(|| {
            let number = self.number();
            self.slices.push(Slice {
                id: SliceId::new(format!("s{number}")),
                device: DeviceId::new(format!("d{number}")),
                name,
                ware: Ware { number: ware, place: draw.below(4) },
                made: false,
                served: false,
                reservation: None,
            });
            self.slices.len() - 1
        });
        &mut self.slices[at]
    }

    /// Makes one slice, or all of its pod, or starts to serve one that was not served.
    fn make(&mut self, draw: &mut Draw) {
        let (is_kept_back, is_all) = (draw.one_in(8), draw.one_in(2));
        let is_lacking = |slice: &&Slice| slice.reservation.is_some() && !(slice.made && slice.served);
        let lacking: Vec<usize> =
            (0..self.slices.len()).filter(|at| is_lacking(&&self.slices[*at])).collect();
        let Some(first) = draw.choose(lacking.iter().copied()) else { return };
        let uid = self.slices[first].pod().cloned();
        for at in lacking {
            if at != first && !(is_all && self.slices[at].pod() == uid.as_ref()) {
                continue;
            }
            let number = self.number();
            let slice = &mut self.slices[at];
            if !slice.made {
                slice.device = DeviceId::new(format!("d{number}"));
            }
            (slice.made, slice.served) = (true, !is_kept_back);
        }
    }

    /// An existing slice is not served any longer, or is lost.
    fn change_service(&mut self, draw: &mut Draw) {
        let is_lost = draw.one_in(3);
        let kubelet = &self.kubelet;
        if let Some(slice) = draw.choose(self.slices.iter_mut().filter(|slice| slice.made)) {
            slice.served = false;
            slice.made = !is_lost || kubelet.has(&slice.device);
        }
    }

    /// The extender binds a pod whose slices are all ready by the status, which may be outdated.
    fn bind(&mut self, draw: &mut Draw) {
        let is_status_old = draw.one_in(4);
        let (slices, agent) = (&self.slices, &self.agent);
        let is_ready = |pod: &Pod| is_status_old && pod.was_ready || agent.is_ready(pod, slices);
        let pods =
            self.pods.iter_mut().filter(|pod| pod.stage == Stage::Pending && pod.bind_open && is_ready(pod));
        if let Some(pod) = draw.choose(pods) {
            pod.stage = Stage::Bound;
        }
    }

    /// A bind times out, or starts again.
    fn end_bind(&mut self, draw: &mut Draw) {
        if let Some(pod) = draw.choose(self.pods.iter_mut().filter(|pod| pod.stage == Stage::Pending)) {
            pod.bind_open ^= true;
        }
    }

    /// The extender releases the reservation of a pod that is not bound and has no open bind.
    fn release(&mut self, draw: &mut Draw) {
        let unused = |pod: &&mut Pod| pod.stage == Stage::Pending && !pod.bind_open;
        if let Some(pod) = draw.choose(self.pods.iter_mut().filter(unused)) {
            pod.stage = Stage::Over;
            self.release_ended();
        }
    }

    fn release_ended(&mut self) {
        let over = |pod: &&Pod| pod.stage == Stage::Over;
        let over: BTreeSet<PodUid> = self.pods.iter().filter(over).map(|pod| pod.uid.clone()).collect();
        let reserved =
            self.slices.iter_mut().filter(|slice| slice.pod().is_some_and(|uid| over.contains(uid)));
        reserved.for_each(|slice| slice.reservation = None);
    }

    /// A running pod ends, or a bound pod is deleted before the kubelet has started with it.
    fn end(&mut self, draw: &mut Draw) {
        let has_begun = |uid: &PodUid| self.kubelet.is_admitting(uid);
        let may_end = |pod: &&mut Pod| match pod.stage {
            Stage::Running => true,
            Stage::Bound => !has_begun(&pod.uid),
            Stage::Pending | Stage::Over => false,
        };
        if let Some(pod) = draw.choose(self.pods.iter_mut().filter(may_end)) {
            pod.stage = Stage::Over;
            let uid = pod.uid.clone();
            self.kubelet.free(&uid);
        }
    }

    /// The extender exchanges reservations to match what the pods hold, by the agent's account.
    fn follow_holders(&mut self) {
        let running = |pod: &&Pod| matches!(pod.stage, Stage::Bound | Stage::Running);
        let running: BTreeSet<PodUid> = self.pods.iter().filter(running).map(|pod| pod.uid.clone()).collect();
        for here in 0..self.slices.len() {
            let Some((uid, name)) = self.agent.holder(&self.slices[here].device) else { continue };
            if !running.contains(&uid) || self.slices[here].pod() == Some(&uid) {
                continue;
            }
            let is_its = |slice: &Slice| {
                slice.reservation.as_ref().is_some_and(|r| r.uid == uid && r.resource == NAMES[name])
            };
            let held_by_it =
                |slice: &Slice| self.agent.holder(&slice.device).is_some_and(|(of, _)| of == uid);
            if let Some(there) = self.slices.iter().position(|slice| is_its(slice) && !held_by_it(slice)) {
                let reservation = self.slices[there].reservation.take();
                self.slices[there].reservation =
                    std::mem::replace(&mut self.slices[here].reservation, reservation);
            }
        }
    }

    /// Removes idle slices once no pod can have them.
    fn forget_idle(&mut self) {
        let (kubelet, agent) = (&self.kubelet, &self.agent);
        self.slices.retain(|slice| {
            slice.reservation.is_some() || kubelet.knows(&slice.device) || agent.knows(&slice.device)
        });
        let slices = &self.slices;
        self.pods.retain(|pod| {
            pod.stage != Stage::Over || slices.iter().any(|slice| slice.pod() == Some(&pod.uid))
        });
    }
}

/// Containers that finally hold these wares, in one of five combinations.
fn containers(wares: &[(usize, usize)], way: usize) -> Vec<Container> {
    let sum = |wares: &[(usize, usize)]| {
        let of = |name| wares.iter().filter(|(of, _)| *of == name).count();
        [of(0), of(1)]
    };
    let app = |wares: &[(usize, usize)]| Container { is_init: false, wants: sum(wares) };
    let init = |wares: &[(usize, usize)]| Container { is_init: true, wants: sum(wares) };
    let each = || wares.chunks(1).map(app);
    match way {
        0 => vec![app(wares)],
        1 => each().collect(),
        2 => vec![init(&wares[..1]), app(wares)],
        3 => std::iter::once(init(wares)).chain(each()).collect(),
        _ => vec![init(wares), app(&wares[..1])],
    }
}
