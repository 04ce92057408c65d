//! Reads a snapshot of `GpuNodes`, as `kubectl get gpunodes -o json` prints it, and reports what still fits, which pods
//! block the largest profile, and what one move would free.

use crate::counted::counted;
use crate::placement::Nodes;
use crate::plugin_nodes::{served, with_pods};
use k8s_openapi::Resource as _;
use kerf_core::contract::{ContainerRequest, GpuNodeSpec, GpuNodeStatus};
use kerf_core::inventory::NodeInventory;
use kerf_core::keys;
use kerf_core::mig::{Instance, Profile};
use kerf_core::names::NodeName;
use kerf_core::packing::{ClassId, Fleet, FleetGpu, Terms};
use kerf_core::policy::{Supply, SupplyIndex};
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use thiserror::Error;

const NAMED: usize = 10;

#[derive(Debug, Error)]
pub enum SnapshotError {
    #[error("no list in JSON or YAML: {0}; write it by `kubectl get gpunodes -o json`")]
    List(String),
    /// The object is no GpuNode of this program's version.
    #[error(
        "items[{index}].{field}: {found:?}, and this program reads {expected:?}; use the kerf of the cluster's version"
    )]
    Version { index: usize, field: &'static str, found: String, expected: String },
    #[error("items[{index}]: failed to read the Node: {error}")]
    Node { index: usize, error: serde_json::Error },
    #[error("items[{index}].{field} ({node}): {reason}")]
    Unreadable { index: usize, field: &'static str, node: String, reason: String },
}

#[derive(Deserialize)]
struct List {
    items: Vec<Value>,
}

struct Node {
    name: String,
    ready: bool,
    spec: GpuNodeSpec,
    status: GpuNodeStatus,
}

struct Gpu {
    name: String,
    fleet: FleetGpu,
    taken: Vec<(Instance, String)>,
    profiles: Vec<Profile>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    nodes: usize,
    ready_nodes: usize,
    gpus: usize,
    room: Vec<Room>,
    blocked: Vec<Blocked>,
    moves: Vec<Move>,
}

#[derive(Debug, Serialize)]
struct Room {
    profile: Profile,
    more: usize,
    idle: usize,
}

#[derive(Debug, Serialize)]
struct Blocked {
    profile: Profile,
    gpus: Vec<BlockedGpu>,
}

#[derive(Debug, Serialize)]
struct BlockedGpu {
    gpu: String,
    pods: Vec<Obstacle>,
}

#[derive(Debug, Serialize)]
struct Obstacle {
    pod: String,
    profile: Profile,
    start: u8,
}

#[derive(Debug, Serialize)]
struct Move {
    profile: Profile,
    helps: Option<Helps>,
}

#[derive(Debug, Serialize)]
struct Helps {
    gpu: String,
    pod: Obstacle,
    to: Option<String>,
    start: u8,
}

pub fn report(json: &str, terms: Terms) -> Result<Snapshot, SnapshotError> {
    let nodes = read(json)?;
    let mut fleet = Fleet::new(terms);
    let gpus: Vec<Gpu> = nodes.iter().filter(|n| n.ready).flat_map(|n| gpus_of(n, &mut fleet)).collect();
    Ok(Snapshot {
        nodes: nodes.len(),
        ready_nodes: nodes.iter().filter(|n| n.ready).count(),
        gpus: gpus.len(),
        room: room(&fleet, &gpus),
        blocked: blocked(&gpus),
        moves: moves(&mut fleet, &gpus),
    })
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, gpus) = (counted(self.nodes, "node"), counted(self.gpus, "GPU"));
        writeln!(f, "{} of {nodes} ready, {gpus} that MIG can cut", self.ready_nodes)?;
        writeln!(f, "\nROOM, each profile by itself\n{:<14}{:>6}{:>15}", "profile", "more", "of these idle")?;
        for Room { profile, more, idle } in &self.room {
            writeln!(f, "{:<14}{more:>6}{idle:>15}", profile.to_string())?;
        }
        for Blocked { profile, gpus } in &self.blocked {
            writeln!(f, "\nBLOCKED: {profile} on {}, the least first", counted(gpus.len(), "GPU"))?;
            for BlockedGpu { gpu, pods } in gpus.iter().take(NAMED) {
                let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
                writeln!(f, "{gpu}: {}", pods.join(", "))?;
            }
        }
        writeln!(f, "\nONE MOVE, where a profile does not fit")?;
        if self.moves.is_empty() {
            writeln!(f, "every profile fits without")?;
        }
        self.moves.iter().try_for_each(|one| writeln!(f, "{one}"))
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} at {})", self.pod, self.profile, self.start)
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = self.profile;
        match &self.helps {
            None => write!(f, "{profile}: no single move frees one"),
            Some(Helps { gpu, pod, to, start }) => {
                let to = to.as_deref().unwrap_or("the same GPU");
                write!(f, "{profile}: fits on {gpu} if {pod} restarts on {to} at {start}")
            }
        }
    }
}

