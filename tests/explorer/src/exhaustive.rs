//! Tries every sequence of events, to a depth. Shorter sequences come first, so that the first violation has the
//! shortest trace.

use crate::checks::Violation;
use crate::event::Event;
use crate::setting::Setting;
use crate::trace::Trace;
use crate::until::Until;
use crate::world::World;
use std::collections::HashMap;
use std::fmt;

/// One of this many worlds at the last depth comes to rest.
const RESTS: u64 = 64;

/// The progress of a search.
#[derive(Debug)]
pub struct Searched {
    what: String,
    /// All sequences of this many events were tried.
    depth: usize,
    /// Different worlds of all depths, and those of them that came to rest.
    worlds: u64,
    rests: u64,
    pub found: Option<Trace>,
}

impl fmt::Display for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, depth, worlds, rests, .. } = self;
        write!(f, "{what}: every {depth} events; {worlds} worlds, {rests} of them to their rest")
    }
}

/// The start of a search: an empty world, or one in which the first pod has come this far.
#[derive(Debug, Clone, Copy)]
pub enum Begin {
    New,
    Reserved,
    Marked,
    Posted,
    Bound,
}

impl Begin {
    pub const ALL: [Self; 5] = [Self::New, Self::Reserved, Self::Marked, Self::Posted, Self::Bound];

    /// The events that lead to the start, and the world there.
    pub fn events(self, setting: &Setting) -> (Vec<Event>, World<'_>) {
        let (mut world, mut events) = (World::new(setting), Vec::new());
        let is_there = |world: &World<'_>| match self {
            Self::New => true,
            Self::Reserved => !world.agents[0].answered.is_empty(),
            Self::Marked => {
                let marks = |slice: &kerf_core::contract::SliceStatus| {
                    slice.reservation.as_ref().is_some_and(|r| r.binding)
                };
                world.agents[0].report.status.slices.iter().any(marks)
            }
            Self::Posted => !world.bindings.is_empty(),
            Self::Bound => !world.agents[0].running.is_empty(),
        };
        while !is_there(&world) {
            let bind = Event::Bind { leader: 0, pod: 0, node: 0 };
            let next = world.natural().filter(|_| !events.is_empty()).unwrap_or(bind);
            events.push(next);
            // A violation is not recorded here, because a search from the beginning finds it.
            if world.apply(next).is_err() || events.len() > 100 {
                break;
            }
        }
        (events, world)
    }
}

/// Searches until the given end.
pub fn search(setting: &Setting, begin: Begin, until: Until<'_>) -> Searched {
    let (events, world) = begin.events(setting);
    let what = format!("{}, {begin:?}", setting.name);
    let mut searched = Searched { what, depth: 0, worlds: 0, rests: 0, found: None };
    let mut search = Search { until, seen: HashMap::new(), events, searched: &mut searched };
    for depth in 1.. {
        search.seen.clear();
        match search.deepen(&world, depth) {
            Ok(()) => search.searched.depth = depth,
            Err(Stop::TimeOver) => break,
            Err(Stop::Violation) => {
                until.end_all();
                search.searched.found = Trace::from_events(setting, &search.events);
                break;
            }
        }
    }
    searched
}

struct Search<'a> {
    until: Until<'a>,
    /// How many further events were tried in each world.
    seen: HashMap<u64, usize>,
    events: Vec<Event>,
    searched: &'a mut Searched,
}

/// Why a search ends. The search's events are then those that led to the place where it ended.
enum Stop {
    TimeOver,
    Violation,
}

impl From<Violation> for Stop {
    fn from(_: Violation) -> Self {
        Self::Violation
    }
}

impl Search<'_> {
    /// Tries all events in a world, and sequences of up to `depth` of them.
    fn deepen(&mut self, world: &World<'_>, depth: usize) -> Result<(), Stop> {
        for event in world.enabled() {
            if self.until.is_over() {
                return Err(Stop::TimeOver);
            }
            let mut next = world.clone();
            self.events.push(event);
            next.apply(event)?;
            self.go_on(next, depth - 1)?;
            self.events.pop();
        }
        Ok(())
    }

    fn go_on(&mut self, mut world: World<'_>, depth: usize) -> Result<(), Stop> {
        let fingerprint = world.fingerprint();
        let is_new = self.seen.get(&fingerprint).is_none_or(|tried| *tried < depth);
        if !is_new {
            return Ok(());
        }
        self.searched.worlds += u64::from(self.seen.insert(fingerprint, depth).is_none());
        if depth > 0 {
            return self.deepen(&world, depth);
        }
        if fingerprint.is_multiple_of(RESTS) {
            self.searched.rests += 1;
            world.rest()?;
        }
        Ok(())
    }
}
