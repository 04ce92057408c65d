//! The kinds that a pod's policy prefers to the one that it gets, and what became of them. For people alone: no decision reads it.

use super::{KindPlan, Refusal, plans};
use crate::contract::{PassedKind, RequestDocument};
use crate::kind::Kind;

/// What kube-scheduler finds of a node by its own checks, before the GPUs are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerVerdict {
    /// It passes them.
    Offered,
    /// It has a taint that the pod does not tolerate.
    Tainted,
    /// Something else keeps it from the pod: its labels, CPU, volumes or affinity.
    Excluded,
}

impl KindPlan {
    /// The kinds that the request prefers to this plan's, best first, each with the best plan that has it.
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
    /// A kind of which no node is known yet.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self { kind, full: 0, never: 0, excluded: 0, tainted: 0 }
    }

    /// Counts a node by what it has for the pod by this kind.
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
            // An offered node that serves the kind is full by the time of the next decision, or its quota is.
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
    fn the_kinds_before_the_plans_are_preferred() {
        let request = request(&[Kind::Mig, Kind::Mps, Kind::Whole]);
        let plans = plans(&request);
        let kinds = |plan: &KindPlan| -> Vec<Kind> {
            plan.preferred(&request).into_iter().map(|(kind, _)| kind).collect()
        };
        assert_eq!(kinds(&plans[0]), []);
        assert_eq!(kinds(&plans[2]), [Kind::Mig, Kind::Mps]);
        assert_eq!(plans[2].preferred(&request)[1].1, plans[1]);
    }

    /// Of two names each kind is counted once, by the best plan that has it where the chosen one has another.
    #[test]
    fn of_two_names_each_kind_is_preferred_once() {
        let mut request = request(&[Kind::Mig, Kind::Mps]);
        let mut second = request.containers[0].clone();
        second.resource = ResourceName::Neutral(SizeGb(20));
        request.containers.push(second);
        let plans = plans(&request);
        let preferred = plans[3].preferred(&request);
        assert_eq!(preferred, [(Kind::Mig, plans[0].clone())]);
    }

    #[test]
    fn a_node_counts_by_its_refusal_and_by_what_keeps_it_from_the_pod() {
        let mut passed = PassedKind::new(Kind::Mig);
        for (found, verdict) in [
            (Err(Refusal::NoRoom), SchedulerVerdict::Offered),
            (Err(Refusal::NoRoom), SchedulerVerdict::Excluded),
            (Err(Refusal::NeverFits), SchedulerVerdict::Offered),
            (Err(Refusal::NeverFits), SchedulerVerdict::Tainted),
            (Err(Refusal::AgentNotReady), SchedulerVerdict::Offered),
            (Ok(()), SchedulerVerdict::Offered),
            (Ok(()), SchedulerVerdict::Tainted),
            (Ok(()), SchedulerVerdict::Excluded),
        ] {
            passed.count(found, verdict);
        }
        assert_eq!(passed, PassedKind { kind: Kind::Mig, full: 2, never: 1, excluded: 2, tainted: 1 });
    }
}
