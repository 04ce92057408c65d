//! Environment variables that lead past a slice. The kubelet lets a container's own win over those that the agent gives, so a
//! container that sets them would see more GPUs than its own, or go to another MPS daemon, or leave its limits.
//!
//! What comes by `envFrom` wins over the agent's too (only `env` wins over it), and is not known here: the webhook reads no
//! ConfigMap. So who has an MPS share is warned of it. It is not refused: most that use `envFrom` bring nothing of the kind, and
//! what a process may do to its own environment anyway is fenced by the daemon, or told as over-use. `NVIDIA_VISIBLE_DEVICES`
//! needs no warning: the CDI specification of a slice, which comes last, sets it.

use super::{CONTAINERS, Unfit, names};
use crate::edit::Edit;
use kerf_core::contract::RequestDocument;
use kerf_core::kind::Kind;
use kerf_core::policy::EnvironmentRule;
use serde_json::Value;

/// Which GPUs NVIDIA's container runtime shows to a container.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// Its values that show none: what containers without a GPU write.
const NOTHING_VISIBLE: [&str; 2] = ["none", "void"];
/// Where the MPS daemon is, and what a client of it may use.
const MPS_PREFIX: &str = "CUDA_MPS_";

/// Takes the variables out of the pod, each with a warning, or refuses the pod for the first of them.
pub(super) fn clear(
    edit: &mut Edit,
    document: &RequestDocument,
    rule: EnvironmentRule,
) -> Result<Vec<String>, Unfit> {
    let mut warnings = Vec::new();
    for list in CONTAINERS {
        for (index, container) in names(edit, list).into_iter().enumerate() {
            let kind = document
                .containers
                .iter()
                .find(|request| request.name == container)
                .map(kerf_core::contract::ContainerRequest::kind);
            let index = index.to_string();
            if kind == Some(Kind::Mps) {
                warnings.extend(unseen(edit.get(&["spec", list, &index, "envFrom"]), &container));
            }
            let path = ["spec", list, &index, "env"];
            for (place, name) in leading_past(edit.get(&path), kind) {
                match rule {
                    EnvironmentRule::Refuse => return Err(Unfit::Environment { container, name }),
                    EnvironmentRule::Remove => {
                        edit.remove(&[&path[..], &[&place.to_string()]].concat());
                        warnings.push(format!(
                            "container {container}: env[{name}] was taken out, it would lead past the pod's slice"
                        ));
                    }
                }
            }
        }
    }
    Ok(warnings)
}

/// What is to be known of the places that a container takes variables from.
fn unseen(sources: Option<&Value>, container: &str) -> Vec<String> {
    let sources = sources.and_then(Value::as_array).into_iter().flatten().enumerate();
    let may_lead_past = sources.filter(|(_, source)| {
        let prefix = source["prefix"].as_str().unwrap_or_default();
        MPS_PREFIX.starts_with(prefix) || prefix.starts_with(MPS_PREFIX)
    });
    let warning = |(place, source): (usize, &Value)| {
        let name = |kind: &str, key: &str| Some(format!("{kind} {}", source[key]["name"].as_str()?));
        let from = name("ConfigMap", "configMapRef").or_else(|| name("Secret", "secretRef"))?;
        Some(format!(
            "container {container}, envFrom[{place}]: kerf does not read {from}; {MPS_PREFIX}* in it would lead past the pod's slice; keep them out of it, or set a prefix"
        ))
    };
    may_lead_past.filter_map(warning).collect()
}

/// The variables of a container with a slice of this kind, or none, that lead past it: from the last to the first, so that
/// taking one out leaves the others where they are.
fn leading_past(variables: Option<&Value>, kind: Option<Kind>) -> Vec<(usize, String)> {
    let variables = variables.and_then(Value::as_array).into_iter().flatten().enumerate();
    let found = variables.filter(|(_, variable)| leads_past(variable, kind));
    let mut found: Vec<_> = found
        .map(|(place, variable)| (place, variable["name"].as_str().unwrap_or_default().to_owned()))
        .collect();
    found.reverse();
    found
}

fn leads_past(variable: &Value, kind: Option<Kind>) -> bool {
    let name = variable["name"].as_str().unwrap_or_default();
    let shows_nothing = variable["value"].as_str().is_some_and(|value| NOTHING_VISIBLE.contains(&value));
    match kind {
        // Beside a slice of another container: it gets no GPU, unless it takes them all.
        None => name == VISIBLE_DEVICES && !shows_nothing,
        // Nobody else is on the GPU: an MPS daemon of the container's own harms nobody.
        Some(Kind::Whole) => name == VISIBLE_DEVICES,
        Some(Kind::Mig | Kind::Mps | Kind::TimeSlicing) => {
            name == VISIBLE_DEVICES || name.starts_with(MPS_PREFIX)
        }
    }
}
