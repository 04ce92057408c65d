//! Reads kerf's annotations of a pod, before it is known which containers ask.

use super::errors::Field;
use super::selectors::selection;
use super::{AskError, ContainerAsk, GpuSelection, PodView, Role, Want, limits};
use crate::keys;
use crate::kind::IsolationClass;
use crate::mig::{ComputeProfile, Profile};
use crate::quantity::parse_memory;
use crate::units::{ComputePercent, MemoryMib};
use std::collections::BTreeMap;

/// kerf's annotations of a pod, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Annotations {
    /// The isolation class; `None` if no annotation names one.
    pub isolation: Option<IsolationClass>,
    /// Whether a slice's real memory must reach the size.
    pub strict: bool,
    /// The GPUs that may serve the pod.
    pub gpus: GpuSelection,
    /// The asks by annotation, each with the memory that it names.
    pub asks: Vec<(ContainerAsk, Option<MemoryMib>)>,
    /// The containers that have an annotation for their count.
    pub counted: Vec<String>,
    /// The key and the share of compute, by container.
    compute: BTreeMap<String, (String, ComputePercent)>,
    /// The share of compute of containers without their own.
    compute_of_all: Option<ComputePercent>,
}

/// Finds the container that a key without a container's name means.
pub(super) type Only<'p> = dyn Fn(&str) -> Result<&'p str, AskError> + 'p;

impl Annotations {
    /// Reads the annotations. `only` finds the container that a key without a name means.
    pub fn read<'p>(pod: &'p PodView, only: &Only<'p>) -> Result<Self, AskError> {
        let annotations = &pod.metadata.annotations;
        let mut asks = asks(pod, only)?;
        let counted = counts(pod, only, &mut asks)?;
        if let Some(text) =
            annotations.get(keys::MOVABLE).filter(|text| !matches!(text.as_str(), "true" | "false"))
        {
            return Err(AskError::Movable(text.clone()));
        }
        let strict = match annotations.get(keys::MEMORY_MATCH).map(String::as_str) {
            None | Some("nominal") => false,
            Some("strict") => true,
            Some(other) => return Err(AskError::MemoryMatch(other.to_owned())),
        };
        let mut compute = BTreeMap::new();
        // Without `only`, because the key without a container's name is for all containers here.
        for (key, text, container, _) in per_container(pod, keys::COMPUTE, None)? {
            compute.insert(container.to_owned(), (key.to_owned(), percent(key, text)?));
        }
        let for_all = annotations.get(keys::COMPUTE).map(|text| percent(keys::COMPUTE, text));
        Ok(Self {
            isolation: annotations.get(keys::ISOLATION).map(|text| text.parse()).transpose()?,
            strict,
            gpus: selection(pod)?,
            asks,
            counted,
            compute,
            compute_of_all: for_all.transpose()?,
        })
    }

    /// The share of compute for a container, with the key that states it.
    pub fn compute_of(&self, container: &str) -> Option<(&str, ComputePercent)> {
        let own = self.compute.get(container).map(|(key, percent)| (key.as_str(), *percent));
        own.or(self.compute_of_all.map(|percent| (keys::COMPUTE, percent)))
    }

    /// Refuses a share of compute for a container that asks for no slice.
    pub fn refuse_idle_compute(&self, asks: impl Fn(&str) -> bool) -> Result<(), AskError> {
        let idle = self.compute.iter().find(|(container, _)| !asks(container));
        idle.map_or(Ok(()), |(container, (key, _))| {
            Err(AskError::NothingAsked { key: key.clone(), container: format!("container {container}") })
        })
    }
}

/// The app container that a key without a name means. It is the one that `kubectl.kubernetes.io/default-container`
/// names, else the only one that no injector added.
///
/// An injector may name the default container too, as Istio does. So kerf refuses a pod with several containers if it
/// runs before Istio, and accepts it if it runs after.
pub(super) fn only_container<'p>(
    pod: &'p PodView,
    is_sidecar: impl Fn(&str) -> bool,
    key: &str,
) -> Result<&'p str, AskError> {
    let (key, apps) = (key.to_owned(), pod.spec.containers.as_slice());
    let Some(first) = apps.first() else { return Err(AskError::NoContainers { key }) };
    let own = pod.spec.own_containers(is_sidecar);
    let example = own.first().map_or(&first.name, |container| &container.name).clone();
    if let Some(name) = pod.metadata.annotations.get(keys::DEFAULT_CONTAINER) {
        let named = apps.iter().find(|container| container.name == *name);
        let (default, container) = (keys::DEFAULT_CONTAINER, name.clone());
        let missing = AskError::DefaultContainer { key, default, container, first: example };
        return named.map(|container| container.name.as_str()).ok_or(missing);
    }
    match own[..] {
        [only] => Ok(&only.name),
        _ => Err(AskError::Ambiguous { key, first: example }),
    }
}

