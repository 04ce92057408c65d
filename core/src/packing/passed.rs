//! The kinds that a pod's policy prefers to the one that it gets, and why it did not get them. This is for people; no
//! decision depends on it.

use super::{KindPlan, Refusal, plans};
use crate::contract::{PassedKind, RequestDocument};
use crate::kind::Kind;

/// The result of kube-scheduler's own checks of a node, before its GPUs are considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerVerdict {
    /// The node passes all checks.
    Offered,
    /// The node has a taint that the pod does not tolerate.
    Tainted,
    /// Something else excludes the node: labels, CPU, volumes or affinity.
    Excluded,
}

impl KindPlan {
    /// The kinds that the request prefers to those of this plan, best first, each with the best plan that has it.
    #[must_use]
    pub fn preferred(&self, request: &RequestDocument) -> Vec<(Kind, Self)> {
        let mut preferred: Vec<(Kind, Self)> = Vec::new();
        for plan in plans(request).into_iter().take_while(|plan| plan != self) {
            let other = plan.kinds().find(|(name, kind)| self.kind(*name) != Some(*kind));
            let is_new = |kind: &Kind| preferred.iter().all(|(known, _)| known != kind);
            if let Some(kind) = other.map(|(_, kind)| kind).filter(is_new) {
                preferred.push((kind, plan));
            }
        }
        preferred
    }
}

impl PassedKind {
    /// A kind for which no node is counted yet.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self { kind, full: 0, never: 0, excluded: 0, tainted: 0 }
    }

    /// Counts a node by its result for this kind.
    pub fn count(&mut self, found: Result<(), Refusal>, verdict: SchedulerVerdict) {
        let is_offered = verdict == SchedulerVerdict::Offered;
        match found {
            Err(Refusal::NoRoom) => self.full += 1,
            Err(
                Refusal::NeverFits
                | Refusal::NotSelected
                | Refusal::CountNeverFits
                | Refusal::TooFewGpus
                | Refusal::OneReplica,
            ) if is_offered => self.never += 1,
            Ok(()) if !is_offered => {
                self.excluded += 1;
                self.tainted += u32::from(verdict == SchedulerVerdict::Tainted);
            }
            // Another pod takes the room of an offered node before the next decision, or the quota is full, so it is
            // not counted.
            Ok(()) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::ResourceName;
    use crate::testing::request_sized;
    use crate::units::SizeGb;

    fn request(kinds: &[Kind]) -> RequestDocument {
        let mut request = request_sized(ResourceName::Neutral(SizeGb(10)), SizeGb(10), 1);
        request.containers[0].kinds = kinds.to_vec();
        request
    }

    #[test]
    fn kinds_of_earlier_plans_are_preferred() {
        let request = request(&[Kind::Mig, Kind::Mps, Kind::Whole]);
        let plans = plans(&request);
        let kinds = |plan: &KindPlan| -> Vec<Kind> {
            plan.preferred(&request).into_iter().map(|(kind, _)| kind).collect()
        };
        assert_eq!(kinds(&plans[0]), []);
        assert_eq!(kinds(&plans[2]), [Kind::Mig, Kind::Mps]);
        assert_eq!(plans[2].preferred(&request)[1].1, plans[1]);
    }

    /// With two names each kind is counted once, by the best plan that has it in place of the chosen kind.
    #[test]
    fn each_kind_of_two_names_is_preferred_once() {
        let mut request = request(&[Kind::Mig, Kind::Mps]);
        let mut second = request.containers[0].clone();
        second.resource = ResourceName::Neutral(SizeGb(20));
        request.containers.push(second);
        let plans = plans(&request);
        let preferred = plans[3].preferred(&request);
        assert_eq!(preferred, [(Kind::Mig, plans[0].clone())]);
    }

    #[test]
    fn a_node_counts_by_its_refusal_and_the_schedulers_verdict() {
        let mut passed = PassedKind::new(Kind::Mig);
        for (found, verdict) in [
            (Err(Refusal::NoRoom), SchedulerVerdict::Offered),
            (Err(Refusal::NoRoom), SchedulerVerdict::Excluded),
            (Err(Refusal::NeverFits), SchedulerVerdict::Offered),
            (Err(Refusal::NeverFits), SchedulerVerdict::Tainted),
            (Err(Refusal::AgentNotReady), SchedulerVerdict::Offered),
            (Ok(()), SchedulerVerdict::Offered),
            (Ok(()), SchedulerVerdict::Tainted),
            (Ok(()), SchedulerVerdict::Tainted),
            (Ok(()), SchedulerVerdict::Excluded),
        ] {
            passed.count(found, verdict);
        }
        assert_eq!(passed, PassedKind { kind: Kind::Mig, full: 2, never: 1, excluded: 3, tainted: 2 });
    }
}
