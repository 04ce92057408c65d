//! A label selector for namespaces, with the rules of Kubernetes' `LabelSelector`.

use super::document_fault::{PolicyError, PolicyFault};
use super::document_field::Field;
use super::document_names::{label_key, label_value, labels, twice};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

type Labels = BTreeMap<String, String>;

/// `spec.match.namespaceSelector` of a policy: a namespace must meet all of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NamespaceSelector {
    /// Labels, with their values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: Labels,
    /// Conditions that the labels must meet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelExpression>,
}

/// A condition on one label of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LabelExpression {
    /// The label's key.
    pub key: String,
    /// How its value is compared.
    pub operator: LabelOperator,
    /// The values, for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a label's value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum LabelOperator {
    /// It is one of the values.
    In,
    /// It is none of the values, or the label is absent.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl NamespaceSelector {
    /// The first expression that a namespace with these labels does not meet.
    pub(super) fn unmet(&self, found: &Labels) -> Option<LabelExpression> {
        self.expressions().find(|expression| !expression.is_met_by(found))
    }

    /// The whole selector as expressions.
    pub(super) fn expressions(&self) -> impl Iterator<Item = LabelExpression> {
        expressions(&self.match_labels).chain(self.match_expressions.iter().cloned())
    }

    pub(super) fn problems(&self, field: &Field) -> Vec<PolicyError> {
        if *self == Self::default() {
            return vec![PolicyFault::EmptySelector.at_field(field.clone())];
        }
        let mut errors = labels(&field.key("matchLabels"), &self.match_labels);
        for (index, expression) in self.match_expressions.iter().enumerate() {
            errors.extend(expression.problems(&field.key("matchExpressions").item(index)));
        }
        errors
    }
}

/// `matchLabels` in the form of expressions.
pub(super) fn expressions(labels: &Labels) -> impl Iterator<Item = LabelExpression> {
    labels.iter().map(|(key, value)| LabelExpression {
        key: key.clone(),
        operator: LabelOperator::In,
        values: vec![value.clone()],
    })
}

impl LabelExpression {
    fn is_met_by(&self, found: &Labels) -> bool {
        let found = found.get(&self.key);
        let is_listed = found.is_some_and(|found| self.values.contains(found));
        match self.operator {
            LabelOperator::In => is_listed,
            LabelOperator::NotIn => !is_listed,
            LabelOperator::Exists => found.is_some(),
            LabelOperator::DoesNotExist => found.is_none(),
        }
    }

    /// Whether every namespace that meets `other` meets this one. Expressions on different keys never follow from each other.
    pub(super) fn follows_from(&self, other: &Self) -> bool {
        use LabelOperator::{DoesNotExist, Exists, In, NotIn};
        let all_of = |few: &[String], many: &[String]| few.iter().all(|value| many.contains(value));
        self.key == other.key
            && match (self.operator, other.operator) {
                (In, In) => all_of(&other.values, &self.values),
                (NotIn, NotIn) => all_of(&self.values, &other.values),
                (NotIn, In) => !other.values.iter().any(|value| self.values.contains(value)),
                (Exists, Exists | In) | (NotIn | DoesNotExist, DoesNotExist) => true,
                _ => false,
            }
    }

    fn problems(&self, field: &Field) -> Vec<PolicyError> {
        let mut errors: Vec<PolicyError> = label_key(&field.key("key"), &self.key).into_iter().collect();
        let values = field.key("values");
        let takes_values = matches!(self.operator, LabelOperator::In | LabelOperator::NotIn);
        if takes_values == self.values.is_empty() {
            errors.push(PolicyFault::Values(self.operator).at_field(values.clone()));
        }
        let named = self.values.iter().enumerate().filter(|(_, value)| !value.is_empty());
        errors.extend(named.filter_map(|(index, value)| label_value(&values.item(index), value)));
        errors.extend(twice(&values, &self.values));
        errors
    }
}

impl fmt::Display for LabelExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, values } = self;
        write!(f, "{key} {operator}")?;
        if values.is_empty() { Ok(()) } else { write!(f, " ({})", values.join(", ")) }
    }
}

impl fmt::Display for LabelOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_reads_a_label_as_kubernetes_does() {
        let met = |operator, found: Option<&str>| {
            let labels = found.map(|value| ("tier".to_owned(), value.to_owned())).into_iter().collect();
            LabelExpression { key: "tier".to_owned(), operator, values: vec!["a".to_owned()] }
                .is_met_by(&labels)
        };
        for (operator, listed, other, absent) in [
            (LabelOperator::In, true, false, false),
            (LabelOperator::NotIn, false, true, true),
            (LabelOperator::Exists, true, true, false),
            (LabelOperator::DoesNotExist, false, false, true),
        ] {
            let found = [Some("a"), Some("b"), None].map(|found| met(operator, found));
            assert_eq!(found, [listed, other, absent], "{operator}");
        }
    }
}
