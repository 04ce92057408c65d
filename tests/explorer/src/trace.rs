//! A sequence of events that violates a rule, as short as it can be made, and its text.

use crate::checks::{Rule, Violation};
use crate::event::Event;
use crate::setting::Setting;
use crate::world::World;
use std::fmt;

/// A violation, and the events that lead to it.
#[derive(Debug)]
pub struct Trace {
    violation: Violation,
    /// The remaining events. More may follow while the world comes to rest.
    pub events: Vec<Event>,
    lines: Vec<String>,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "VIOLATION {}", self.violation)?;
        writeln!(f, "after {} events:", self.events.len())?;
        for (number, line) in self.lines.iter().enumerate() {
            if number == self.events.len() {
                writeln!(f, "-- all comes to rest:")?;
            }
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

impl Trace {
    /// Shortens these events to those that the violation needs; `None` if they violate nothing.
    pub fn from_events(setting: &Setting, events: &[Event]) -> Option<Self> {
        let (Violation { rule, .. }, events) = replay(setting, events, None)?;
        let events = shortest(events, |events| replay(setting, events, Some(rule)).is_some());
        let (violation, events) = replay(setting, &events, Some(rule))?;
        let mut world = World::new(setting);
        world.story = Some(Vec::new());
        if events.iter().all(|event| world.apply(*event).is_ok()) {
            drop(world.rest());
        }
        Some(Self { violation, events, lines: world.story.unwrap_or_default() })
    }
}

/// Removes events, first many at once and then one at a time, as long as what is left `violates`.
pub fn shortest<E: Clone>(mut events: Vec<E>, violates: impl Fn(&[E]) -> bool) -> Vec<E> {
    let mut size = events.len();
    while size > 0 {
        let (mut start, before) = (0, events.len());
        while start < events.len() {
            let end = (start + size).min(events.len());
            let fewer = [&events[..start], &events[end..]].concat();
            if violates(&fewer) {
                events = fewer;
            } else {
                start = end;
            }
        }
        // An event that was necessary may become needless once others are gone, so single events are tried again.
        size = if events.len() < before && size == 1 { 1 } else { size / 2 };
    }
    events
}

/// The violation of these events, or of what follows until the world is at rest. If `rule` is given, only a violation
/// of it counts. Returns the events up to the violation, without those that cannot happen.
fn replay(setting: &Setting, events: &[Event], rule: Option<Rule>) -> Option<(Violation, Vec<Event>)> {
    let (mut world, mut happened) = (World::new(setting), Vec::new());
    let is_meant = |violation: &Violation| rule.is_none_or(|rule| violation.rule == rule);
    for event in events {
        if !world.enabled().contains(event) {
            continue;
        }
        happened.push(*event);
        if let Err(violation) = world.apply(*event) {
            return Some((violation, happened)).filter(|(violation, _)| is_meant(violation));
        }
    }
    let violation = world.rest().err()?;
    Some((violation, happened)).filter(|(violation, _)| is_meant(violation))
}
