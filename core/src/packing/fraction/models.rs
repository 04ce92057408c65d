//! GPU models as small numbers, and sets of models.

use thiserror::Error;

/// The most models of one fleet: a set of them is one word of 64 bits.
pub const MODELS_LIMIT: usize = 64;

/// The number of a GPU model in a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(u8);

impl ModelId {
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The set of models that a request allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelSet(u64);

impl ModelSet {
    /// Any model, including later ones.
    pub const ANY: Self = Self(u64::MAX);

    /// Whether the set contains the model.
    #[must_use]
    pub fn contains(self, model: ModelId) -> bool {
        self.has(model.index())
    }

    pub(super) fn has(self, model: usize) -> bool {
        self.0 >> model & 1 == 1
    }
}

impl FromIterator<ModelId> for ModelSet {
    fn from_iter<I: IntoIterator<Item = ModelId>>(models: I) -> Self {
        Self(models.into_iter().fold(0, |set, model| set | 1 << model.0))
    }
}

/// The fleet has more models than a set can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("more than {MODELS_LIMIT} GPU models: split the fleet")]
pub struct TooManyModels;

/// The names of a fleet's models, in the order of their numbers.
#[derive(Debug, Clone, Default)]
pub struct Models(Vec<String>);

impl Models {
    /// The number of the model with this name. A new name gets the next number.
    pub fn intern(&mut self, name: &str) -> Result<ModelId, TooManyModels> {
        let known = self.0.iter().position(|known| known == name);
        let index = known.unwrap_or(self.0.len());
        let id = u8::try_from(index).ok().filter(|_| index < MODELS_LIMIT).ok_or(TooManyModels)?;
        if known.is_none() {
            self.0.push(name.to_owned());
        }
        Ok(ModelId(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_the_65th_model_is_refused() {
        let mut models = Models::default();
        let t4 = models.intern("T4").unwrap();
        for n in 1..64 {
            models.intern(&n.to_string()).unwrap();
        }
        assert_eq!(models.intern("T4"), Ok(t4));
        assert_eq!(models.intern("one more"), Err(TooManyModels));
    }

    #[test]
    fn a_set_has_its_models_and_any_has_all() {
        let mut models = Models::default();
        let (a, b) = (models.intern("a").unwrap(), models.intern("b").unwrap());
        let only_b: ModelSet = [b].into_iter().collect();
        assert!(only_b.contains(b) && !only_b.contains(a));
        assert!(ModelSet::ANY.contains(a) && ModelSet::ANY.contains(b));
    }
}
