//! Brings a world to rest: faults end, every part does what is due, and time passes.

use crate::api::Phase;
use crate::checks::{self, Rule, Violation};
use crate::event::Event;
use crate::world::World;
use std::time::Duration;

/// The time after which nothing of before is left: a Binding without an answer is over after 80 s, a failed lookup is
/// repeated within 30 s, a reservation lives 60 s.
const REST_DELAY: Duration = Duration::from_mins(4);

/// The longest step of the clock.
const STEP_LIMIT: Duration = Duration::from_secs(20);

/// The limit of events without any time passing. More are a violation.
const AT_ONCE: usize = 3_000;

impl World<'_> {
    /// Comes to rest, and checks what must hold then.
    pub fn rest(&mut self) -> Result<(), Violation> {
        (self.upsets, self.is_at_rest) = (0, true);
        self.strays.clear();
        let end = self.now + REST_DELAY;
        while self.now < end {
            self.settle()?;
            for pod in 0..self.pods.len() {
                self.schedule(pod)?;
            }
            self.settle()?;
            self.pass(Some(STEP_LIMIT))?;
            checks::after_each(self)?;
        }
        self.settle()?;
        checks::at_rest(self)
    }

    /// Plays all events that need neither the scheduler nor time.
    fn settle(&mut self) -> Result<(), Violation> {
        for _ in 0..AT_ONCE {
            let Some(next) = self.natural() else { return Ok(()) };
            self.apply(next)?;
        }
        Err(Violation::new(Rule::Rest, "there is no end of what happens at once".to_owned()))
    }

    /// The next event without faults, if there is one.
    pub fn natural(&self) -> Option<Event> {
        let leads = self.leaders.iter().any(|leader| leader.leads() && !leader.overslept);
        self.enabled().into_iter().find(|event| match event {
            Event::TakeLease { .. } => !leads,
            Event::Bind { .. }
            | Event::Release { .. }
            | Event::ReadTwo { .. }
            | Event::Stray { .. }
            | Event::Create { .. }
            | Event::Pass => false,
            other => !other.is_upset(),
        })
    }

    /// The scheduler tries a pod on one node after the other, until a bind is open.
    fn schedule(&mut self, pod: usize) -> Result<(), Violation> {
        let Some(leader) = self.leaders.iter().position(|leader| leader.leads()) else { return Ok(()) };
        for node in 0..self.agents.len() {
            let is_pending = self.pods[pod].phase == Phase::Pending;
            let is_free = self.leaders[leader].bind(pod).is_none();
            if is_pending && is_free && self.connections.contains_key(&(leader, node)) {
                self.apply(Event::Bind { leader, pod, node })?;
            }
        }
        Ok(())
    }
}
