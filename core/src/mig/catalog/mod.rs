//! The GPU models that kerf knows without asking NVML: for planning off a node, for tests and for short names.
//!
//! On a node the table comes from NVML, and [`compare`] tells where the catalog says otherwise. Ids, placements and
//! memory are NVIDIA's MIG user guide's and those of published `nvidia-smi mig -lgip` and `-lgipp`; memory moves with the
//! driver, and so, on a few GPUs, do names.

mod compare;
mod layout;
mod others;
mod product;
mod seven;
#[cfg(test)]
mod tests;

use super::{GiProfileId, MigTable, Profile};
use crate::units::MemoryMib;
use layout::Layout;
use std::collections::BTreeSet;

pub use compare::{Disagreement, compare};
pub use product::{by_product, short_name};

/// How well a model's table is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Certainty {
    /// Profiles, ids and placements stand in a published listing of a real GPU.
    Documented,
    /// Ids, placements or memory were inferred from GPUs of the same family. Used only when NVML agrees: whoever plans
    /// with such a table off a node says so, and promises nothing by it.
    Unsure,
}

/// One GPU model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuModel {
    /// The short name that kerf's labels, documents and messages use.
    pub name: &'static str,
    /// Parts of the product names that NVML reports, in whole words with blanks for dashes; the usual one first.
    pub products: &'static [&'static str],
    /// Total memory as NVML reports it.
    pub memory: MemoryMib,
    /// How well [`mig_table`](Self::mig_table) is known.
    pub certainty: Certainty,
    layout: Layout,
    renamed: &'static [(GiProfileId, Profile)],
}

/// All models.
pub const MODELS: &[GpuModel] = &[
    seven::H100_80,
    seven::H100_94,
    seven::H100_96,
    seven::H200,
    seven::H20_96,
    seven::H20_141,
    seven::GH200_96,
    seven::GH200_144,
    seven::A100_40,
    seven::A100_80,
    seven::B200,
    seven::GB200,
    seven::B300,
    seven::GB300,
    others::RTX_PRO_6000,
    others::A30,
    others::A10G,
    others::L40S,
    others::L4,
    others::T4,
];

/// The model of this short name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static GpuModel> {
    MODELS.iter().find(|m| m.name == name)
}

/// Every profile that some model has under some driver, each once.
#[must_use]
pub fn profiles() -> BTreeSet<Profile> {
    let of_model = |m: &'static GpuModel| {
        let entries = m.mig_table().unwrap_or_default();
        let present: Vec<_> = entries.entries().iter().map(|e| e.profile).collect();
        present.into_iter().chain(m.renamed.iter().map(|(_, profile)| *profile))
    };
    MODELS.iter().flat_map(of_model).collect()
}

impl GpuModel {
    /// The model's profiles, as sure as [`certainty`](Self::certainty) says; `None` for a GPU without MIG.
    #[must_use]
    pub fn mig_table(&self) -> Option<MigTable> {
        self.layout.table()
    }

    /// Names that other drivers give to profiles of the table: an id of the table, and the other name. On a node NVML's
    /// name holds.
    #[must_use]
    pub fn other_names(&self) -> &'static [(GiProfileId, Profile)] {
        self.renamed
    }

    const fn renamed(self, renamed: &'static [(GiProfileId, Profile)]) -> Self {
        Self { renamed, ..self }
    }

    const fn unsure(self) -> Self {
        Self { certainty: Certainty::Unsure, ..self }
    }
}

const fn model(
    name: &'static str,
    products: &'static [&'static str],
    memory: u64,
    layout: Layout,
) -> GpuModel {
    let (memory, certainty) = (MemoryMib(memory), Certainty::Documented);
    GpuModel { name, products, memory, certainty, layout, renamed: &[] }
}
