//! Which waiting pods may now have room.

use super::ClusterIndex;
use crate::ask::Ask;
use crate::waiting::Waiter;
use kerf_core::ledger::Promisee;
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::time::Instant;

impl ClusterIndex {
    /// All `offered` nodes refused a pod.
    pub fn refused(&mut self, uid: &PodUid, key: &PodKey, ask: &Ask, offered: &[&str]) {
        self.waiting.refused(uid.clone(), key.clone(), ask.clone(), offered);
    }

    /// A pod is being looked at, has its place or is gone.
    pub fn waits_no_longer(&mut self, uid: &PodUid) {
        self.waiting.forget(uid);
    }

    /// The waiting pods for which there is room at a node that changed, the longest waiting first. Each is expected there,
    /// so that no more are told than there is room for.
    pub fn wake(&mut self, now: Instant) -> Vec<(PodUid, PodKey)> {
        if !self.is_listed() {
            return Vec::new();
        }
        self.expire(now);
        self.adopt_waiters();
        let (pods, changed) = self.waiting.take();
        let mut woken = Vec::new();
        for waiter in pods {
            // A pod that waits for another to leave is itself expected there.
            let own = self.tentatives.take(&waiter.uid);
            if let Some((node, _)) = &own {
                self.touch(node);
            }
            let near = changed.iter().filter(|name| waiter.offered.contains(*name));
            let places = near
                .filter_map(|name| Some((self.cost(name.as_str(), &waiter.uid, &waiter.ask).ok()?, name)));
            if let Some(name) = places.min().map(|(_, name)| name.clone()) {
                woken.push(self.call(waiter, &name, now));
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

    fn call(&mut self, waiter: Waiter, node: &NodeName, now: Instant) -> (PodUid, PodKey) {
        let Waiter { uid, key, ask, .. } = waiter;
        let promisee = Promisee { uid: uid.clone(), key: key.clone(), epoch: self.epoch() };
        self.expect(promisee, ask, node, now);
        (uid, key)
    }

    /// A new leader does not know whom its predecessor refused: every pod without a place may be one of them.
    fn adopt_waiters(&mut self) {
        if std::mem::replace(&mut self.adopted_waiters, true) {
            return;
        }
        let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
        let offered: Vec<&str> = names.iter().map(NodeName::as_str).collect();
        for (uid, pod) in &self.pods {
            let idle = pod.node.is_none() && !pod.ended && !pod.deleting && !self.places.contains_key(uid);
            if let (true, Ok(ask)) = (idle, Ask::read(pod.request.as_deref())) {
                self.waiting.refused(uid.clone(), pod.key.clone(), ask, &offered);
            }
        }
        for name in &names {
            self.waiting.changed(name);
        }
    }
}