/// What the nodes of a snapshot can serve. The snapshot may also have Nodes (`kubectl get gpunodes,nodes -o json`),
/// whose static nodes then count too.
pub fn supply(json: &str) -> Result<Supply, SnapshotError> {
    let mut index = SupplyIndex::default();
    for node in read(json)? {
        index.show(NodeName::new(node.name), &node.spec, &node.status);
    }
    for machine in machines(json)? {
        index.show_static(machine.name(), machine.static_node());
        index.show_user_namespaces(&machine.name(), machine.has_user_namespaces());
    }
    Ok(index.supply())
}

pub fn nodes(text: &str, terms: Terms) -> Result<Nodes, SnapshotError> {
    let read = read(text)?;
    let managed: BTreeSet<String> = read.iter().map(|node| node.name.clone()).collect();
    let machines = machines(text)?;
    let is_static = |machine: &&Machine| !managed.contains(machine.name().as_str());
    let fixed = machines.iter().filter(is_static);
    let fixed = fixed.filter_map(|machine| Some((machine.name().to_string(), served(machine)?)));
    let fixed = with_pods(fixed.collect(), &[]);
    let named = read.into_iter().map(|node| (NodeName::new(node.name), Ok((node.spec, node.status))));
    Ok(Nodes::new(named, terms).with_static(&fixed).with_machines(machines))
}

fn machines(text: &str) -> Result<Vec<Machine>, SnapshotError> {
    let nodes = list(text)?.into_iter().enumerate().filter(|(_, object)| is_node(object));
    let read =
        |(index, object)| Machine::deserialize(object).map_err(|error| SnapshotError::Node { index, error });
    nodes.map(read).collect()
}

/// The objects of a list: `GpuNodes`, and perhaps Nodes. JSON has its own parser, because a long list would take YAML's
/// too much time.
fn list(text: &str) -> Result<Vec<Value>, SnapshotError> {
    let json = serde_json::from_str::<List>(text);
    let is_json = text.trim_start().starts_with(['{', '[']);
    match json {
        Ok(list) => Ok(list.items),
        Err(error) if is_json => Err(SnapshotError::List(error.to_string())),
        Err(_) => serde_saphyr::from_str::<List>(text)
            .map(|list| list.items)
            .map_err(|error| SnapshotError::List(error.without_snippet().to_string())),
    }
}

fn is_node(object: &Value) -> bool {
    object["kind"] == "Node" && object["apiVersion"] == "v1"
}

fn read(json: &str) -> Result<Vec<Node>, SnapshotError> {
    let gpu_nodes = list(json)?.into_iter().enumerate().filter(|(_, object)| !is_node(object));
    let read = |(index, object): (usize, Value)| {
        let object = GpuNode::deserialize(object).map_err(|error| SnapshotError::List(error.to_string()))?;
        node(index, &object)
    };
    gpu_nodes.map(read).collect()
}

fn node(index: usize, object: &GpuNode) -> Result<Node, SnapshotError> {
    let head =
        [("apiVersion", &object.api_version, keys::API_VERSION), ("kind", &object.kind, GpuNode::KIND)];
    if let Some((field, found, expected)) = head.into_iter().find(|(_, found, expected)| *found != expected) {
        let (found, expected) = (found.clone(), expected.to_owned());
        return Err(SnapshotError::Version { index, field, found, expected });
    }
    let name = object.name().to_string();
    let unreadable =
        |field, reason: String| SnapshotError::Unreadable { index, field, node: name.clone(), reason };
    let spec = object.read_desired().map_err(|e| unreadable("spec", e.to_string()))?;
    let status = object.read_status().map_err(|e| unreadable("status", e.to_string()))?.unwrap_or_default();
    Ok(Node { ready: status.is_ready(), name, spec, status })
}

