//! Finds environment variables that would bypass a slice. The kubelet gives a container's own variables precedence over
//! the agent's. So a container that sets them could see other GPUs than its own, use another MPS daemon, or leave its
//! limits.

use super::Unfit;
use super::container::{Container, containers};
use crate::contract::{ContainerRequest, RequestDocument};
use crate::kind::Kind;
use crate::policy::EnvironmentRule;
use serde_json::Value;
use std::fmt;

/// Selects the GPUs that NVIDIA's container runtime shows to a container.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// The values that show no GPU. Containers without a GPU use them.
const NOTHING_VISIBLE: [&str; 2] = ["none", "void"];
/// Prefix of the variables that select the MPS daemon and limit its clients.
pub(super) const MPS_PREFIX: &str = "CUDA_MPS_";

/// A variable that admission removes from a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The list of the pod that has the container.
    pub list: &'static str,
    /// The container's index in this list.
    pub index: usize,
    /// The variable's index in the container's `env`.
    pub place: usize,
    /// Name of the container that sets the variable.
    pub container: String,
    /// Name of the environment variable.
    pub name: String,
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { container, name, .. } = self;
        write!(f, "container {container}: env[{name}] was taken out, it would lead past the pod's slice")
    }
}

/// The variables to remove from the pod, or the refusal for the first of them. Each container's variables come from the
/// last to the first, so that removing one does not shift the others.
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

/// Whether a variable would bypass the slice of a container, or of another container if this one asks for none. It
/// suffices if the variable bypasses one of the kinds that may serve the container.
fn leads_past(variable: &Value, request: Option<&ContainerRequest>) -> bool {
    let name = name_of(variable);
    let shows_nothing = variable["value"].as_str().is_some_and(|value| NOTHING_VISIBLE.contains(&value));
    match request {
        // Another container has the slice. This one gets no GPU unless it makes all of them visible.
        None => name == VISIBLE_DEVICES && !shows_nothing,
        // A whole GPU has no other users, so an MPS daemon of the container's own affects no other pod.
        Some(request) if request.only_kind() == Some(Kind::Whole) => name == VISIBLE_DEVICES,
        Some(_) => name == VISIBLE_DEVICES || name.starts_with(MPS_PREFIX),
    }
}
