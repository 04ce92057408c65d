//! Policies that extend others: a field that a policy does not write comes from the policy that it extends.

use super::document_fault::{PolicyError, PolicyFault};
use super::document_field::Field;
use super::{Policy, PolicyDocument, PolicySpec};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The fields of `spec` that are never inherited. The weights of `packing` hold for the whole cluster, so only one
/// policy states them.
const OWN: [&str; 4] = ["match", "deny", "extends", "packing"];

/// A policy as its file has it, before inherited fields are filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDraft {
    document: PolicyDocument,
    written: BTreeSet<String>,
}

/// The origins of an extending policy's fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lineage {
    /// The policies that it extends, the nearest first; empty if it extends none.
    pub bases: Vec<String>,
    /// For each field of `spec` that a file writes, the name of the policy that writes it; empty if the policy extends
    /// none.
    pub origins: BTreeMap<String, String>,
}

impl PolicyDraft {
    /// A draft of a document; `written` has the fields of `spec` that its file writes.
    #[must_use]
    pub fn new(document: PolicyDocument, written: BTreeSet<String>) -> Self {
        Self { document, written }
    }

    /// The policy's `metadata.name`, by which others extend it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.document.metadata.name
    }

    /// Whether the policy has `spec.extends`.
    #[must_use]
    pub fn is_extending(&self) -> bool {
        self.document.spec.extends.is_some()
    }

    /// Whether its own file writes this field; true for every field outside of `spec`.
    #[must_use]
    pub fn has_written(&self, field: &Field) -> bool {
        use super::Step::Key;
        match field.steps() {
            [Key(spec), Key(key), ..] if spec == "spec" => self.written.contains(key),
            _ => true,
        }
    }

    /// Makes the policy with all fields that it inherits; `named` finds drafts by name. On failure it returns all
    /// mistakes, at least one.
    pub fn resolve<'d>(
        &'d self,
        named: impl Fn(&str) -> Option<&'d Self>,
    ) -> Result<Policy, Vec<PolicyError>> {
        // A policy with `deny` inherits nothing. The check below reports `extends` beside `deny` with the other
        // mistakes.
        if !self.is_extending() || self.document.spec.deny.is_some() {
            return checked(self.document.clone(), Lineage::default());
        }
        let at_extends = |fault: PolicyFault| fault.at_field(Field::from_dotted("spec.extends"));
        let bases = self.bases(named).map_err(|fault| vec![at_extends(fault)])?;
        let (mut spec, mut origins) = (Map::new(), BTreeMap::new());
        // The farthest base comes first, so that nearer policies replace its fields.
        for draft in bases.iter().rev().copied().chain([self]) {
            // Serialization cannot fail here, because the document was read from the same form.
            let Ok(Value::Object(mut said)) = serde_json::to_value(&draft.document.spec) else { continue };
            let is_given = |field: &&String| draft == self || !OWN.contains(&field.as_str());
            for field in draft.written.iter().filter(is_given) {
                // The base's value is removed first, because a field that is written with its default value is not
                // serialized and must replace it too.
                drop(spec.remove(field));
                spec.extend(said.remove_entry(field));
                origins.insert(field.clone(), draft.name().to_owned());
            }
        }
        let spec: PolicySpec = serde_json::from_value(Value::Object(spec))
            .map_err(|error| vec![at_extends(PolicyFault::Unreadable(error.to_string()))])?;
        let document = PolicyDocument { spec: PolicySpec { extends: None, ..spec }, ..self.document.clone() };
        let bases = bases.iter().map(|base| base.name().to_owned()).collect();
        checked(document, Lineage { bases, origins })
    }

    /// The policies that it extends, the nearest first.
    fn bases<'d>(&'d self, named: impl Fn(&str) -> Option<&'d Self>) -> Result<Vec<&'d Self>, PolicyFault> {
        let mut bases: Vec<&Self> = Vec::new();
        let mut last = self;
        while let Some(name) = &last.document.spec.extends {
            let base = named(name).ok_or_else(|| PolicyFault::NoBase(name.clone()))?;
            if base.document.spec.deny.is_some() {
                return Err(PolicyFault::DenyingBase(name.clone()));
            }
            if base == self || bases.contains(&base) {
                let chain = [self].into_iter().chain(bases).chain([base]).map(Self::name);
                return Err(PolicyFault::Cycle(chain.collect::<Vec<_>>().join(" → ")));
            }
            bases.push(base);
            last = base;
        }
        Ok(bases)
    }
}

fn checked(document: PolicyDocument, lineage: Lineage) -> Result<Policy, Vec<PolicyError>> {
    let problems = document.problems();
    if problems.is_empty() { Ok(Policy::from_document(document, lineage)) } else { Err(problems) }
}

#[cfg(test)]
#[path = "extends_tests.rs"]
mod tests;
