//! Prints nodes as a drawing, as a table and as data. Pure.

use super::draw;
use super::offered::{self, Offered};
use crate::columns::{Columns, or_dash};
use crate::output::{Format, Report};
use kerf_core::contract::{
    Condition, ConditionStatus, GpuNodeSpec, GpuNodeStatus, GpuStatus, Shape, SliceState, SliceStatus,
};
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, PciBusId, SliceId};
use kerf_core::resource::ResourceName;
use kerf_core::units::MemoryMib;
use serde::{Serialize, Serializer};
use serde_json::json;
use std::fmt::Write as _;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    pub managed: Vec<Managed>,
    /// The resources of static nodes, which NVIDIA's device plugin serves.
    pub device_plugin: Vec<Offered>,
    /// The width of a drawn GPU, in characters.
    #[serde(skip)]
    pub width: usize,
}

#[derive(Debug)]
pub struct Managed {
    pub name: String,
    pub read: Result<(GpuNodeSpec, GpuNodeStatus), String>,
}

impl Serialize for Managed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.read {
            Err(why) => json!({"name": self.name, "unreadable": why}).serialize(serializer),
            Ok((spec, status)) => NodeReport {
                name: &self.name,
                ready: status.is_ready(),
                troubles: troubles(status),
                gpus: status.gpus.iter().map(|gpu| GpuReport::new(gpu, spec, status)).collect(),
            }
            .serialize(serializer),
        }
    }
}

