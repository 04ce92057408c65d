//! Refuses annotations, labels and limits of kerf's group that do not exist, so that a typo never makes a pod run
//! without its GPU.

use super::errors::LimitRemedy;
use super::{AskError, PodView, limits};
use crate::keys;
use crate::quantity::{SizeError, parse_size};
use crate::resource::{ResourceName, asked_size};

/// Refuses a key of kerf's group that does not exist, and suggests the one that was probably meant.
pub(super) fn refuse_unknown(pod: &PodView) -> Result<(), AskError> {
    let unknown = pod.metadata.annotations.keys().filter(|key| is_ours(key)).find(|key| !is_known(key));
    if let Some(key) = unknown {
        return Err(AskError::UnknownKey { key: key.clone(), nearest: nearest(key) });
    }
    refuse_labels(pod)?;
    refuse_limits(pod)
}

/// Refuses labels of kerf's group. Those that kerf itself writes are accepted here, because admission removes them.
fn refuse_labels(pod: &PodView) -> Result<(), AskError> {
    let is_reserved = |key: &str| key == keys::SLICED || keys::RESERVED.contains(&key);
    let mut labels = pod.metadata.labels.iter().filter(|(key, _)| is_ours(key) && !is_reserved(key));
    labels.next().map_or(Ok(()), |(key, text)| {
        let (key, text) = (key.clone(), text.clone());
        Err(if is_known(&key) {
            AskError::Labelled { key, text }
        } else {
            AskError::UnknownLabel { nearest: nearest(&key), key, text }
        })
    })
}

/// Refuses limits and requests of kerf's group that are not the name of a size.
fn refuse_limits(pod: &PodView) -> Result<(), AskError> {
    for (container, _) in pod.spec.in_order() {
        for (limit, amount) in limits::entries(container) {
            // A size that is too small or too large passes here, because it gets its own message later.
            let is_size = asked_size(limit).is_some_and(|size| !matches!(size, Err(SizeError::Malformed(_))));
            if !is_size && (is_ours(limit) || asked_size(limit).is_some()) {
                let (field, text) = (limits::field(&container.name, limit), amount.to_owned());
                return Err(AskError::UnknownLimit { field, text, remedy: remedy(limit, amount) });
            }
        }
    }
    Ok(())
}

/// What to write instead of a limit that does not exist. `limit` may be the bare name of a size, without the group.
fn remedy(limit: &str, amount: &str) -> LimitRemedy {
    let word = limit.rsplit_once('/').map_or(limit, |(_, word)| word);
    let key = format!("{}/{word}", keys::GROUP);
    if is_known(&key) {
        let is_memory = key.starts_with(keys::GPU_MEMORY);
        let size = parse_size(amount).ok().filter(|_| is_memory);
        return LimitRemedy::Annotation { key, size };
    }
    let theirs = format!("nvidia.com/{word}");
    if matches!(
        theirs.parse(),
        Ok(ResourceName::Mig(_)
            | ResourceName::Compute(_)
            | ResourceName::MigReplica(_)
            | ResourceName::TimeSlicing(_))
    ) {
        return LimitRemedy::Name(theirs);
    }
    let number = word.strip_prefix("gpu-").unwrap_or_default();
    let size = parse_size(number).or_else(|_| parse_size(&format!("{number}Gi")));
    LimitRemedy::Size(size.ok())
}

/// Whether a key or a resource name is in kerf's group.
fn is_ours(key: &str) -> bool {
    key.split_once('/').is_some_and(|(group, _)| group == keys::GROUP)
}

fn is_known(key: &str) -> bool {
    let plain = keys::ASKED.contains(&key) || keys::RESERVED.contains(&key);
    plain || split(key).is_some_and(|(base, _)| keys::PER_CONTAINER.contains(&base))
}

/// Splits a key into its base and its container. The search starts behind the slash, because the group contains a dot
/// too.
fn split(key: &str) -> Option<(&str, &str)> {
    let slash = key.find('/')?;
    let dot = slash + key.get(slash..)?.find('.')?;
    Some((key.get(..dot)?, key.get(dot + 1..)?)).filter(|(_, container)| !container.is_empty())
}

/// The existing key that starts with `key` or is spelled most alike, for the same container if the key can name one.
fn nearest(key: &str) -> String {
    let (base, container) = split(key).map_or((key, None), |(base, container)| (base, Some(container)));
    let begun = keys::ASKED.into_iter().find(|known| known.starts_with(base));
    let nearest = begun.or_else(|| keys::ASKED.into_iter().min_by_key(|known| distance(base, known)));
    let nearest = nearest.unwrap_or(keys::GPU_MEMORY);
    match container.filter(|_| keys::PER_CONTAINER.contains(&nearest)) {
        Some(container) => format!("{nearest}.{container}"),
        None => nearest.to_owned(),
    }
}

/// The number of letters to insert, remove, change or swap to make one text of the other. Only the beginnings of long
/// texts are compared, because the user chooses a key's length.
pub(super) fn distance(a: &str, b: &str) -> usize {
    const LONGEST: usize = 64;
    let beginning = |text: &str| text.chars().take(LONGEST).collect::<String>();
    strsim::osa_distance(&beginning(a), &beginning(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_refused_with_the_nearest_key() {
        for (typo, meant) in [
            ("kerf.dev/gpu-memroy", "kerf.dev/gpu-memory"),
            ("kerf.dev/gpu-memroy.main", "kerf.dev/gpu-memory.main"),
            ("kerf.dev/gpu-memory.", "kerf.dev/gpu-memory"),
            ("kerf.dev/isolaton", "kerf.dev/isolation"),
            ("kerf.dev/isolation.main", "kerf.dev/isolation"),
            ("kerf.dev/gpumodel", "kerf.dev/gpu-model"),
            ("kerf.dev/computes.main", "kerf.dev/compute.main"),
            ("kerf.dev/", "kerf.dev/gpu-memory"),
            ("kerf.dev/gpu", "kerf.dev/gpu-memory"),
        ] {
            assert!(!is_known(typo), "{typo}");
            assert_eq!(nearest(typo), meant, "{typo}");
        }
        for known in keys::ASKED.iter().chain(&keys::RESERVED) {
            assert!(is_known(known), "{known}");
        }
        assert!(is_known("kerf.dev/gpu-count.main"));
    }
}
