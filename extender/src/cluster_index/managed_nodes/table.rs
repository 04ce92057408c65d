//! The managed nodes, by name, with the results of the last requests.
//!
//! A filter asks every node that the scheduler offers, thousands in a large cluster. Reading that many nodes costs more
//! than everything else in the filter, so what it reads of an unchanged node lies outside of it and close together.

use super::node::{Found, IndexedNode};
use crate::assumed::AssumedPods;
use crate::objects::ask::Ask;
use hashbrown::HashMap;
use kerf_core::names::NodeName;
use kerf_core::packing::{Fleet, Refusal};
use std::sync::Arc;

/// For how many different requests the nodes' results are kept. A burst of pods comes from few templates.
const KEPT_RESULTS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct NodeTable {
    numbers: HashMap<NodeName, usize>,
    /// By number; `None` for a number that is free.
    slots: Vec<Option<(NodeName, IndexedNode)>>,
    free: Vec<usize>,
    /// By number: whether the node may have changed since filters last read it. A free number is stale, and has no
    /// results.
    stale: Vec<bool>,
    /// Those of the last request first.
    results: Vec<Results>,
}

/// The results of one request.
#[derive(Debug)]
struct Results {
    text: Arc<str>,
    /// The version of the fleet whose prices they contain.
    version: u64,
    /// By the nodes' numbers; `None` if not known.
    found: Vec<Option<Result<Found, Refusal>>>,
}

impl NodeTable {
    pub fn get(&self, name: &NodeName) -> Option<&IndexedNode> {
        self.get_key_value(name.as_str()).map(|(_, node)| node)
    }

    pub fn get_key_value(&self, name: &str) -> Option<(&NodeName, &IndexedNode)> {
        self.slots[*self.numbers.get(name)?].as_ref().map(|(name, node)| (name, node))
    }

    /// A node to change. A change of what filters read becomes visible by [`touch`](Self::touch).
    pub fn get_mut(&mut self, name: &NodeName) -> Option<&mut IndexedNode> {
        self.slots[*self.numbers.get(name)?].as_mut().map(|(_, node)| node)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, &IndexedNode)> {
        self.slots.iter().flatten().map(|(name, node)| (name, node))
    }

