//! A policy that extends another: what it does not say itself, the other says.

use super::document_fault::{PolicyError, PolicyFault};
use super::document_field::Field;
use super::{Policy, PolicyDocument, PolicySpec};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The fields of `spec` that are never inherited. The weights of `packing` hold for the whole cluster, and one policy states them.
const OWN: [&str; 4] = ["match", "deny", "extends", "packing"];

/// A policy as its file has it, before what it extends is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDraft {
    document: PolicyDocument,
    written: BTreeSet<String>,
}

/// Where the fields of a policy come from that extends another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lineage {
    /// The policies that it extends, the nearest first; empty for one that says all itself.
    pub bases: Vec<String>,
    /// The fields of `spec` that a file has, each with the name of the policy that has it; empty as above.
    pub origins: BTreeMap<String, String>,
}

impl PolicyDraft {
    /// A document, and the fields of its `spec` that its file has.
    #[must_use]
    pub fn new(document: PolicyDocument, written: BTreeSet<String>) -> Self {
        Self { document, written }
    }

    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.document.metadata.name
    }

    /// Whether it extends another.
    #[must_use]
    pub fn is_extending(&self) -> bool {
        self.document.spec.extends.is_some()
    }

    /// Whether its own file has this field.
    #[must_use]
    pub fn has_written(&self, field: &Field) -> bool {
        use super::Step::Key;
        match field.steps() {
            [Key(spec), Key(key), ..] if spec == "spec" => self.written.contains(key),
            _ => true,
        }
    }

    /// The policy with all that it inherits, `named` being the drafts by name; or everything that is wrong with it, at least one
    /// thing.
    pub fn resolve<'d>(
        &'d self,
        named: impl Fn(&str) -> Option<&'d Self>,
    ) -> Result<Policy, Vec<PolicyError>> {
        // Beside deny nothing is inherited; that it stands there is told with the other problems.
        if !self.is_extending() || self.document.spec.deny.is_some() {
            return checked(self.document.clone(), Lineage::default());
        }
        let at = |fault: PolicyFault| fault.of(Field::of("spec.extends"));
        let bases = self.bases(named).map_err(|fault| vec![at(fault)])?;
        let (mut spec, mut origins) = (Map::new(), BTreeMap::new());
        for draft in bases.iter().rev().copied().chain([self]) {
            // A document that was read is written without an error.
            let Ok(Value::Object(mut said)) = serde_json::to_value(&draft.document.spec) else { continue };
            let is_given = |field: &&String| draft == self || !OWN.contains(&field.as_str());
            for field in draft.written.iter().filter(is_given) {
                // What is written and not said is the default, which replaces what the base says too.
                drop(spec.remove(field));
                spec.extend(said.remove_entry(field));
                origins.insert(field.clone(), draft.name().to_owned());
            }
        }
        let spec: PolicySpec = serde_json::from_value(Value::Object(spec))
            .map_err(|error| vec![at(PolicyFault::Unreadable(error.to_string()))])?;
        let document = PolicyDocument { spec: PolicySpec { extends: None, ..spec }, ..self.document.clone() };
        let bases = bases.iter().map(|base| base.name().to_owned()).collect();
        checked(document, Lineage { bases, origins })
    }

    /// What it extends, the nearest first.
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
    if problems.is_empty() { Ok(Policy::of(document, lineage)) } else { Err(problems) }
}

#[cfg(test)]
#[path = "extends_tests.rs"]
mod tests;