fn gpus_of(node: &Node, fleet: &mut Fleet) -> Vec<Gpu> {
    let inventory = NodeInventory::from_spec(&node.spec, &node.status);
    let gpu = |gpu: &kerf_core::inventory::GpuInventory| {
        let fleet = gpu.join(fleet, None)?;
        let index = node.status.gpus.iter().find(|g| g.uuid == gpu.uuid).map_or(0, |g| g.index);
        let taken = gpu.taken().filter_map(kerf_core::contract::Shape::instance);
        let entries = gpu.table.entries().iter().filter(|e| e.profile.is_plain());
        Some(Gpu {
            name: format!("{} GPU {index} ({})", node.name, gpu.model),
            fleet,
            taken: taken.map(|i| (i, who(node, gpu.uuid.as_str(), i))).collect(),
            profiles: entries.map(|e| e.profile).collect(),
        })
    };
    inventory.gpus.iter().filter_map(gpu).collect()
}

fn who(node: &Node, gpu: &str, instance: Instance) -> String {
    let here = |uuid: &str, shape: &kerf_core::contract::Shape| {
        uuid == gpu && shape.instance().is_some_and(|i| i.placement == instance.placement)
    };
    let mut reserved = node.spec.slices.iter().filter(|s| here(s.gpu.as_str(), &s.shape));
    let reserved = reserved.find_map(|s| s.reservation.as_ref().map(|r| r.key().to_string()));
    let mut held = node.status.slices.iter().filter(|s| here(s.gpu.as_str(), &s.shape));
    let held = held.find_map(|s| s.holder.as_ref().map(|h| h.key().to_string()));
    held.or(reserved).unwrap_or_else(|| "an unknown holder".to_owned())
}

fn profiles(gpus: &[Gpu]) -> Vec<Profile> {
    let mut all: Vec<Profile> = gpus.iter().flat_map(|gpu| gpu.profiles.iter().copied()).collect();
    all.sort_by_key(|p| (p.size(), p.compute()));
    all.dedup();
    all
}

fn room(fleet: &Fleet, gpus: &[Gpu]) -> Vec<Room> {
    let more = |profile: Profile| {
        // Each profile is tried on a copy, because what one takes must not count for the next.
        let (mut fleet, mut more, mut idle) = (fleet.clone(), 0, 0);
        let class = fleet.class(&ContainerRequest::exact(profile));
        while let Some((gpu, choice)) = fleet.best(class) {
            idle += usize::from(fleet.cut(gpu).is_some_and(|cut| cut.idle.has(choice.place)));
            fleet.take(gpu, choice);
            more += 1;
        }
        Room { profile, more, idle }
    };
    profiles(gpus).into_iter().map(more).collect()
}

fn obstacle(instance: Instance, pod: &str) -> Obstacle {
    Obstacle { pod: pod.to_owned(), profile: instance.profile, start: instance.placement.start }
}

fn blocked(gpus: &[Gpu]) -> Vec<Blocked> {
    let mut by_largest: BTreeMap<Profile, Vec<&Gpu>> = BTreeMap::new();
    for gpu in gpus.iter().filter(|gpu| !gpu.taken.is_empty()) {
        if let Some(largest) = gpu.profiles.iter().max_by_key(|p| (p.size(), p.compute())) {
            by_largest.entry(*largest).or_default().push(gpu);
        }
    }
    let of_gpu = |gpu: &Gpu| BlockedGpu {
        gpu: gpu.name.clone(),
        pods: gpu.taken.iter().map(|(instance, pod)| obstacle(*instance, pod)).collect(),
    };
    let of_profile = |(profile, mut gpus): (Profile, Vec<&Gpu>)| {
        gpus.sort_by_key(|gpu| gpu.taken.len());
        Blocked { profile, gpus: gpus.into_iter().map(of_gpu).collect() }
    };
    by_largest.into_iter().map(of_profile).collect()
}

fn moves(fleet: &mut Fleet, gpus: &[Gpu]) -> Vec<Move> {
    let mut moves = Vec::new();
    for profile in profiles(gpus) {
        let class = fleet.class(&ContainerRequest::exact(profile));
        if fleet.best(class).is_none() {
            moves.push(Move { profile, helps: helps(fleet, gpus, class) });
        }
    }
    moves
}

fn helps(fleet: &mut Fleet, gpus: &[Gpu], class: ClassId) -> Option<Helps> {
    let found = fleet.best_eviction(class, |_, _| true, |_, _| true)?;
    let gpu = gpus.iter().find(|gpu| gpu.fleet == found.gpu)?;
    let to = gpus.iter().find(|gpu| gpu.fleet == found.to)?;
    let moved = fleet.instance(found.gpu, found.victim);
    let (instance, pod) = gpu.taken.iter().find(|(instance, _)| *instance == moved)?;
    Some(Helps {
        gpu: gpu.name.clone(),
        pod: obstacle(*instance, pod),
        to: (to.fleet != gpu.fleet).then(|| to.name.clone()),
        start: fleet.instance(found.to, found.new.place).placement.start,
    })
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
