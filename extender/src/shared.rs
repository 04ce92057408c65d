//! Equal values that are stored once, because a large cluster repeats few of them.

use hashbrown::HashSet;
use std::borrow::Borrow;
use std::hash::Hash;
use std::sync::Arc;

/// The values that are in use.
#[derive(Debug)]
pub struct Shared<T> {
    all: HashSet<Arc<T>>,
    /// The number of values at which unused ones are dropped.
    limit: usize,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self { all: HashSet::default(), limit: 16 }
    }
}

impl<T: Eq + Hash> Shared<T> {
    /// Returns the stored value that equals this one. If there is none, stores this one.
    pub fn share(&mut self, value: impl Borrow<T> + Into<Arc<T>>) -> Arc<T> {
        if let Some(known) = self.all.get(value.borrow()) {
            return known.clone();
        }
        if self.all.len() >= self.limit {
            self.all.retain(|value| Arc::strong_count(value) > 1);
            self.limit = 2 * self.all.len() + 16;
        }
        let value = value.into();
        self.all.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_stored_once_and_only_while_something_has_them() {
        let mut shared = Shared::default();
        let first = shared.share(1);
        assert!(Arc::ptr_eq(&first, &shared.share(Arc::new(1))));
        assert!(!Arc::ptr_eq(&first, &shared.share(2)));
        for value in 0..1000 {
            drop(shared.share(value));
        }
        assert!(shared.all.len() < 50, "{}", shared.all.len());
        assert!(Arc::ptr_eq(&first, &shared.share(1)), "one that is in use stays");
    }
}
