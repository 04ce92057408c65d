//! The GPU models that a policy allows its pods, kind by kind.

use super::Policy;
use crate::kind::Kind;
use crate::request::GpuSelection;

impl Policy {
    /// Whether the policy allows a slice of this kind on a GPU of this model.
    #[must_use]
    pub fn allows(&self, model: &str, kind: Kind) -> bool {
        self.allows_model(model)
            && self.spec().kinds_by_model.get(model).is_none_or(|kinds| kinds.contains(&kind))
    }

    fn allows_model(&self, model: &str) -> bool {
        let models = &self.spec().models;
        models.is_empty() || models.iter().any(|allowed| allowed == model)
    }

    /// `wanted`, narrowed to the models that the policy allows by some kind. `None` if no model is left.
    pub(super) fn gpus(&self, wanted: &GpuSelection) -> Option<GpuSelection> {
        self.narrowed(wanted, |model| self.allows_model(model))
    }

    /// `wanted`, narrowed to the models that the policy allows for this kind. `None` if no model is left.
    pub(super) fn gpus_for(&self, kind: Kind, wanted: &GpuSelection) -> Option<GpuSelection> {
        self.narrowed(wanted, |model| self.allows(model, kind))
    }

    /// An empty list of models means all models. So a list that becomes empty by narrowing returns `None`.
    fn narrowed(&self, wanted: &GpuSelection, allows: impl Fn(&str) -> bool) -> Option<GpuSelection> {
        let mut gpus = wanted.clone();
        let named = if wanted.models.is_empty() { &self.spec().models } else { &wanted.models };
        if named.is_empty() {
            let closed = self.spec().kinds_by_model.keys().filter(|model| !allows(model)).cloned();
            gpus.not_models.extend(closed);
            gpus.not_models.sort_unstable();
            gpus.not_models.dedup();
            return Some(gpus);
        }
        let left = named.iter().filter(|model| allows(model) && !wanted.not_models.contains(model));
        gpus.models = left.cloned().collect();
        gpus.models.sort_unstable();
        (!gpus.models.is_empty()).then_some(gpus)
    }

    pub(super) fn models_beyond(&self, wanted: &GpuSelection) -> Vec<String> {
        wanted.models.iter().filter(|model| !self.allows_model(model)).cloned().collect()
    }
}
