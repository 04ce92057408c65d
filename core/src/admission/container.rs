//! The containers of a pod that can have slices, with what each has.

use crate::contract::{ContainerRequest, RequestDocument};
use serde_json::Value;

/// The lists of a pod's containers that can have slices, in the order of the API.
pub const CONTAINERS: [&str; 2] = ["initContainers", "containers"];

/// A container.
pub(super) struct Container<'p> {
    /// The list that it is in.
    pub(super) list: &'static str,
    /// Its place there.
    pub(super) index: usize,
    pub(super) name: &'p str,
    pub(super) json: &'p Value,
    /// What it asks for, if it asks for slices.
    pub(super) request: Option<&'p ContainerRequest>,
}

/// All of them, in order.
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
