//! What the `ConfigMap` of NVIDIA's device plugin holds: a key for each layout, and the keys that nodes still use.
//!
//! The text of a key changes only while no node has its label, because a plugin that restarts reads it again, with or
//! without pods on its node. While nodes use a layout's key, a changed text goes under a key of its own.

use super::layout::{DEFAULT_KEY, DEFAULT_TEXT, PluginLayout};
use std::collections::{BTreeMap, BTreeSet};

/// The content that the `ConfigMap` must have. `used` are the keys that nodes use, or may be rolled back to.
pub(super) fn wanted<'l>(
    layouts: impl Iterator<Item = (&'l str, &'l PluginLayout)>,
    there: &BTreeMap<String, String>,
    used: &BTreeSet<&str>,
) -> BTreeMap<String, String> {
    let mut wanted = BTreeMap::from([(DEFAULT_KEY.to_owned(), DEFAULT_TEXT.to_owned())]);
    for (name, layout) in layouts {
        let text = layout.config();
        match there.get(name) {
            Some(old) if *old != text && used.contains(name) => {
                wanted.insert(versioned(name, layout), text);
                wanted.insert(name.to_owned(), old.clone());
            }
            _ => drop(wanted.insert(name.to_owned(), text)),
        }
    }
    for (key, text) in there.iter().filter(|(key, _)| used.contains(key.as_str())) {
        wanted.entry(key.clone()).or_insert_with(|| text.clone());
    }
    wanted
}

/// The key with the layout's text. It prefers `held`, the key that the node has, so that its label does not change
/// without need.
pub(super) fn key(
    name: &str,
    layout: &PluginLayout,
    there: &BTreeMap<String, String>,
    held: Option<&str>,
) -> Option<String> {
    let (text, versioned) = (layout.config(), versioned(name, layout));
    let is_layouts = |key: &&str| *key == name || *key == versioned;
    let keys = held.filter(is_layouts).into_iter().chain([name, versioned.as_str()]);
    keys.filter(|key| there.get(*key) == Some(&text)).map(str::to_owned).next()
}

/// A key for this text of the layout only.
fn versioned(name: &str, layout: &PluginLayout) -> String {
    format!("{name}.{}", layout.digest())
}

/// The layout's name at the beginning of a key.
pub(super) fn layout_of(key: &str) -> &str {
    let is_digest = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match key.rsplit_once('.') {
        Some((name, digest)) if is_digest(digest) => name,
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin_layout::{MigStrategy, Sharing};

    fn sliced(replicas: u32) -> PluginLayout {
        let sharing = Sharing::TimeSlicing { replicas, renamed: false, fail_greater_than_one: false };
        PluginLayout { mig_strategy: MigStrategy::None, mig_config: None, sharing }
    }

    #[test]
    fn every_layout_has_a_key_and_the_default_key_changes_nothing() {
        let wanted =
            wanted([("a", &sliced(2)), ("b", &sliced(4))].into_iter(), &BTreeMap::new(), &BTreeSet::new());
        assert_eq!(wanted.keys().collect::<Vec<_>>(), ["a", "b", "default"]);
        assert_eq!(wanted["default"], "version: v1\n");
        assert_eq!(key("a", &sliced(2), &wanted, None).as_deref(), Some("a"));
    }

    #[test]
    fn a_text_in_use_changes_under_another_key() {
        let there = wanted([("a", &sliced(2))].into_iter(), &BTreeMap::new(), &BTreeSet::new());
        let changed = wanted([("a", &sliced(4))].into_iter(), &there, &["a"].into());
        assert_eq!(changed["a"], there["a"], "pods are on its node");
        let new = key("a", &sliced(4), &changed, Some("a")).unwrap();
        assert_eq!(layout_of(&new), "a");
        assert_eq!(changed[&new], sliced(4).config());

        let moved = wanted([("a", &sliced(4))].into_iter(), &changed, &[new.as_str()].into());
        assert_eq!(moved["a"], sliced(4).config(), "no node has the old text any more");
        assert_eq!(
            key("a", &sliced(4), &moved, Some(&new)).as_deref(),
            Some(new.as_str()),
            "the node keeps its label"
        );
        let end = wanted([("a", &sliced(4))].into_iter(), &moved, &["a"].into());
        assert_eq!(end.keys().collect::<Vec<_>>(), ["a", "default"]);
    }

    #[test]
    fn a_removed_layout_keeps_its_key_while_a_node_uses_it() {
        let there = wanted([("a", &sliced(2))].into_iter(), &BTreeMap::new(), &BTreeSet::new());
        let kept = wanted(std::iter::empty(), &there, &["a"].into());
        assert_eq!(kept, there);
        assert_eq!(
            wanted(std::iter::empty(), &kept, &BTreeSet::new()).keys().collect::<Vec<_>>(),
            ["default"]
        );
    }

    #[test]
    fn a_layout_name_may_contain_dots() {
        for (key, name) in [("a", "a"), ("a.0123abcd", "a"), ("a.b", "a.b"), ("a.0123abcz", "a.0123abcz")] {
            assert_eq!(layout_of(key), name);
        }
    }
}
