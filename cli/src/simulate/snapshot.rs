//! A snapshot of the `GpuNode` objects, as `kubectl get gpunodes -o json` prints it: what would still fit, what stands in the way of
//! the largest profile, and what one move would free.

use kerf_core::contract::{ContainerRequest, GpuNodeSpec, GpuNodeStatus};
use kerf_core::inventory::NodeInventory;
use kerf_core::keys;
use kerf_core::mig::{Instance, Profile};
use kerf_core::names::NodeName;
use kerf_core::packing::{Fleet, FleetGpu, PlaceId, Terms};
use kerf_core::policy::{Supply, SupplyIndex};
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use thiserror::Error;

/// How many GPUs are named of those where a profile is blocked.
const NAMED: usize = 10;

/// What is wrong with a snapshot.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// It is no list of objects.
    #[error("not the JSON of a list: {0}; write it by `kubectl get gpunodes -o json`")]
    List(serde_json::Error),
    /// An object is no GpuNode of the version that this program reads.
    #[error(
        "items[{index}].{field}: {found:?}, and this program reads {expected:?}; use the kerf of the cluster's version"
    )]
    Version {
        /// Which object, from 0.
        index: usize,
        /// The field.
        field: &'static str,
        /// What stands there.
        found: String,
        /// What should.
        expected: String,
    },
    /// A Node cannot be read.
    #[error("items[{index}]: failed to read the Node: {error}")]
    Node {
        /// Which object, from 0.
        index: usize,
        /// Why.
        error: serde_json::Error,
    },
    /// An object's spec or status cannot be read.
    #[error("items[{index}].{field} ({node}): {reason}")]
    Unreadable {
        /// Which object, from 0.
        index: usize,
        /// The field.
        field: &'static str,
        /// Its node.
        node: String,
        /// Why.
        reason: String,
    },
}

#[derive(Deserialize)]
struct List {
    items: Vec<Value>,
}

/// A node of the snapshot.
struct Node {
    name: String,
    ready: bool,
    spec: GpuNodeSpec,
    status: GpuNodeStatus,
}

/// A GPU of the snapshot that MIG can cut.
struct Gpu {
    node: String,
    name: String,
    fleet: FleetGpu,
    /// The instances that somebody has, and who.
    taken: Vec<(Instance, String)>,
    profiles: Vec<Profile>,
}

/// Says what would fit.
pub fn report(json: &str, terms: Terms) -> Result<String, SnapshotError> {
    let nodes = read(json)?;
    let mut fleet = Fleet::new(terms);
    let gpus: Vec<Gpu> = nodes.iter().filter(|n| n.ready).flat_map(|n| gpus_of(n, &mut fleet)).collect();
    let ready = nodes.iter().filter(|n| n.ready).count();
    let mut text = format!("{ready} of {} nodes ready, {} GPUs that MIG can cut\n", nodes.len(), gpus.len());
    write_room(&mut text, &fleet, &gpus);
    write_blocked(&mut text, &gpus);
    write_moves(&mut text, &mut fleet, &gpus);
    Ok(text)
}

/// What the nodes of a snapshot can serve, and what of it is left. Nodes may stand beside the `GpuNodes` (`kubectl get
/// gpunodes,nodes -o json`): of those that NVIDIA's device plugin serves all counts as free.
pub fn supply(json: &str) -> Result<Supply, SnapshotError> {
    let mut index = SupplyIndex::default();
    for node in read(json)? {
        index.show(NodeName::new(node.name), &node.spec, &node.status, node.ready);
    }
    for (number, object) in list(json)?.into_iter().enumerate().filter(|(_, object)| is_node(object)) {
        let machine =
            Machine::deserialize(object).map_err(|error| SnapshotError::Node { index: number, error })?;
        index.show_static(machine.name(), machine.static_node());
        index.show_labels(&machine.name(), Some(machine.labels()));
        index.show_shut(machine.name(), machine.is_shut());
    }
    Ok(index.supply())
}

/// The objects of a list: `GpuNodes`, and Nodes beside them.
fn list(json: &str) -> Result<Vec<Value>, SnapshotError> {
    serde_json::from_str::<List>(json).map(|list| list.items).map_err(SnapshotError::List)
}

fn is_node(object: &Value) -> bool {
    object["kind"] == "Node" && object["apiVersion"] == "v1"
}

fn read(json: &str) -> Result<Vec<Node>, SnapshotError> {
    let gpu_nodes = list(json)?.into_iter().enumerate().filter(|(_, object)| !is_node(object));
    let read = |(index, object): (usize, Value)| {
        let object = GpuNode::deserialize(object).map_err(SnapshotError::List)?;
        node(index, &object)
    };
    gpu_nodes.map(read).collect()
}

fn node(index: usize, object: &GpuNode) -> Result<Node, SnapshotError> {
    let expected = format!("{}/{}", keys::GROUP, keys::VERSION);
    let version = |field, found: &str, expected: String| SnapshotError::Version {
        index,
        field,
        found: found.to_owned(),
        expected,
    };
    if object.api_version != expected {
        return Err(version("apiVersion", &object.api_version, expected));
    }
    if object.kind != "GpuNode" {
        return Err(version("kind", &object.kind, "GpuNode".to_owned()));
    }
    let name = object.name().to_string();
    let unreadable =
        |field, reason: String| SnapshotError::Unreadable { index, field, node: name.clone(), reason };
    let spec = object.read_spec().map_err(|e| unreadable("spec", e.to_string()))?;
    let status = object.read_status().map_err(|e| unreadable("status", e.to_string()))?.unwrap_or_default();
    Ok(Node { ready: status.is_ready(), name, spec, status })
}

