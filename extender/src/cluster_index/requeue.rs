//! Finds the pending pods that may now have room.

use super::scheduling::Scheduling;
use crate::assumed::AssumedPod;
use crate::unschedulable::{Search, Turn};
use kerf_core::ledger::OwnerInEpoch;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Place, Refusal, Selection, choose_place};
use std::collections::BTreeSet;
use std::time::Instant;

impl Scheduling<'_> {
    /// The pending pods that have room now, at a node that changed or in their namespace's quota, the longest pending
    /// first. Each is assumed at its place, so that no more pods are requeued than there is room for.
    pub(super) fn requeue(&mut self, now: Instant) -> Vec<(PodUid, PodKey)> {
        self.expire(now);
        self.adopt_pending();
        self.unschedulable.call_again(now);
        let changed = self.unschedulable.take_changed();
        if changed.is_empty() {
            return Vec::new();
        }
        // A pod that waits for another to leave is itself assumed at that place, so it is checked on its own.
        let apart = self.assumed.pods().filter_map(|uid| self.unschedulable.turn_of(uid));
        let apart: BTreeSet<Turn> = apart.collect();
        let first = self.unschedulable.first_of_each().filter_map(|turn| self.in_common(turn, &apart));
        let mut turns: BTreeSet<Turn> = first.chain(apart.iter().copied()).collect();
        let mut woken = Vec::new();
        while let Some(turn) = turns.pop_first() {
            let next = self.unschedulable.next_of(turn).filter(|_| !apart.contains(&turn));
            let next = next.and_then(|next| self.in_common(next, &apart));
            let own = self.take_own(turn);
            if let Some((name, place)) = self.room_for(turn, &changed) {
                woken.extend(self.call(turn, &name, place, now));
                turns.extend(next);
            } else if let Some((node, assumed)) = own {
                self.assuming().put(&node, assumed);
            }
        }
        woken
    }

    /// The first pod from this turn on for which the same places are free as for the rest of its group.
    fn in_common(&self, turn: Turn, apart: &BTreeSet<Turn>) -> Option<Turn> {
        std::iter::successors(Some(turn), |turn| self.unschedulable.next_of(*turn))
            .find(|turn| !apart.contains(turn))
    }

    /// Ends the assumed place of a pending pod, and returns it.
    fn take_own(&mut self, turn: Turn) -> Option<(NodeName, AssumedPod)> {
        let (uid, _) = self.unschedulable.search(turn)?;
        let uid = uid.clone();
        self.assuming().forget(&uid)
    }

    /// The best of the nodes that changed. If the pod's quota was full until now, all its offered nodes count.
    fn room_for(&mut self, turn: Turn, changed: &BTreeSet<NodeName>) -> Option<(NodeName, Place)> {
        let (uid, search) = self.unschedulable.search(turn)?;
        let (uid, Search { ask, offered, held_back }) = (uid.clone(), search.clone());
        if self.within_quota(&ask).is_err() {
            self.unschedulable.note_held_back(turn, true);
            return None;
        }
        let near: Vec<&NodeName> = if held_back {
            offered.iter().collect()
        } else {
            changed.iter().filter(|name| offered.contains(*name)).collect()
        };
        let Selection { best, refused, .. } =
            choose_place(near, |name: &NodeName| self.place(name.as_str(), &uid, &ask));
        let best = best.map(|(name, place)| (name.clone(), place));
        if best.is_none() {
            // Updated only once no node is left, so that the whole group is checked against the same nodes.
            let is_full = refused.iter().any(|(_, refusal)| *refusal == Refusal::QuotaFull);
            self.unschedulable.note_held_back(turn, is_full);
        }
        best
    }

    fn call(&mut self, turn: Turn, node: &NodeName, place: Place, now: Instant) -> Option<(PodUid, PodKey)> {
        let (uid, key, ask) = self.unschedulable.call(turn, node)?;
        let owner_in_epoch = OwnerInEpoch { uid: uid.clone(), key: key.clone(), epoch: self.epoch };
        let plan = place.rank.plan(&ask.document).unwrap_or_default();
        self.assume(owner_in_epoch, ask, plan.into(), node, now);
        Some((uid, key))
    }

    /// Takes over the pods that a former leader may have refused. A new leader has no list of them, so every pod
    /// without a place that the scheduler may place counts as one.
    fn adopt_pending(&mut self) {
        if !self.unschedulable.adopt() {
            return;
        }
        let names: Vec<NodeName> = self.nodes.names().cloned().collect();
        let offered: Vec<&str> = names.iter().map(NodeName::as_str).collect();
        let idle = self.pods.iter().filter(|pod| pod.can_be_scheduled() && !self.is_reserved(&pod.uid));
        let mut idle: Vec<_> = idle.collect();
        // In which order they were refused is not known any more.
        idle.sort_unstable_by_key(|pod| (pod.created, &pod.uid));
        for pod in idle {
            if let Ok(ask) = pod.ask() {
                self.unschedulable.refused(&pod.uid, &pod.key, &ask, &offered, false);
            }
        }
        for name in &names {
            self.unschedulable.changed(name);
        }
    }
}