/// The annotations `base` and `base.<container>`, each as key, text, container and role.
fn per_container<'p>(
    pod: &'p PodView,
    base: &str,
    only: Option<&Only<'p>>,
) -> Result<Vec<(&'p str, &'p str, &'p str, Role)>, AskError> {
    let mut found = Vec::new();
    for (key, text) in &pod.metadata.annotations {
        let Some(rest) = key.strip_prefix(base) else { continue };
        let name = match (rest.strip_prefix('.'), only) {
            (Some(container), _) => container,
            (None, Some(only)) if rest.is_empty() => only(key)?,
            (None, _) => continue,
        };
        let named = pod.spec.in_order().find(|(container, _)| container.name == name);
        let no_container = || AskError::NoContainer { key: key.clone(), container: name.to_owned() };
        found.push((key.as_str(), text.as_str(), name, named.ok_or_else(no_container)?.1));
    }
    Ok(found)
}

fn asks<'p>(pod: &'p PodView, only: &Only<'p>) -> Result<Vec<(ContainerAsk, Option<MemoryMib>)>, AskError> {
    let mut asks: Vec<(ContainerAsk, Option<MemoryMib>)> = Vec::new();
    for base in [keys::GPU_MEMORY, keys::GPU_PROFILE] {
        for (key, text, container, role) in per_container(pod, base, Some(only))? {
            let (want, memory) =
                if base == keys::GPU_MEMORY { size(key, text)? } else { profile(key, text)? };
            let ask = ContainerAsk::new(container, role, want, 1, format!("{key}: {text}"));
            match asks.iter().find(|(first, _)| first.name == container) {
                Some((first, _)) if first.want != want => return Err(first.twice(&ask)),
                Some(_) => {}
                None => asks.push((ask, memory)),
            }
        }
    }
    Ok(asks)
}

fn size(key: &str, text: &str) -> Result<(Want, Option<MemoryMib>), AskError> {
    let named = |source| AskError::Size { field: Field::Annotation(key.to_owned()), source };
    let (size, memory) = parse_memory(text).map_err(named)?;
    Ok((Want::Size(size), Some(memory)))
}

fn profile(key: &str, text: &str) -> Result<(Want, Option<MemoryMib>), AskError> {
    let want = text.parse::<Profile>().map(Want::Profile);
    let named = |source| AskError::Profile { key: key.to_owned(), source };
    Ok((want.or_else(|_| text.parse::<ComputeProfile>().map(Want::Compute).map_err(named))?, None))
}

/// Sets the counts of the asks, and returns the containers that have one.
fn counts<'p>(
    pod: &'p PodView,
    only: &Only<'p>,
    asks: &mut [(ContainerAsk, Option<MemoryMib>)],
) -> Result<Vec<String>, AskError> {
    let mut counted: Vec<String> = Vec::new();
    for (key, text, container, _) in per_container(pod, keys::GPU_COUNT, Some(only))? {
        let count = limits::count(Field::Annotation(key.to_owned()), text)?;
        let nothing =
            || AskError::NothingAsked { key: key.to_owned(), container: format!("container {container}") };
        let (ask, _) = asks.iter_mut().find(|(ask, _)| ask.name == container).ok_or_else(nothing)?;
        if counted.iter().any(|name| name == container) && ask.count != count {
            return Err(ask.twice(&ContainerAsk { by: format!("{key}: {text}"), ..ask.clone() }));
        }
        ask.count = count;
        counted.push(container.to_owned());
    }
    Ok(counted)
}

fn percent(key: &str, text: &str) -> Result<ComputePercent, AskError> {
    let percent = text.trim().trim_end_matches('%').parse::<u8>().ok().and_then(ComputePercent::new);
    let field = Field::Annotation(key.to_owned());
    percent.ok_or_else(|| AskError::Compute { field, text: text.to_owned() })
}