fn gpus_of(node: &Node, fleet: &mut Fleet) -> Vec<Gpu> {
    let inventory = NodeInventory::of(&node.spec, &node.status);
    let gpu = |gpu: &kerf_core::inventory::GpuInventory| {
        let fleet = gpu.join(fleet, None)?;
        let index = node.status.gpus.iter().find(|g| g.uuid == gpu.uuid).map_or(0, |g| g.index);
        let taken = gpu.taken().filter_map(kerf_core::contract::Shape::instance);
        let entries = gpu.table.entries().iter().filter(|e| e.profile.is_plain());
        Some(Gpu {
            node: node.name.clone(),
            name: format!("{} GPU {index} ({})", node.name, gpu.model),
            fleet,
            taken: taken.map(|i| (i, who(node, gpu.uuid.as_str(), i))).collect(),
            profiles: entries.map(|e| e.profile).collect(),
        })
    };
    inventory.gpus.iter().filter_map(gpu).collect()
}

/// Who has the instance: the pod that it is reserved for, or that holds it.
fn who(node: &Node, gpu: &str, instance: Instance) -> String {
    let here = |uuid: &str, shape: &kerf_core::contract::Shape| {
        uuid == gpu && shape.instance().is_some_and(|i| i.placement == instance.placement)
    };
    let mut reserved = node.spec.slices.iter().filter(|s| here(s.gpu.as_str(), &s.shape));
    let reserved = reserved.find_map(|s| s.reservation.as_ref().map(|r| r.key().to_string()));
    let mut held = node.status.slices.iter().filter(|s| here(s.gpu.as_str(), &s.shape));
    let held = held.find_map(|s| s.holder.as_ref().map(|h| h.key().to_string()));
    held.or(reserved).unwrap_or_else(|| "nobody that kerf knows".to_owned())
}

/// Every plain profile of the GPUs, the smallest first.
fn profiles(gpus: &[Gpu]) -> Vec<Profile> {
    let mut all: Vec<Profile> = gpus.iter().flat_map(|gpu| gpu.profiles.iter().copied()).collect();
    all.sort_by_key(|p| (p.size(), p.compute()));
    all.dedup();
    all
}

fn write_room(text: &mut String, fleet: &Fleet, gpus: &[Gpu]) {
    let _ = writeln!(
        text,
        "\nROOM, each profile by itself\n{:<14}{:>6}{:>15}",
        "profile", "more", "of these idle"
    );
    for profile in profiles(gpus) {
        let (mut fleet, mut more, mut idle) = (fleet.clone(), 0, 0);
        let class = fleet.class(&ContainerRequest::exact(profile));
        while let Some((gpu, choice)) = fleet.best(class) {
            idle += usize::from(fleet.cut(gpu).is_some_and(|cut| cut.idle.has(choice.place)));
            fleet.take(gpu, choice);
            more += 1;
        }
        let _ = writeln!(text, "{:<14}{more:>6}{idle:>15}", profile.to_string());
    }
}

fn write_blocked(text: &mut String, gpus: &[Gpu]) {
    let mut by_largest: BTreeMap<Profile, Vec<&Gpu>> = BTreeMap::new();
    for gpu in gpus.iter().filter(|gpu| !gpu.taken.is_empty()) {
        if let Some(largest) = gpu.profiles.iter().max_by_key(|p| (p.size(), p.compute())) {
            by_largest.entry(*largest).or_default().push(gpu);
        }
    }
    for (profile, mut blocked) in by_largest {
        blocked.sort_by_key(|gpu| gpu.taken.len());
        let _ = writeln!(text, "\nBLOCKED: {profile} on {} GPUs, the least first", blocked.len());
        for gpu in blocked.iter().take(NAMED) {
            let pods =
                gpu.taken.iter().map(|(i, pod)| format!("{pod} ({} at {})", i.profile, i.placement.start));
            let _ = writeln!(text, "{}: {}", gpu.name, pods.collect::<Vec<_>>().join(", "));
        }
    }
}

fn write_moves(text: &mut String, fleet: &mut Fleet, gpus: &[Gpu]) {
    let _ = writeln!(text, "\nONE MOVE, where a profile does not fit");
    let mut any = false;
    for profile in profiles(gpus) {
        let class = fleet.class(&ContainerRequest::exact(profile));
        if fleet.best(class).is_some() {
            continue;
        }
        any = true;
        let held = |gpu: FleetGpu, place: PlaceId, fleet: &Fleet| {
            let found = gpus.iter().find(|g| g.fleet == gpu)?;
            let instance = fleet.instance(gpu, place);
            found.taken.iter().find(|(i, _)| *i == instance).map(|(i, pod)| (found, *i, pod))
        };
        let Some(found) = fleet.best_move(class, |_, _| true, |_, _| true) else {
            let _ = writeln!(text, "{profile}: no single move frees one");
            continue;
        };
        let to = gpus.iter().find(|g| g.fleet == found.to);
        if let (Some((gpu, instance, pod)), Some(to)) = (held(found.gpu, found.moved, fleet), to) {
            let start = fleet.instance(found.to, found.new.place).placement.start;
            let _ = writeln!(
                text,
                "{profile}: fits on {} if {pod} ({} at {}) restarts on {} at {start}",
                gpu.name,
                instance.profile,
                instance.placement.start,
                if to.node == gpu.node && to.fleet == gpu.fleet { "the same GPU" } else { &to.name },
            );
        }
    }
    if !any {
        let _ = writeln!(text, "every profile fits without");
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
