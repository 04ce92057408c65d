//! Which waiting pods may now have room.

use super::ClusterIndex;
use crate::ask::Ask;
use crate::waiting::Waiter;
use kerf_core::ledger::Promisee;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Place, Refusal, Selection, choose_place};
use std::collections::BTreeSet;
use std::time::Instant;

impl ClusterIndex {
    /// All `offered` nodes refused a pod; `held_back` if its namespace's quota did.
    pub fn refused(&mut self, uid: &PodUid, key: &PodKey, ask: &Ask, offered: &[&str], held_back: bool) {
        self.waiting.refused(uid.clone(), key.clone(), ask.clone(), offered, held_back);
    }

    /// A pod is being looked at, has its place or is gone.
    pub fn waits_no_longer(&mut self, uid: &PodUid) {
        self.waiting.forget(uid);
    }

    /// The waiting pods for which there is room at a node that changed, or in their namespace's quota, the longest waiting
    /// first. Each is expected there, so that no more are told than there is room for.
    pub fn wake(&mut self, now: Instant) -> Vec<(PodUid, PodKey)> {
        if !self.is_listed() {
            return Vec::new();
        }
        self.expire(now);
        self.adopt_waiters();
        self.waiting.call_again(now);
        let (pods, changed) = self.waiting.take();
        let mut woken = Vec::new();
        for mut waiter in pods {
            // A pod that waits for another to leave is itself expected there.
            let own = self.tentatives.take(&waiter.uid);
            if let Some((node, _)) = &own {
                self.touch(node);
            }
            if let Some((name, place)) = self.room_for(&mut waiter, &changed) {
                woken.push(self.call(waiter, &name, place, now));
                continue;
            }
            if let Some((node, tentative)) = own {
                self.tentatives.put(&node, tentative);
                self.touch(&node);
            }
            self.waiting.keep(waiter);
        }
        woken
    }

    /// The best node for a pod of those that changed; of all, if its namespace's quota kept it from them until now.
    fn room_for(&mut self, waiter: &mut Waiter, changed: &BTreeSet<NodeName>) -> Option<(NodeName, Place)> {
        let quota_was_full = waiter.held_back;
        waiter.held_back = self.within_quota(&waiter.ask).is_err();
        if waiter.held_back {
            return None;
        }
        let Waiter { offered, uid, ask, .. } = &*waiter;
        let near = offered.iter().filter(|name| quota_was_full || changed.contains(*name));
        let Selection { best, refused, .. } =
            choose_place(near, |name: &NodeName| self.place(name.as_str(), uid, ask));
        let best = best.map(|(name, place)| (name.clone(), place));
        waiter.held_back |= refused.iter().any(|(_, refusal)| *refusal == Refusal::QuotaFull);
        best
    }

    fn call(&mut self, waiter: Waiter, node: &NodeName, place: Place, now: Instant) -> (PodUid, PodKey) {
        let (uid, key) = (waiter.uid.clone(), waiter.key.clone());
        let promisee = Promisee { uid: uid.clone(), key: key.clone(), epoch: self.epoch() };
        let plan = place.rank.plan(&waiter.ask.document).unwrap_or_default();
        self.expect(promisee, waiter.ask.clone(), plan.into(), node, now);
        self.waiting.call(waiter, node);
        (uid, key)
    }

    /// A pod that was woken was told.
    pub fn told(&mut self, uid: &PodUid) {
        self.waiting.was_called(uid);
    }

    /// A pod that was woken could not be told.
    pub fn not_told(&mut self, uid: &PodUid, now: Instant) {
        self.waiting.was_not_called(uid, now);
    }

    /// A new leader does not know whom its predecessor refused: every pod without a place that the scheduler may look at may
    /// be one of them.
    fn adopt_waiters(&mut self) {
        if std::mem::replace(&mut self.adopted_waiters, true) {
            return;
        }
        let names: Vec<NodeName> = self.nodes.keys().chain(self.statics.names()).cloned().collect();
        let offered: Vec<&str> = names.iter().map(NodeName::as_str).collect();
        for (uid, pod) in &self.pods {
            let idle = pod.can_be_scheduled() && self.place_of(uid).is_none();
            if let (true, Ok(ask)) = (idle, pod.ask()) {
                self.waiting.refused(uid.clone(), pod.key.clone(), ask, &offered, false);
            }
        }
        for name in &names {
            self.waiting.changed(name);
        }
    }
}