    pub fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.numbers.keys()
    }

    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Adds a node. None may have this name.
    pub fn insert(&mut self, name: NodeName, node: IndexedNode) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.stale.push(true);
            self.results.iter_mut().for_each(|results| results.found.push(None));
            self.slots.len() - 1
        });
        self.numbers.insert(name.clone(), number);
        self.slots[number] = Some((name, node));
    }

    pub fn remove(&mut self, name: &NodeName) -> Option<IndexedNode> {
        let number = self.numbers.remove(name)?;
        self.free.push(number);
        self.stale[number] = true;
        self.forget_results(number);
        self.slots[number].take().map(|(_, node)| node)
    }

    /// Notes that spec, status or the overlay of a node changed. Returns whether there is such a node.
    pub fn touch(&mut self, name: &NodeName) -> bool {
        let number = self.numbers.get(name);
        number.inspect(|number| self.stale[**number] = true).is_some()
    }

    /// The best place for `ask` on a node, beside all reservations and assumed pods; `None` if there is no such node.
    pub fn place(
        &mut self,
        name: &str,
        ask: &Ask,
        assumed: &AssumedPods,
        fleet: &Fleet,
    ) -> Option<Result<Found, Refusal>> {
        let number = *self.numbers.get(name)?;
        self.refresh(number, assumed, fleet);
        self.find_results(ask, fleet);
        let known = &mut self.results[0].found[number];
        if known.is_none() {
            *known = self.slots[number].as_ref().map(|(_, node)| node.found(ask, fleet));
        }
        *known
    }

    /// All nodes, as filters read them.
    pub fn read(
        &mut self,
        assumed: &AssumedPods,
        fleet: &Fleet,
    ) -> impl Iterator<Item = (&NodeName, &mut IndexedNode)> {
        (0..self.slots.len()).for_each(|number| self.refresh(number, assumed, fleet));
        self.slots.iter_mut().flatten().map(|(name, node)| (&*name, node))
    }

    fn refresh(&mut self, number: usize, assumed: &AssumedPods, fleet: &Fleet) {
        if !std::mem::take(&mut self.stale[number]) {
            return;
        }
        let Some((name, node)) = &mut self.slots[number] else { return };
        if node.refresh(name, assumed, fleet) {
            self.forget_results(number);
        }
    }

    fn forget_results(&mut self, number: usize) {
        self.results.iter_mut().for_each(|results| results.found[number] = None);
    }

    /// Puts the results for `ask` at the front, without those whose prices are outdated.
    fn find_results(&mut self, ask: &Ask, fleet: &Fleet) {
        match self.results.iter().position(|results| results.text == ask.text) {
            Some(0) if Arc::ptr_eq(&self.results[0].text, &ask.text) => (),
            // All nodes of one filter are asked with the same text, and comparing its pointer is enough for them.
            Some(at) => {
                self.results[..=at].rotate_right(1);
                self.results[0].text = ask.text.clone();
            }
            None => {
                self.results.truncate(KEPT_RESULTS - 1);
                let found = vec![None; self.slots.len()];
                self.results.insert(0, Results { text: ask.text.clone(), version: fleet.version(), found });
            }
        }
        let results = &mut self.results[0];
        if std::mem::replace(&mut results.version, fleet.version()) != fleet.version() {
            // What does not fit does not fit at any price, so refusals stay valid.
            results.found.iter_mut().for_each(|found| *found = found.take().filter(Result::is_err));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_index::scene::gpu_node;
    use kerf_core::packing::Terms;
    use kerf_core::testing::{node_status, request};

    fn ask(count: u32) -> Ask {
        Ask::read(Some(&request("nvidia.com/mig-1g.10gb", count).to_json())).unwrap()
    }

    /// A node with an H100, whose agent is connected.
    fn node(name: &str) -> IndexedNode {
        let mut node = IndexedNode::from_gpu_node(&gpu_node(name));
        (node.agent, node.status) = (Ok(()), node_status(&["H100-80GB"]));
        node
    }

    fn found(nodes: &mut NodeTable, name: &str, ask: &Ask) -> Option<Result<(), Refusal>> {
        let fleet = Fleet::new(Terms::default());
        nodes.place(name, ask, &AssumedPods::default(), &fleet).map(|found| found.map(drop))
    }

    #[test]
    fn a_new_node_has_none_of_the_results_of_one_that_is_gone() {
        let mut nodes = NodeTable::default();
        nodes.insert("a".into(), node("a"));
        assert_eq!(found(&mut nodes, "a", &ask(1)), Some(Ok(())));
        assert!(nodes.remove(&"a".into()).is_some());
        assert_eq!(found(&mut nodes, "a", &ask(1)), None);
        nodes.insert("b".into(), IndexedNode::from_gpu_node(&gpu_node("b")));
        assert_eq!(found(&mut nodes, "b", &ask(1)), Some(Err(Refusal::NotConnected)));
        assert_eq!((nodes.len(), nodes.slots.len()), (1, 1));
    }

    #[test]
    fn a_change_counts_for_every_request_once_the_node_is_touched() {
        let mut nodes = NodeTable::default();
        nodes.insert("a".into(), node("a"));
        nodes.insert("b".into(), node("b"));
        for count in [1, 2, 1] {
            assert_eq!(found(&mut nodes, "a", &ask(count)), Some(Ok(())));
        }
        nodes.get_mut(&"a".into()).unwrap().agent = Err(Refusal::NotConnected);
        assert!(nodes.touch(&"a".into()) && !nodes.touch(&"c".into()));
        for count in [2, 1] {
            assert_eq!(found(&mut nodes, "a", &ask(count)), Some(Err(Refusal::NotConnected)));
            assert_eq!(found(&mut nodes, "b", &ask(count)), Some(Ok(())));
        }
    }

    #[test]
    fn the_results_of_the_last_requests_are_kept() {
        let mut nodes = NodeTable::default();
        nodes.insert("a".into(), node("a"));
        for count in (1..=20).chain(5..=7) {
            let fits = found(&mut nodes, "a", &ask(count)).map(|found| found.is_ok());
            assert_eq!(fits, Some(count <= 7), "{count}");
        }
        let texts: Vec<_> = nodes.results.iter().map(|results| results.text.clone()).collect();
        assert_eq!(texts.len(), KEPT_RESULTS);
        assert_eq!(texts[..3], [7, 6, 5].map(|count| ask(count).text));
    }
}
