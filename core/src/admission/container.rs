//! The containers of a pod that can have slices, with the request of each.

use crate::contract::{ContainerRequest, RequestDocument};
use serde_json::Value;

/// The lists of a Pod's `spec` whose containers can have slices, in the API's order. Ephemeral containers are not among
/// them.
pub const CONTAINERS: [&str; 2] = ["initContainers", "containers"];

pub(super) struct Container<'p> {
    /// The list of the pod that has the container.
    pub(super) list: &'static str,
    pub(super) index: usize,
    pub(super) name: &'p str,
    pub(super) json: &'p Value,
    /// The container's request; `None` if it asks for no slice.
    pub(super) request: Option<&'p ContainerRequest>,
}

/// All containers of the pod that can have slices, in the order of [`CONTAINERS`].
pub(super) fn containers<'p>(
    pod: &'p Value,
    document: &'p RequestDocument,
) -> impl Iterator<Item = Container<'p>> {
    CONTAINERS.into_iter().flat_map(move |list| {
        let found = pod["spec"][list].as_array().into_iter().flatten().enumerate();
        found.map(move |(index, json)| {
            let name = json["name"].as_str().unwrap_or_default();
            let request = document.containers.iter().find(|request| request.name == name);
            Container { list, index, name, json, request }
        })
    })
}
