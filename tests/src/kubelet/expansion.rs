//! Expands `$(NAME)` in commands, arguments and variables, by the kubelet's rules (kubernetes v1.36,
//! `third_party/forked/golang/expansion`).

use std::collections::BTreeMap;

/// Replaces `$(NAME)` by its value. An unknown name stays as it is, and `$$` becomes `$`.
pub(super) fn expand(text: &str, known: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(more) = after.strip_prefix('$') {
            expanded.push('$');
            rest = more;
        } else if let Some((name, more)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match known.get(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.push_str(&rest[at..rest.len() - more.len()]),
            }
            rest = more;
        } else {
            expanded.push('$');
            rest = after;
        }
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases come from the test of the original.
    #[test]
    fn references_are_expanded_as_the_kubelet_expands_them() {
        let known: BTreeMap<String, String> =
            [("A", "1"), ("B_2", "$(A)"), ("EMPTY", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (text, expected) in [
            ("plain", "plain"),
            ("$(A)", "1"),
            ("--id=$(A)-$(A)", "--id=1-1"),
            ("$(B_2)", "$(A)"),
            ("[$(EMPTY)]", "[]"),
            ("$(MISSING)", "$(MISSING)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$(A)", "$$(A)"),
            ("$A", "$A"),
            ("${A}", "${A}"),
            ("$(A", "$(A"),
            ("a$", "a$"),
            ("$($(A))", "$($(A))"),
            ("$()", "$()"),
        ] {
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }
}
