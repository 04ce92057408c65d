//! Finds GPU models that nothing in the cluster could serve, because a pod that asks for one would be pending forever.
//!
//! Known models are those of kerf's catalog, of the cluster's GPUs and of the policies in force. By a policy an admin
//! can announce a model that an autoscaler will bring.

use super::known::distance;
use super::selectors::{ModelList, model_lists};
use super::{AskError, GpuSelection, PodView};
use crate::mig::catalog;
use std::collections::BTreeSet;
use std::fmt;

/// The most models that a message suggests.
const NEAREST_LIMIT: usize = 3;

/// The names of the models that GPUs of the cluster may have, now or later.
#[derive(Debug, Clone)]
pub struct KnownModels<'m>(BTreeSet<&'m str>);

/// An unknown model in a list of a pod that can be served without it. Its text is a warning to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownModel {
    /// Key of the annotation with the list.
    key: &'static str,
    /// The model that the user wrote.
    model: String,
    /// The known models that are spelled most alike.
    nearest: String,
}

impl fmt::Display for UnknownModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, model, nearest } = self;
        write!(f, "metadata.annotations[{key}]: unknown GPU model {model:?}; the nearest is {nearest}")
    }
}

impl<'m> KnownModels<'m> {
    /// The models of the catalog and these others, which the cluster's GPUs have or its policies name.
    #[must_use]
    pub fn with_catalog(others: impl IntoIterator<Item = &'m str>) -> Self {
        let catalog = catalog::MODELS.iter().map(|model| model.name);
        Self(catalog.chain(others).collect())
    }

    /// The known models that a word of a list means: the one with this name in any case, else, if `parts` is true,
    /// those whose names contain it.
    fn meant(&self, word: &str, parts: bool) -> Vec<String> {
        let upper = word.to_ascii_uppercase();
        let is_meant = |known: &&&str| parts && known.to_ascii_uppercase().contains(&upper);
        let exact = self.0.iter().find(|known| known.eq_ignore_ascii_case(word));
        match exact {
            Some(exact) => vec![(*exact).to_owned()],
            None => self.0.iter().filter(is_meant).map(|known| (*known).to_owned()).collect(),
        }
    }

    /// The known models that are spelled most like `model`: those that contain it, else those at the least distance.
    fn nearest(&self, model: &str) -> String {
        let upper = model.to_ascii_uppercase();
        let parts: Vec<&str> =
            self.0.iter().copied().filter(|known| known.to_ascii_uppercase().contains(&upper)).collect();
        let far = |known: &str| distance(&upper, &known.to_ascii_uppercase());
        let least = self.0.iter().map(|known| far(known)).min();
        let alike = || self.0.iter().copied().filter(|known| Some(far(known)) == least).collect();
        let nearest: Vec<&str> = if parts.is_empty() { alike() } else { parts };
        nearest.into_iter().take(NEAREST_LIMIT).collect::<Vec<_>>().join(" or ")
    }
}

/// Replaces the models of `gpus`, which were read from `pod`, by known spellings, and returns the unknown ones.
///
/// A pod is refused if its list of accepted models has no known one. Unknown models of other lists only cause warnings,
/// because the pod can be served without them.
pub fn resolve_models<'m>(
    pod: &PodView,
    gpus: &mut GpuSelection,
    known: impl FnOnce() -> KnownModels<'m>,
) -> Result<Vec<UnknownModel>, AskError> {
    let lists = model_lists(pod)?;
    if lists.is_empty() {
        return Ok(Vec::new());
    }
    let (known, mut reported) = (known(), Vec::new());
    for ModelList { key, models, wanted, parts } in lists {
        let mut meant = BTreeSet::new();
        let mut unknown = Vec::new();
        for model in models {
            let found = known.meant(&model, parts);
            if found.is_empty() {
                let nearest = known.nearest(&model);
                unknown.push(UnknownModel { key, model, nearest });
            }
            meant.extend(found);
        }
        match unknown.first() {
            Some(first) if wanted && meant.is_empty() => return Err(first.clone().refused()),
            _ => {}
        }
        let named = unknown.iter().map(|unknown| unknown.model.clone());
        let list = if wanted { &mut gpus.models } else { &mut gpus.not_models };
        *list = meant.into_iter().chain(named).collect::<BTreeSet<String>>().into_iter().collect();
        reported.extend(unknown);
    }
    Ok(reported)
}

impl UnknownModel {
    fn refused(self) -> AskError {
        let Self { key, model, nearest } = self;
        AskError::UnknownModel { key: key.to_owned(), model, nearest }
    }
}
