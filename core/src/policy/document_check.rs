//! Finds the mistakes of a policy for pods, field by field.

use super::document_fault::{PolicyError, PolicyFault};
use super::document_field::Field;
use super::document_names::{labels, name, patterns, toleration, twice, words};
use super::{PodMatch, PolicyDocument, PolicySpec, SizeRule};
use crate::keys;
use crate::kind::Kind;
use crate::quota::Cap;
use crate::units::{LARGEST_SIZE, SizeGb};
use serde_json::{Value, json};

pub(super) fn problems(document: &PolicyDocument) -> Vec<PolicyError> {
    let PolicyDocument { api_version, kind, metadata, spec } = document;
    let mut errors = head(api_version, kind, "GpuPolicy");
    errors.extend(name(&Field::from_dotted("metadata.name"), &metadata.name));
    errors.extend(pod_match(&spec.pods));
    if let Some(reason) = &spec.deny {
        let deny = Field::from_dotted("spec.deny");
        errors.extend(reason.trim().is_empty().then(|| PolicyFault::NoReason.at_field(deny)));
        // The other fields are not checked further, because beside `deny` each of them is a mistake.
        errors.extend(beside_deny(spec));
        return errors;
    }
    // The loader fills in inherited fields before. A document that still has `extends` here lacks fields that its
    // author relies on.
    let extends = spec.extends.iter();
    errors.extend(
        extends.map(|base| PolicyFault::NoBase(base.clone()).at_field(Field::from_dotted("spec.extends"))),
    );
    errors.extend(isolation(spec));
    errors.extend(models(spec));
    errors.extend(labels(&Field::from_dotted("spec.nodeSelector"), &spec.node_selector));
    for (index, given) in spec.tolerations.iter().enumerate() {
        errors.extend(toleration(&Field::from_dotted("spec.tolerations").item(index), given));
    }
    // An empty name is allowed: pods then keep their scheduler, which calls the extender too.
    let scheduler = Some(&spec.scheduler_name).filter(|named| !named.is_empty());
    errors.extend(scheduler.and_then(|named| name(&Field::from_dotted("spec.schedulerName"), named)));
    errors.extend(zero("spec.maxCount", Some(spec.max_count)));
    errors.extend(sizes(&spec.sizes));
    errors.extend(caps(spec));
    errors.extend(size("spec.fractionOfGb", spec.fraction_of_gb));
    let sidecars = Field::from_dotted("spec.sidecars");
    errors.extend(
        spec.sidecars.iter().enumerate().filter_map(|(index, text)| name(&sidecars.item(index), text)),
    );
    errors.extend(twice(&sidecars, &spec.sidecars));
    let runtime_class = spec.runtime_class_name.as_ref();
    errors.extend(runtime_class.and_then(|class| name(&Field::from_dotted("spec.runtimeClassName"), class)));
    for (profile, weight) in spec.packing.weights.iter().filter(|(_, w)| !(1..=10_000).contains(*w)) {
        let field = Field::from_dotted("spec.packing.weights").key(profile.to_string());
        errors.push(PolicyFault::Weight(*weight).at_field(field));
    }
    errors
}

/// The mistakes of `apiVersion` and `kind`. In a document with one of them every other field may have another meaning.
pub(super) fn head(version: &str, kind: &str, expected: &str) -> Vec<PolicyError> {
    let version_error = (version != keys::API_VERSION)
        .then(|| PolicyFault::Version(version.to_owned()).at_field(Field::from_dotted("apiVersion")));
    let kind_error =
        (kind != expected).then(|| PolicyFault::Kind(kind.to_owned()).at_field(Field::from_dotted("kind")));
    version_error.into_iter().chain(kind_error).collect()
}

fn pod_match(pods: &PodMatch) -> Vec<PolicyError> {
    let field = Field::from_dotted("spec.match");
    let mut errors = patterns(&field.key("namespaces"), &pods.namespaces);
    errors.extend(labels(&field.key("namespaceLabels"), &pods.namespace_labels));
    let selector = pods.namespace_selector.iter();
    errors.extend(selector.flat_map(|selector| selector.problems(&field.key("namespaceSelector"))));
    errors.extend(labels(&field.key("labels"), &pods.labels));
    errors.extend(patterns(&field.key("priorityClasses"), &pods.priority_classes));
    errors.extend(patterns(&field.key("serviceAccounts"), &pods.service_accounts));
    errors.extend(words(&field.key("models"), &pods.models));
    errors
}

fn isolation(spec: &PolicySpec) -> Vec<PolicyError> {
    let mut errors = Vec::new();
    let default = Field::from_dotted("spec.defaultIsolation");
    match spec.default_isolation {
        None => errors.push(PolicyFault::Missing.at_field(default)),
        Some(_) if spec.isolation.is_empty() => {
            errors.push(PolicyFault::Missing.at_field(Field::from_dotted("spec.isolation")));
        }
        Some(class) if !spec.isolation.contains_key(&class) => {
            errors.push(PolicyFault::Default(class).at_field(default));
        }
        Some(_) => {}
    }
    for (class, kinds) in &spec.isolation {
        let field = Field::from_dotted("spec.isolation").key(class.to_string());
        if kinds.is_empty() {
            errors.push(PolicyFault::NoKind.at_field(field.clone()));
        }
        for (index, kind) in kinds.iter().enumerate().filter(|(_, kind)| !class.is_served_by(**kind)) {
            errors.push(PolicyFault::TooWeak { class: *class, kind: *kind }.at_field(field.item(index)));
        }
        errors.extend(twice(&field, kinds));
    }
    errors
}