#[derive(Serialize)]
struct NodeReport<'n> {
    name: &'n str,
    ready: bool,
    troubles: Vec<String>,
    gpus: Vec<GpuReport<'n>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GpuReport<'n> {
    uuid: &'n GpuUuid,
    index: u32,
    pci_bus_id: Option<&'n PciBusId>,
    model: &'n str,
    memory_mib: MemoryMib,
    reserved_mib: Option<MemoryMib>,
    kinds: &'n [Kind],
    message: Option<&'n str>,
    slices: Vec<SliceReport<'n>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SliceReport<'n> {
    id: Option<&'n SliceId>,
    shape: Shape,
    state: SliceState,
    memory_mib: MemoryMib,
    device: Option<&'n DeviceId>,
    resource: Option<ResourceName>,
    message: Option<&'n str>,
    /// The pod as `namespace/name`.
    pod: Option<String>,
    container: Option<&'n str>,
}

impl<'n> GpuReport<'n> {
    fn new(gpu: &'n GpuStatus, spec: &'n GpuNodeSpec, status: &'n GpuNodeStatus) -> Self {
        let slices = status.slices.iter().filter(|slice| slice.gpu == gpu.uuid);
        Self {
            uuid: &gpu.uuid,
            index: gpu.index,
            pci_bus_id: gpu.pci_bus_id.as_ref(),
            model: &gpu.model,
            memory_mib: gpu.memory,
            reserved_mib: gpu.reserved,
            kinds: &gpu.kinds,
            message: gpu.message.as_deref(),
            slices: slices.map(|slice| SliceReport::new(slice, spec)).collect(),
        }
    }
}

impl<'n> SliceReport<'n> {
    fn new(slice: &'n SliceStatus, spec: &'n GpuNodeSpec) -> Self {
        let (pod, container) = owner(spec, slice).unzip();
        // The agent reports the name once it offers the slice. Before that, the reservation has it.
        let reservation =
            || spec.slices.iter().find(|wanted| Some(&wanted.id) == slice.id.as_ref())?.reservation.as_ref();
        Self {
            id: slice.id.as_ref(),
            shape: slice.shape,
            state: slice.state,
            memory_mib: slice.memory,
            device: slice.device.as_ref(),
            resource: slice.resource.or_else(|| Some(reservation()?.resource)),
            message: slice.message.as_deref(),
            pod,
            container,
        }
    }

    /// The resource name. A neutral name does not imply the kind, so the kind follows it.
    fn name(&self) -> Option<String> {
        let name = self.resource?;
        Some(if name.is_neutral() { format!("{name} ({})", self.shape.kind()) } else { name.to_string() })
    }
}

impl Report for Shown {
    fn text(&self, format: Format) -> String {
        if format == Format::Wide { wide(self) } else { drawing(self) }
    }
}

fn drawing(shown: &Shown) -> String {
    let mut text = String::new();
    for node in &shown.managed {
        match &node.read {
            Err(why) => {
                let _infallible = writeln!(text, "{}: {why}", node.name);
            }
            Ok((spec, status)) => {
                for trouble in troubles(status) {
                    let _infallible = writeln!(text, "{}: {trouble}", node.name);
                }
                for line in draw::node(&node.name, spec, status, shown.width, &draw::coloured) {
                    let _infallible = writeln!(text, "{line}");
                }
            }
        }
    }
    if !shown.device_plugin.is_empty() {
        let gap = if text.is_empty() { "" } else { "\n" };
        let _infallible =
            write!(text, "{gap}Served by NVIDIA's device plugin:\n{}", offered::table(&shown.device_plugin));
    }
    if text.is_empty() {
        "No node has GPUs that kerf or NVIDIA's device plugin serves.\n".to_owned()
    } else {
        text
    }
}

/// The agent's conditions that are not true. Unhealthy GPUs are left out, because their own lines say so.
fn troubles(status: &GpuNodeStatus) -> Vec<String> {
    if status.conditions.is_empty() {
        return vec!["its agent has not reported yet".to_owned()];
    }
    let bad = status.conditions.iter().filter(|it| it.status != ConditionStatus::True);
    let bad = bad.filter(|it| it.kind != Condition::GPUS_HEALTHY);
    bad.map(|it| format!("{} is not true ({}): {}", it.kind, it.reason, it.message)).collect()
}

fn wide(shown: &Shown) -> String {
    let mut columns = Columns::new([
        "NODE",
        "GPU",
        "MODEL",
        "SLICE",
        "SHAPE",
        "MIB",
        "STATE",
        "POD",
        "CONTAINER",
        "RESOURCE",
        "DEVICE",
        "GPU UUID",
        "PCI BUS ID",
    ]);
    for node in &shown.managed {
        let Ok((spec, status)) = &node.read else { continue };
        for gpu in status.gpus.iter().map(|gpu| GpuReport::new(gpu, spec, status)) {
            let mut row = |rest: [String; 8]| {
                let [slice, shape, memory, state, pod, container, resource, device] = rest;
                let (index, model) = (gpu.index.to_string(), gpu.model.to_owned());
                columns.row([
                    node.name.clone(),
                    index,
                    model,
                    slice,
                    shape,
                    memory,
                    state,
                    pod,
                    container,
                    resource,
                    device,
                    gpu.uuid.to_string(),
                    or_dash(gpu.pci_bus_id),
                ]);
            };
            if gpu.slices.is_empty() {
                row(std::array::from_fn(|_| or_dash(None::<&str>)));
            }
            for slice in &gpu.slices {
                row([
                    or_dash(slice.id),
                    slice.shape.to_string(),
                    slice.memory_mib.0.to_string(),
                    format!("{:?}", slice.state),
                    or_dash(slice.pod.as_ref()),
                    or_dash(slice.container),
                    or_dash(slice.name()),
                    or_dash(slice.device),
                ]);
            }
        }
    }
    let rowless: Vec<String> = shown.managed.iter().filter_map(rowless).collect();
    let has_rows = rowless.len() < shown.managed.len();
    let mut text = if has_rows || rowless.is_empty() {
        columns.write("No node is served by kerf.")
    } else {
        String::new()
    };
    for line in rowless {
        let _infallible = writeln!(text, "{line}");
    }
    if !shown.device_plugin.is_empty() {
        let _infallible = write!(text, "\n{}", offered::table(&shown.device_plugin));
    }
    text
}

fn rowless(node: &Managed) -> Option<String> {
    let why = match &node.read {
        Err(why) => why.clone(),
        Ok((_, status)) if !status.gpus.is_empty() => return None,
        Ok((_, status)) => {
            let troubles = troubles(status);
            if troubles.is_empty() { "its agent reports no GPU".to_owned() } else { troubles.join("; ") }
        }
    };
    Some(format!("{}: {why}", node.name))
}

fn owner<'n>(spec: &'n GpuNodeSpec, slice: &'n SliceStatus) -> Option<(String, &'n str)> {
    if let Some(holder) = &slice.holder {
        return Some((holder.key().to_string(), &holder.container));
    }
    let wanted = spec.slices.iter().find(|wanted| Some(&wanted.id) == slice.id.as_ref())?;
    let reservation = wanted.reservation.as_ref()?;
    Some((reservation.key().to_string(), &reservation.container))
}
