//! Annotations of kerf's group that kerf does not know: a typo must not make a pod run without its GPU.

use super::{AskError, PodView};
use crate::keys;

/// Refuses an annotation that is written like kerf's and is none, with the key that is spelled most alike.
pub(super) fn refuse_unknown(pod: &PodView) -> Result<(), AskError> {
    let ours = |key: &&String| key.split_once('/').is_some_and(|(group, _)| group == keys::GROUP);
    let unknown = pod.metadata.annotations.keys().filter(ours).find(|key| !is_known(key));
    unknown.map_or(Ok(()), |key| Err(AskError::UnknownKey { key: key.clone(), nearest: nearest(key) }))
}

fn is_known(key: &str) -> bool {
    let plain = keys::ASKED.contains(&key) || keys::RESERVED.contains(&key);
    plain || split(key).is_some_and(|(base, _)| keys::PER_CONTAINER.contains(&base))
}

/// A key for one container, and the container. Only the group has dots beside the one before a container's name.
fn split(key: &str) -> Option<(&str, &str)> {
    let slash = key.find('/')?;
    let dot = slash + key.get(slash..)?.find('.')?;
    Some((key.get(..dot)?, key.get(dot + 1..)?)).filter(|(_, container)| !container.is_empty())
}

/// The key that users may write which is spelled most like `key`, for the same container where it can name one.
fn nearest(key: &str) -> String {
    let (base, container) = split(key).map_or((key, None), |(base, container)| (base, Some(container)));
    let nearest =
        keys::ASKED.into_iter().min_by_key(|known| distance(base, known)).unwrap_or(keys::GPU_MEMORY);
    match container.filter(|_| keys::PER_CONTAINER.contains(&nearest)) {
        Some(container) => format!("{nearest}.{container}"),
        None => nearest.to_owned(),
    }
}

/// How many letters must be put in, taken out, changed or swapped with the next to make one text of the other (optimal
/// string alignment). Long texts are compared by their beginnings, for a key's length is the user's.
fn distance(a: &str, b: &str) -> usize {
    const LONGEST: usize = 64;
    let (a, b): (Vec<char>, Vec<char>) =
        (a.chars().take(LONGEST).collect(), b.chars().take(LONGEST).collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, right) in b.iter().enumerate() {
            let changed = row[j] + usize::from(left != right);
            let mut best = changed.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && *left == b[j - 1] && a[i - 1] == *right {
                best = best.min(before[j - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_told_with_the_key_that_was_meant() {
        for (typo, meant) in [
            ("kerf.dev/gpu-memroy", "kerf.dev/gpu-memory"),
            ("kerf.dev/gpu-memroy.main", "kerf.dev/gpu-memory.main"),
            ("kerf.dev/gpu-memory.", "kerf.dev/gpu-memory"),
            ("kerf.dev/isolaton", "kerf.dev/isolation"),
            ("kerf.dev/isolation.main", "kerf.dev/isolation"),
            ("kerf.dev/gpumodel", "kerf.dev/gpu-model"),
            ("kerf.dev/computes.main", "kerf.dev/compute.main"),
            ("kerf.dev/", "kerf.dev/compute"),
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