/// The mistakes of fields beside `deny`. A field with its default value is accepted, because it changes nothing.
fn beside_deny(spec: &PolicySpec) -> Vec<PolicyError> {
    let alone = json!({"match": spec.pods, "deny": spec.deny});
    let alone = serde_json::from_value::<PolicySpec>(alone).and_then(serde_json::to_value);
    let (Ok(alone), Ok(Value::Object(written))) = (alone, serde_json::to_value(spec)) else {
        return Vec::new();
    };
    let beside = written.into_iter().filter(|(field, value)| alone.get(field) != Some(value));
    beside.map(|(field, _)| PolicyFault::BesideDeny.at_field(Field::from_dotted("spec").key(field))).collect()
}

/// The mistakes of `models` and `kindsByModel`.
fn models(spec: &PolicySpec) -> Vec<PolicyError> {
    let mut errors = words(&Field::from_dotted("spec.models"), &spec.models);
    for (model, kinds) in &spec.kinds_by_model {
        let field = Field::from_dotted("spec.kindsByModel").key(model);
        if !spec.models.is_empty() && !spec.models.contains(model) {
            errors.push(PolicyFault::ModelNotAllowed(model.clone()).at_field(field.clone()));
        }
        if kinds.is_empty() {
            errors.push(PolicyFault::NoKindOfGpu.at_field(field.clone()));
        }
        errors.extend(twice(&field, kinds));
    }
    // Without `models` a model that is not listed may serve every kind, so no class can be left without a GPU.
    if spec.models.is_empty() || !errors.is_empty() {
        return errors;
    }
    let serves = |kind: &Kind| {
        let mut kinds = spec.models.iter().map(|model| spec.kinds_by_model.get(model));
        kinds.any(|kinds| kinds.is_none_or(|kinds| kinds.contains(kind)))
    };
    let idle = spec.isolation.iter().filter(|(_, kinds)| !kinds.is_empty() && !kinds.iter().any(serves));
    let field = Field::from_dotted("spec.isolation");
    idle.map(|(class, _)| PolicyFault::NoModelForClass.at_field(field.key(class.to_string()))).collect()
}

fn zero(field: &str, number: Option<u32>) -> Option<PolicyError> {
    (number == Some(0)).then(|| PolicyFault::Zero.at_field(Field::from_dotted(field)))
}

fn size(field: &str, size: Option<SizeGb>) -> Option<PolicyError> {
    match size? {
        SizeGb(0) => Some(PolicyFault::Zero.at_field(Field::from_dotted(field))),
        large if large > LARGEST_SIZE => {
            Some(PolicyFault::TooLarge(large).at_field(Field::from_dotted(field)))
        }
        _ => None,
    }
}

fn sizes(rule: &SizeRule) -> Vec<PolicyError> {
    let alone = [
        size("spec.sizes.minGb", rule.min_gb),
        // A bound above every GPU is allowed, because it forbids nothing.
        zero("spec.sizes.maxGb", rule.max_gb.map(|size| size.0)),
        size("spec.sizes.stepGb", rule.step_gb),
    ];
    let errors: Vec<PolicyError> = alone.into_iter().flatten().collect();
    // Bounds are compared only if each is valid by itself.
    if errors.is_empty() { bounds(rule).into_iter().collect() } else { errors }
}

/// The mistake of sizes that are valid one by one and leave no size together.
fn bounds(rule: &SizeRule) -> Option<PolicyError> {
    let (min, max) = (rule.min_gb.unwrap_or(SizeGb(1)), rule.max_gb?);
    if max < min {
        return Some(PolicyFault::MaxBelowMin { min, max }.at_field(Field::from_dotted("spec.sizes.maxGb")));
    }
    let step = rule.step_gb?;
    let first = min.0.checked_next_multiple_of(step.0)?;
    let fault = PolicyFault::Step { step, min, max };
    (first > max.0).then(|| fault.at_field(Field::from_dotted("spec.sizes.stepGb")))
}

fn caps(spec: &PolicySpec) -> Vec<PolicyError> {
    let (pod, namespace) = ("spec.maxPerPod", "spec.quota");
    let mut errors: Vec<PolicyError> = [(pod, spec.max_per_pod), (namespace, spec.quota)]
        .into_iter()
        .flat_map(|(field, cap)| cap_alone(field, cap, &spec.sizes))
        .collect();
    if errors.is_empty() {
        let (pod, quota) = (spec.max_per_pod, spec.quota);
        for (part, pod, quota) in
            [("memoryGb", pod.memory_gb, quota.memory_gb), ("slices", pod.slices, quota.slices)]
        {
            if let (Some(pod), Some(quota)) = (pod, quota)
                && quota < pod
            {
                let field = Field::from_dotted(namespace).key(part);
                errors.push(PolicyFault::QuotaBelowPod { quota, pod }.at_field(field));
            }
        }
    }
    errors
}

fn cap_alone(field: &str, cap: Cap, sizes: &SizeRule) -> Vec<PolicyError> {
    let (memory, slices) = (format!("{field}.memoryGb"), format!("{field}.slices"));
    let zeros = [zero(&memory, cap.memory_gb), zero(&slices, cap.slices)];
    let errors: Vec<PolicyError> = zeros.into_iter().flatten().collect();
    match (cap.memory_gb, sizes.min_gb) {
        (Some(cap), Some(smallest)) if errors.is_empty() && cap < smallest.0 => {
            vec![PolicyFault::CapBelowSize { cap, smallest }.at_field(Field::from_dotted(&memory))]
        }
        _ => errors,
    }
}
