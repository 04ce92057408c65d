//! `kerf gpu list`: a machine's GPUs, their instances and their processes.

use super::Unreadable;
use crate::columns::{Columns, or_dash};
use crate::output::{self, Format};
use kerf_core::mig::{ComputeInstance, ComputeProfile, Instance};
use kerf_core::names::PciBusId;
use kerf_nvml::{Compute, Gpu, GpuBackend as _, GpuInstance, MigMode, NvmlBackend, Process};
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    driver: String,
    cuda: String,
    gpus: Vec<GpuReport>,
    #[serde(rename = "silent")]
    unresponsive: Vec<Unreadable>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GpuReport {
    index: u32,
    minor: u32,
    uuid: String,
    pci_bus_id: Option<PciBusId>,
    product: String,
    /// The short name in kerf's catalog; `None` for a product that it lacks.
    model: Option<&'static str>,
    used_mib: u64,
    memory_mib: u64,
    reserved_mib: u64,
    compute_mode: &'static str,
    mig: &'static str,
    mig_pending: bool,
    pending_repair: Option<String>,
    instances: Vec<InstanceReport>,
    processes: Vec<ProcessReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InstanceReport {
    gi: u32,
    profile: String,
    /// The memory slices: the first, and the number.
    placement: String,
    /// `full`, `parts`, `missing` or `foreign`, for the compute instances as a whole.
    compute: &'static str,
    devices: Vec<DeviceReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceReport {
    ci: u32,
    profile: String,
    /// The compute slices of the GPU instance: the first, and the number.
    placement: String,
    uuid: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProcessReport {
    pid: u32,
    name: Option<String>,
    gi: Option<u32>,
    ci: Option<u32>,
    used_mib: Option<u64>,
}

pub fn report(mut nvml: NvmlBackend) -> anyhow::Result<Report> {
    let driver = nvml.driver()?;
    let gpus = nvml.observe()?.iter().map(gpu).collect();
    let (major, minor) = driver.cuda;
    Ok(Report {
        driver: driver.version,
        cuda: format!("{major}.{minor}"),
        gpus,
        unresponsive: Unreadable::all(&nvml),
    })
}

fn gpu(gpu: &Gpu) -> GpuReport {
    GpuReport {
        index: gpu.index,
        minor: gpu.minor,
        uuid: gpu.uuid.to_string(),
        pci_bus_id: gpu.pci_bus_id.clone(),
        product: gpu.product.clone(),
        model: super::model(gpu).map(|model| model.name),
        used_mib: gpu.used.0,
        memory_mib: gpu.memory.0,
        reserved_mib: gpu.reserved.0,
        compute_mode: gpu.compute_mode.as_str(),
        mig: match gpu.mig {
            MigMode::Unsupported => "none",
            MigMode::Settled(true) | MigMode::Pending(true) => "on",
            MigMode::Settled(false) | MigMode::Pending(false) => "off",
        },
        mig_pending: matches!(gpu.mig, MigMode::Pending(_)),
        pending_repair: gpu.pending_repair.clone(),
        instances: gpu.instances.iter().map(instance).collect(),
        processes: gpu.processes.iter().map(process).collect(),
    }
}

fn instance(found: &GpuInstance) -> InstanceReport {
    let Instance { profile, placement } = found.instance;
    let device = |(part, ci, device): (Option<ComputeInstance>, u32, &kerf_core::names::DeviceId)| {
        let place = part.unwrap_or(ComputeInstance { start: 0, compute: profile.compute() });
        DeviceReport {
            ci,
            profile: or_dash(ComputeProfile::new(place.compute, profile)),
            placement: format!("{}:{}", place.start, place.compute),
            uuid: device.to_string(),
        }
    };
    InstanceReport {
        gi: found.gi,
        profile: profile.to_string(),
        placement: placement.to_string(),
        compute: match found.compute {
            Compute::Missing => "missing",
            Compute::Full { .. } => "full",
            Compute::Parts(_) => "parts",
            Compute::Foreign => "foreign",
        },
        devices: found.devices().map(device).collect(),
    }
}

fn process(found: &Process) -> ProcessReport {
    ProcessReport {
        pid: found.pid,
        name: kerf_nvml::command(found.pid),
        gi: found.gi,
        ci: found.ci,
        used_mib: found.memory.map(|memory| memory.0),
    }
}

impl output::Report for Report {
    fn text(&self, _format: Format) -> String {
        let mut text = format!("driver {}, CUDA {}\n\n", self.driver, self.cuda);
        text += &self.gpus();
        text.extend(self.unresponsive.iter().map(ToString::to_string));
        for gpu in &self.gpus {
            if let Some(what) = &gpu.pending_repair {
                let _ = writeln!(text, "GPU {} needs a reset: {what}", gpu.index);
            }
        }
        text + "\n" + &self.instances() + "\n" + &self.processes()
    }
}

impl Report {
    fn gpus(&self) -> String {
        let head =
            ["GPU", "UUID", "PCI BUS ID", "PRODUCT", "MODEL", "MINOR", "MEMORY (MiB)", "COMPUTE MODE", "MIG"];
        let mut columns = Columns::new(head);
        for gpu in &self.gpus {
            columns.row([
                gpu.index.to_string(),
                gpu.uuid.clone(),
                or_dash(gpu.pci_bus_id.as_ref()),
                gpu.product.clone(),
                or_dash(gpu.model),
                gpu.minor.to_string(),
                format!("{} / {}", gpu.used_mib, gpu.memory_mib),
                gpu.compute_mode.to_owned(),
                match (gpu.mig, gpu.mig_pending) {
                    ("on", true) => "on, off after a reset".to_owned(),
                    ("off", true) => "off, on after a reset".to_owned(),
                    (mode, _) => mode.to_owned(),
                },
            ]);
        }
        columns.write("no GPU")
    }

    fn instances(&self) -> String {
        let mut columns =
            Columns::new(["GPU", "GI", "PLACEMENT", "CI", "PROFILE", "COMPUTE PLACEMENT", "MIG DEVICE"]);
        for (gpu, instance) in self.gpus.iter().flat_map(|g| g.instances.iter().map(move |i| (g, i))) {
            let of = [gpu.index.to_string(), instance.gi.to_string(), instance.placement.clone()];
            let mut row = |rest: [String; 4]| {
                let ([gpu, gi, placement], [ci, profile, place, device]) = (of.clone(), rest);
                columns.row([gpu, gi, placement, ci, profile, place, device]);
            };
            for device in &instance.devices {
                let DeviceReport { ci, profile, placement, uuid } = device;
                row([ci.to_string(), profile.clone(), placement.clone(), uuid.clone()]);
            }
            if instance.devices.is_empty() {
                let dash = || or_dash(None::<&str>);
                let what = match instance.compute {
                    "missing" => "- (no compute instance)",
                    _ => "- (unknown compute instances)",
                };
                row([dash(), instance.profile.clone(), dash(), what.to_owned()]);
            }
        }
        columns.write("no GPU instances")
    }

    fn processes(&self) -> String {
        let mut columns = Columns::new(["GPU", "GI", "CI", "PID", "NAME", "MEMORY (MiB)"]);
        for gpu in &self.gpus {
            for process in &gpu.processes {
                columns.row([
                    gpu.index.to_string(),
                    or_dash(process.gi),
                    or_dash(process.ci),
                    process.pid.to_string(),
                    or_dash(process.name.as_ref()),
                    or_dash(process.used_mib),
                ]);
            }
        }
        columns.write("no processes")
    }
}
