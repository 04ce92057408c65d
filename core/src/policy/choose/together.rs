//! Pods of several containers: all of their slices are of one node, and no static node is like a managed one.

use super::{Denied, Outlook, on};
use crate::policy::{Policy, Supply};
use crate::request::PodAsk;

/// Chooses for one sort of node after the other: managed ones, then each sort of static ones. The first that has room for all
/// of the pod; else the first that could ever serve it.
pub(super) fn on_one_sort_of_node(policy: &Policy, supply: &Supply, ask: &PodAsk) -> Result<Outlook, Denied> {
    let managed = on(policy, &supply.without_static(), ask);
    if managed.as_ref().is_ok_and(|outlook| outlook.has_room) {
        return managed;
    }
    let groups = supply.static_groups();
    let serves = |(group, outlook): &(&Supply, Outlook)| group.serves_statically(&outlook.choice.document);
    let fixed = groups.iter().filter_map(|group| Some((group, on(policy, group, ask).ok()?)));
    let fixed: Vec<(&Supply, Outlook)> = fixed.filter(serves).collect();
    let is_served = || {
        managed
            .as_ref()
            .is_ok_and(|outlook| !outlook.choice.document.chosen.iter().all(|c| c.waits.is_empty()))
    };
    let with_room = fixed.iter().position(|(_, outlook)| outlook.has_room);
    let large = || fixed.iter().position(|(group, outlook)| group.holds_statically(&outlook.choice.document));
    // Where none is large enough now, devices that are not well may come back.
    let waits = || (!is_served() && !fixed.is_empty()).then(|| large().unwrap_or(0));
    let found = with_room.or_else(waits);
    match found.and_then(|at| fixed.into_iter().nth(at)) {
        Some((_, outlook)) => Ok(outlook),
        None => managed,
    }
}
