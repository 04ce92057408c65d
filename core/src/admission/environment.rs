//! Environment variables that lead past a slice. The kubelet lets a container's own win over those that the agent gives, so a
//! container that sets them would see more GPUs than its own, or go to another MPS daemon, or leave its limits.

use super::Unfit;
use super::container::{Container, containers};
use crate::contract::{ContainerRequest, RequestDocument};
use crate::kind::Kind;
use crate::policy::EnvironmentRule;
use serde_json::Value;
use std::fmt;

/// Which GPUs NVIDIA's container runtime shows to a container.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// Its values that show none: what containers without a GPU write.
const NOTHING_VISIBLE: [&str; 2] = ["none", "void"];
/// Where the MPS daemon is, and what a client of it may use.
pub(super) const MPS_PREFIX: &str = "CUDA_MPS_";

/// A variable that is taken out of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The list of containers that has the container.
    pub list: &'static str,
    /// The container's place in the list.
    pub index: usize,
    /// The variable's place in the container's list.
    pub place: usize,
    /// The container's name.
    pub container: String,
    /// The variable's name.
    pub name: String,
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { container, name, .. } = self;
        write!(f, "container {container}: env[{name}] was taken out, it would lead past the pod's slice")
    }
}

/// The variables to take out of the pod, or the refusal for the first of them. Within a container from the last to the first,
/// so that taking one out leaves the others where they are.
pub(super) fn leading_past(
    pod: &Value,
    document: &RequestDocument,
    rule: EnvironmentRule,
) -> Result<Vec<Variable>, Unfit> {
    let mut found = Vec::new();
    for Container { list, index, name: container, json, request } in containers(pod, document) {
        let variables = json["env"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (place, variable) in
            variables.iter().enumerate().rev().filter(|(_, variable)| leads_past(variable, request))
        {
            let (container, name) = (container.to_owned(), name_of(variable).to_owned());
            match rule {
                EnvironmentRule::Refuse => return Err(Unfit::Environment { container, name }),
                EnvironmentRule::Remove => found.push(Variable { list, index, place, container, name }),
            }
        }
    }
    Ok(found)
}

fn name_of(variable: &Value) -> &str {
    variable["name"].as_str().unwrap_or_default()
}

/// Whether a variable leads past the slice of a container that asks for one, or asks for none: by any of the kinds that may serve it.
fn leads_past(variable: &Value, request: Option<&ContainerRequest>) -> bool {
    let name = name_of(variable);
    let shows_nothing = variable["value"].as_str().is_some_and(|value| NOTHING_VISIBLE.contains(&value));
    match request {
        // Beside a slice of another container: it gets no GPU, unless it takes them all.
        None => name == VISIBLE_DEVICES && !shows_nothing,
        // Nobody else is on the GPU: an MPS daemon of the container's own harms nobody.
        Some(request) if request.only_kind() == Some(Kind::Whole) => name == VISIBLE_DEVICES,
        Some(_) => name == VISIBLE_DEVICES || name.starts_with(MPS_PREFIX),
    }
}
