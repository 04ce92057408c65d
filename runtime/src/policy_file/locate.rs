//! The line and column of a field in a text.

use kerf_core::policy::{Field, Step};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use std::fmt;

/// The line and column of `field` in a document's text, or of the nearest field around it that is written there. Both
/// count from 1, and are 0 if the text does not parse.
pub(super) fn locate(text: &str, field: &Field) -> (u64, u64) {
    let Ok(root) = serde_saphyr::from_str::<Spanned<Node>>(text) else { return (0, 0) };
    let mut node = &root;
    for step in field.steps() {
        match node.value.child(step) {
            Some(child) => node = child,
            None => break,
        }
    }
    (node.referenced.line(), node.referenced.column())
}

/// A value of a document. It keeps only the places, because nothing reads the values here.
enum Node {
    Mapping(Vec<(String, Spanned<Node>)>),
    List(Vec<Spanned<Node>>),
    Scalar,
}

impl Node {
    fn child(&self, step: &Step) -> Option<&Spanned<Self>> {
        match (self, step) {
            (Self::Mapping(entries), Step::Key(key)) => {
                entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            (Self::List(items), Step::Index(index)) => items.get(*index),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

/// Visits of values without children.
macro_rules! scalars {
    ($($visit:ident($type:ty))+) => {
        $(fn $visit<E>(self, _: $type) -> Result<Node, E> {
            Ok(Node::Scalar)
        })+
    };
}

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    scalars! { visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_i128(i128) visit_u128(u128) visit_f64(f64) visit_str(&str) }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut mapping: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = mapping.next_key::<Option<String>>()? {
            match key {
                Some(key) => entries.push((key, mapping.next_value()?)),
                None => drop(mapping.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Node::Mapping(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_located_or_else_the_nearest_one_around_it() {
        let text = "\n\nspec:\n  sizes: {minGb: 5, maxGb: 1}\n  gpus:\n  - kinds: [mig]\n  - kinds: [mps,\n      mig]\n";
        let sizes = Field::from_dotted("spec.sizes");
        let kinds = Field::from_dotted("spec.gpus").item(1).key("kinds");
        for (field, place) in [
            (sizes.key("maxGb"), (4, 28)),
            (sizes.clone(), (4, 10)),
            (sizes.key("stepGb"), (4, 10)),
            (kinds.item(1), (8, 7)),
            (kinds.item(7), (7, 12)),
        ] {
            assert_eq!(locate(text, &field), place, "{field}");
        }
        assert_eq!(locate("spec: [", &sizes), (0, 0));
    }
}
