//! Chooses among inventories with the code that the extender runs on its index.

use crate::contract::RequestDocument;
use crate::inventory::NodeInventory;
use crate::names::NodeName;
use crate::packing::{Fleet, Selection, choose_place, fit};
use std::collections::BTreeMap;

/// Sorts nodes of `fleet` for a pod by the result of [`fit`](fit()) on each.
#[must_use]
pub fn choose_among<'n>(
    request: &RequestDocument,
    nodes: impl IntoIterator<Item = (&'n NodeName, &'n NodeInventory)>,
    fleet: &Fleet,
) -> Selection<&'n NodeName> {
    let nodes: BTreeMap<&NodeName, &NodeInventory> = nodes.into_iter().collect();
    choose_place(nodes.keys().copied(), |name| fit(nodes[name], request, fleet).map(|fit| fit.place()))
}
