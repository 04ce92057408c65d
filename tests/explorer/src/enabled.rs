//! Which events may happen next in a world.

use crate::api::Phase;
use crate::event::Event;
use crate::setting::LEASE_TIMEOUT;
use crate::world::World;
use kerf_core::ledger::reserved;

/// How many orders of ended connections may still be read late, at most.
const STRAYS: usize = 3;

impl World<'_> {
    /// All events that may happen next. Some of them may change nothing.
    pub fn enabled(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for leader in 0..self.leaders.len() {
            self.leader_may(leader, &mut events);
        }
        for node in 0..self.agents.len() {
            self.agent_may(node, &mut events);
        }
        self.api_server_may(&mut events);
        events.extend((0..self.strays.len().min(STRAYS)).map(|order| Event::Stray { order }));
        events.extend(self.next_due().map(|_| Event::Pass));
        if self.upsets == 0 {
            events.retain(|event| !event.is_upset());
        }
        events
    }

    fn leader_may(&self, leader: usize, events: &mut Vec<Event>) {
        let it = &self.leaders[leader];
        if it.frozen {
            events.push(Event::Wake { leader });
            return;
        }
        if it.overslept || it.due().any(|due| due <= self.now) {
            events.push(Event::Timers { leader });
        }
        if it.term.is_none() && self.is_lease_free() {
            events.push(Event::TakeLease { leader });
        }
        if it.term.is_none() && it.binds.is_empty() && !self.is_at_rest {
            // What a follower does or suffers matters only once it leads, and then it reads what it has not read.
            return;
        }
        events.extend([Event::Freeze { leader }, Event::CrashLeader { leader }]);
        for node in 0..self.agents.len() {
            self.leader_may_on(leader, node, events);
        }
    }

    /// Whether another replica may take the Lease.
    pub fn is_lease_free(&self) -> bool {
        self.now >= self.lease.renewed + LEASE_TIMEOUT
    }

    fn leader_may_on(&self, leader: usize, node: usize, events: &mut Vec<Event>) {
        let it = &self.leaders[leader];
        let connection = self.connections.get(&(leader, node));
        if connection.is_none_or(|connection| connection.is_cut) {
            events.push(Event::Dial { leader, node });
        }
        let Some(connection) = connection else { return };
        if connection.has_news(&self.agents[node].report) {
            events.push(Event::Read { leader, node });
        }
        if connection.has_two() {
            events.push(Event::ReadTwo { leader, node });
        }
        if it.term.is_none() {
            return;
        }
        for (pod, known) in self.pods.iter().enumerate() {
            if it.bind(pod).is_some() {
                continue;
            }
            if known.phase == Phase::Pending {
                events.push(Event::Bind { leader, pod, node });
            }
            if it.copies.may_release(&known.owner.uid, node) {
                events.push(Event::Release { leader, pod, node });
            }
        }
    }

    fn agent_may(&self, node: usize, events: &mut Vec<Event>) {
        let agent = &self.agents[node];
        events.push(Event::CrashAgent { node });
        for leader in 0..self.leaders.len() {
            let Some(connection) = self.connections.get(&(leader, node)) else { continue };
            if !connection.is_cut && self.leaders[leader].term.is_some() {
                events.push(Event::Cut { leader, node });
            }
            if !connection.to_agent.is_empty() {
                events.extend([Event::Order { leader, node }, Event::Double { leader, node }]);
            }
        }
        if !agent.waiting.is_empty() {
            events.push(Event::DiskFails { node });
        }
        if !agent.waiting.is_empty() || !agent.is_on_disk() {
            events.push(Event::Sync { node });
        }
        // An agent creates only what is on its disk.
        if agent.has_steps && agent.disk.desired == *agent.node.ledger.desired() {
            events.extend([Event::Make { node }, Event::MakeFails { node }]);
        }
        if !agent.unknown.is_empty() {
            events.push(Event::Acknowledge { node });
        }
        if agent.report.status.slices.iter().any(|slice| slice.ready_for.is_some() && slice.holder.is_none())
        {
            events.push(Event::RestartKubelet { node });
        }
        if agent.is_behind(&self.pods) {
            events.push(Event::Watch { node });
        }
        for look_up in 0..agent.look_ups.len() {
            events.extend([Event::LookedUp { node, look_up }, Event::LookUpFails { node, look_up }]);
        }
        for (pod, known) in self.pods.iter().enumerate() {
            if agent.can_start(known, pod, &self.pods) {
                events.push(Event::Allocate { node, pod });
            }
            if agent.running.contains_key(&pod) && known.phase != Phase::Bound(node) {
                events.push(Event::Free { node, pod });
            }
        }
    }

    fn api_server_may(&self, events: &mut Vec<Event>) {
        for (binding, sent) in self.bindings.iter().enumerate() {
            if sent.bound.is_some() {
                events.push(Event::LoseAnswer { binding });
                if !self.leaders[sent.leader].frozen {
                    events.push(Event::Answer { binding });
                }
            } else {
                events.extend([Event::Land { binding }, Event::Refuse { binding }]);
            }
        }
        for (pod, known) in self.pods.iter().enumerate() {
            match known.phase {
                Phase::Gone if self.setting.recreates && self.is_last_of_its_name(pod) => {
                    events.push(Event::Create { pod });
                }
                // A pod that no event has touched yet might as well not exist.
                Phase::Gone => {}
                Phase::Pending if !self.is_dealt_with(pod) => {}
                Phase::Pending => events.extend([Event::Delete { pod }, Event::Move { pod }]),
                Phase::Bound(_) | Phase::Elsewhere => events.push(Event::Delete { pod }),
            }
        }
    }

    fn is_dealt_with(&self, pod: usize) -> bool {
        let uid = &self.pods[pod].owner.uid;
        self.bindings.iter().any(|binding| binding.pod == pod)
            || self.leaders.iter().any(|leader| leader.bind(pod).is_some())
            || self.agents.iter().any(|agent| reserved(agent.node.ledger.desired(), uid).next().is_some())
    }

    fn is_last_of_its_name(&self, pod: usize) -> bool {
        let request = self.pods[pod].request;
        self.pods.iter().rposition(|other| other.request == request) == Some(pod)
    }
}
