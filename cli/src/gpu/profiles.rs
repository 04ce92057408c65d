//! `kerf gpu profiles`: the MIG profiles that NVML offers on each GPU, and where the catalog differs.

use super::Unreadable;
use crate::columns::{Columns, or_dash};
use crate::output::{self, Format};
use kerf_core::mig::catalog::{Disagreement, GpuModel, compare};
use kerf_core::mig::{MigTable, Profile};
use kerf_nvml::{Gpu, GpuBackend as _, NvmlBackend};
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Debug, Serialize)]
pub struct Report {
    gpus: Vec<GpuReport>,
    #[serde(rename = "silent")]
    unresponsive: Vec<Unreadable>,
}

#[derive(Debug, Serialize)]
struct GpuReport {
    index: u32,
    uuid: String,
    product: String,
    /// The short name in kerf's catalog; `None` for a product that it lacks.
    model: Option<&'static str>,
    profiles: MigTable,
    differences: Vec<String>,
    #[serde(skip)]
    differing: Vec<Profile>,
}

pub fn report(mut nvml: NvmlBackend) -> anyhow::Result<Report> {
    let gpus = nvml.observe()?;
    let gpus = gpus.iter().map(|gpu| Ok(gpu_report(gpu, nvml.profiles(&gpu.uuid)?)));
    let gpus = gpus.collect::<anyhow::Result<_>>()?;
    Ok(Report { gpus, unresponsive: Unreadable::all(&nvml) })
}

fn gpu_report(gpu: &Gpu, profiles: MigTable) -> GpuReport {
    let model = super::model(gpu);
    let found = model.map(|model| compare(model, &profiles)).unwrap_or_default();
    GpuReport {
        index: gpu.index,
        uuid: gpu.uuid.to_string(),
        product: gpu.product.clone(),
        model: model.map(|model: &GpuModel| model.name),
        profiles,
        differences: found.iter().map(ToString::to_string).collect(),
        differing: found.iter().map(concerns).collect(),
    }
}

fn concerns(disagreement: &Disagreement) -> Profile {
    match disagreement {
        Disagreement::Missing(profile)
        | Disagreement::Unknown(profile)
        | Disagreement::Id { profile, .. }
        | Disagreement::Placements { profile, .. }
        | Disagreement::Size { profile, .. }
        | Disagreement::Max { profile, .. }
        | Disagreement::Memory { profile, .. } => *profile,
    }
}

impl output::Report for Report {
    /// An asterisk marks each profile in which the catalog differs.
    fn text(&self, _format: Format) -> String {
        let mut columns =
            Columns::new(["GPU", "MODEL", "PROFILE", "ID", "MAX", "PLACEMENTS", "MEMORY (MiB)", ""]);
        for gpu in &self.gpus {
            for entry in gpu.profiles.entries() {
                let starts: Vec<String> = entry.starts.iter().map(ToString::to_string).collect();
                columns.row([
                    gpu.index.to_string(),
                    or_dash(gpu.model),
                    entry.profile.to_string(),
                    entry.id.0.to_string(),
                    entry.max.to_string(),
                    format!("{{{}}}:{}", starts.join(","), entry.size),
                    entry.memory.0.to_string(),
                    if gpu.differing.contains(&entry.profile) { "*".to_owned() } else { String::new() },
                ]);
            }
        }
        let mut text = columns.write("no GPU offers MIG");
        text.extend(self.unresponsive.iter().map(ToString::to_string));
        for gpu in &self.gpus {
            if gpu.model.is_none() {
                let _ = writeln!(text, "GPU {}: the catalog has no {:?}", gpu.index, gpu.product);
            }
            for difference in &gpu.differences {
                let _ = writeln!(text, "* GPU {}: {difference}", gpu.index);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::names::GpuUuid;
    use kerf_core::testing::mig_table;
    use kerf_core::units::MemoryMib;

    fn h100() -> Gpu {
        Gpu {
            product: "NVIDIA H100 80GB HBM3".to_owned(),
            model: "H100-80GB".to_owned(),
            memory: MemoryMib(81_559),
            ..Gpu::empty(GpuUuid::new("GPU-0"))
        }
    }

    #[test]
    fn differences_from_the_catalog_are_marked_and_reported() {
        let mut entries = mig_table("H100-80GB").entries().to_vec();
        entries[0].max = 6;
        entries.retain(|entry| entry.profile.compute() != 7);
        let report = Report {
            gpus: vec![gpu_report(&h100(), MigTable::new(entries.clone()))],
            unresponsive: Vec::new(),
        };
        let text = output::Report::text(&report, Format::Text);
        let marked: Vec<&str> = text.lines().filter(|line| line.contains('*')).collect();
        let profile = entries[0].profile;
        assert!(marked[0].contains(&profile.to_string()) && marked[0].ends_with('*'), "{text}");
        assert_eq!(
            marked[1..],
            [
                format!("* GPU 0: a GPU holds 6 of {profile} by NVML and 7 by the catalog"),
                "* GPU 0: NVML does not list 7g.80gb".to_owned()
            ]
        );
    }

    #[test]
    fn a_gpu_outside_the_catalog_is_named() {
        let unknown = Gpu { product: "NVIDIA X100".to_owned(), ..h100() };
        let report =
            Report { gpus: vec![gpu_report(&unknown, MigTable::default())], unresponsive: Vec::new() };
        assert_eq!(
            output::Report::text(&report, Format::Text),
            "no GPU offers MIG\nGPU 0: the catalog has no \"NVIDIA X100\"\n"
        );
    }
}
