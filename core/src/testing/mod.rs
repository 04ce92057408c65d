//! Sample nodes and requests for tests of this and other crates. They are built only for tests, or with feature
//! `testing`.

mod choose_among;
pub mod offer_life;
mod random;
mod simulated_node;

pub use choose_among::choose_among;
pub use random::Random;
pub use simulated_node::SimulatedNode;

use crate::contract::{
    Condition, ConditionStatus, ContainerRequest, GpuNodeStatus, GpuStatus, Holder, MigPart, RequestDocument,
    Shape, SliceReservation, SliceState, SliceStatus, WantedSlice,
};
use crate::kind::{IsolationClass, Kind};
use crate::ledger::OwnerInEpoch;
use crate::mig::MigTable;
use crate::mig::catalog::{self, GpuModel};
use crate::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
use crate::nvidia_keys::PREFIX;
use crate::resource::{ResourceName, neutral_size};
use crate::static_node::StaticNode;
use crate::units::{MemoryMib, SizeGb};

/// The status of a ready node with these GPUs (short model names), all MIG-capable ones in MIG mode.
///
/// # Panics
/// If the catalog does not have a model.
#[must_use]
pub fn node_status(models: &[&str]) -> GpuNodeStatus {
    let gpu = |(index, name): (usize, &&str)| {
        let model = catalog::by_name(name).expect("a model of the catalog");
        let profiles = model.mig_table();
        GpuStatus {
            uuid: gpu_uuid(index),
            index: u32::try_from(index).unwrap_or(0),
            model: model.name.to_owned(),
            pci_bus_id: None,
            numa_node: None,
            peers: Vec::new(),
            memory: model.memory,
            reserved: None,
            kinds: if profiles.is_some() { vec![Kind::Mig] } else { Kind::ALL[1..].to_vec() },
            profiles: profiles.unwrap_or_default(),
            outside: MemoryMib(0),
            mps_shares: None,
            message: None,
        }
    };
    let ready = Condition {
        kind: Condition::READY.to_owned(),
        status: ConditionStatus::True,
        reason: "Serving".to_owned(),
        message: String::new(),
        last_transition_time: "2026-01-01T00:00:00Z".to_owned(),
    };
    GpuNodeStatus {
        gpus: models.iter().enumerate().map(gpu).collect(),
        conditions: vec![ready],
        ..Default::default()
    }
}

/// The same status, with the neutral names registered up to the largest GPU.
#[must_use]
pub fn with_neutral_names(status: GpuNodeStatus) -> GpuNodeStatus {
    let largest = status.gpus.iter().map(|gpu| gpu.memory.nominal()).max();
    GpuNodeStatus { neutral_up_to: largest.and_then(neutral_size), ..status }
}

/// The UUID of a sample node's GPU.
#[must_use]
pub fn gpu_uuid(index: usize) -> GpuUuid {
    GpuUuid::new(format!("GPU-{index}"))
}

/// Names and counts that pods may ask for at the same time: all kinds, some excluding each other.
pub const MIXED_REQUESTS: [(&str, u32); 8] = [
    ("nvidia.com/mig-1g.10gb", 1),
    ("nvidia.com/mig-3g.40gb", 1),
    ("nvidia.com/gpu-8gb", 1),
    ("nvidia.com/mig-7g.80gb", 1),
    ("nvidia.com/mig-1c.3g.40gb", 2),
    ("nvidia.com/gpu-8gb.shared", 1),
    ("nvidia.com/mig-1g.10gb.shared", 2),
    ("nvidia.com/mig-1g.10gb", 2),
];

/// A pod with one container `main` that asks for `count` slices by this resource name.
///
/// # Panics
/// If the name is none of kerf's, or has no size.
#[must_use]
pub fn request(resource: &str, count: u32) -> RequestDocument {
    let resource: ResourceName = resource.parse().expect("a resource name");
    request_sized(resource, resource.size().expect("a name with a size"), count)
}

/// A pod with one container `main` that asks for `count` slices of `size` by this resource name.
#[must_use]
pub fn request_sized(resource: ResourceName, size: SizeGb, count: u32) -> RequestDocument {
    let main =
        ContainerRequest { name: "main".to_owned(), count, ..ContainerRequest::for_slice(resource, size) };
    RequestDocument::for_containers(IsolationClass::None, vec![main])
}

/// The pod `name` of namespace `default` with UID `uid-<name>`, reserved for by epoch 1.
#[must_use]
pub fn owner_in_epoch(name: &str) -> OwnerInEpoch {
    OwnerInEpoch { uid: PodUid::new(format!("uid-{name}")), key: PodKey::new("default", name), epoch: 1 }
}

/// The status of a desired slice that exists; its pod holds it if `held`.
#[must_use]
pub fn slice_status(slice: &WantedSlice, held: bool) -> SliceStatus {
    let reservation = slice.reservation.as_ref();
    let holder = reservation.filter(|_| held).map(|r| Holder {
        namespace: r.namespace.clone(),
        pod: r.pod.clone(),
        container: r.container.clone(),
    });
    SliceStatus {
        id: Some(slice.id.clone()),
        gpu: slice.gpu.clone(),
        shape: slice.shape,
        state: match reservation {
            None => SliceState::Idle,
            Some(_) if held => SliceState::Held,
            Some(_) => SliceState::Ready,
        },
        memory: slice.shape.size().share_memory(),
        device: Some(DeviceId::new(format!("device-{}", slice.id))),
        resource: reservation.map(|r| r.resource),
        ready_for: reservation.map(|r| r.uid.clone()),
        holder,
        message: None,
        reservation: reservation.map(|r| SliceReservation::from_reservation(r, false)),
        leaving: false,
    }
}

/// The profiles of a MIG-capable model of the catalog, by its short name.
///
/// # Panics
/// If the catalog does not have the model, or it has no MIG.
#[must_use]
pub fn mig_table(model: &str) -> MigTable {
    catalog::by_name(model).and_then(GpuModel::mig_table).expect("a MIG-capable model")
}

/// The GPU instance `profile` at memory slice `start` of an H100.
///
/// # Panics
/// If an H100 does not have the profile.
#[must_use]
pub fn h100_shape(profile: &str, start: u8) -> Shape {
    let profile = profile.parse().expect("a profile");
    let size = mig_table("H100-80GB").entry(profile).expect("a profile of the H100").size;
    Shape::Mig { profile, start, size, part: MigPart::Whole }
}

/// Desired slices `s0`, `s1` and so on of these shapes, on `GPU-0` and not reserved.
#[must_use]
pub fn wanted(shapes: &[Shape]) -> Vec<WantedSlice> {
    let slice = |(n, shape): (usize, &Shape)| WantedSlice {
        id: SliceId::new(format!("s{n}")),
        gpu: GpuUuid::new("GPU-0"),
        shape: *shape,
        reservation: None,
    };
    shapes.iter().enumerate().map(slice).collect()
}

/// A static node with these labels and these numbers of devices by resource name, all of them healthy. Labels and names
/// lack their prefix `nvidia.com/`.
///
/// # Panics
/// If the labels and devices make no static node.
#[must_use]
pub fn static_node(labels: &[(&str, &str)], devices: &[(&str, u32)]) -> StaticNode {
    let labels = labels.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned())).collect();
    let amounts = devices.iter().map(|(name, count)| (format!("{PREFIX}{name}"), count.to_string()));
    let amounts: Vec<(String, String)> = amounts.collect();
    let all = || amounts.iter().map(|(name, amount)| (name.as_str(), amount.as_str()));
    StaticNode::read(&labels, None, all(), all()).expect("a static node")
}
