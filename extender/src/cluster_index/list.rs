//! The list of all objects with which a watch begins, and begins again after a failure.

use hashbrown::HashSet;
use std::hash::Hash;

/// What a watch has listed.
#[derive(Debug)]
pub(super) struct List<K> {
    /// The objects of the list that is under way.
    shown: Option<HashSet<K>>,
    has_ended: bool,
    is_awaited: bool,
}

impl<K> Default for List<K> {
    fn default() -> Self {
        Self { shown: None, has_ended: false, is_awaited: false }
    }
}

impl<K: Clone + Eq + Hash> List<K> {
    /// Makes answers wait for the end of a list.
    pub fn await_end(&mut self) {
        self.is_awaited = true;
    }

    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub fn begin(&mut self) {
        self.shown = Some(HashSet::new());
    }

    /// Adds an object to the list that is under way, if there is one.
    pub fn add(&mut self, key: &K) {
        if let Some(shown) = &mut self.shown {
            shown.insert(key.clone());
        }
    }

    /// Ends the list, and returns the objects that it contained. `None` if none was started.
    pub fn end(&mut self) -> Option<HashSet<K>> {
        (self.has_ended, self.is_awaited) = (true, false);
        self.shown.take()
    }
}
