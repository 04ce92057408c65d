//! The GPU models that kerf has without NVML, for planning off a node, for tests and for short names.
//!
//! On a node the table comes from NVML, and [`compare`] returns where the catalog differs. Ids, placements and memory
//! are from NVIDIA's MIG user guide and from published outputs of `nvidia-smi mig -lgip` and `-lgipp`. Memory differs
//! between drivers, and on a few GPUs so do names.

mod compare;
mod four;
mod layout;
mod product;
mod seven;
#[cfg(test)]
mod tests;
mod without_mig;

use super::{GiProfileId, MigTable, Profile};
use crate::units::MemoryMib;
use layout::Layout;
use std::collections::BTreeSet;

pub use compare::{Disagreement, compare};
pub use product::{by_product, short_name};

/// How reliable a model's table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Certainty {
    /// Profiles, ids and placements are in a published listing of a real GPU.
    Documented,
    /// Ids, placements or memory were inferred from GPUs of the same family. Programs that plan with such a table off a
    /// node must report that it is unsure. On a node NVML's table is used.
    Unsure,
}

/// One GPU model of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuModel {
    /// The short name in kerf's labels, documents and messages, as in `H100-80GB`.
    pub name: &'static str,
    /// Parts of the product names that NVML reports, in whole words with blanks for dashes; the usual part first.
    pub products: &'static [&'static str],
    /// Total memory as NVML reports it, in MiB.
    pub memory: MemoryMib,
    /// How reliable the table of [`mig_table`](Self::mig_table) is.
    pub certainty: Certainty,
    layout: Layout,
    renamed: &'static [(GiProfileId, Profile)],
}

/// All GPU models of the catalog.
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
    four::RTX_PRO_6000,
    four::A30,
    without_mig::A10G,
    without_mig::L40S,
    without_mig::L4,
    without_mig::T4,
];

/// The model with this short name; `None` if the catalog does not have it.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static GpuModel> {
    MODELS.iter().find(|m| m.name == name)
}

/// Every profile that some model has under some driver, without duplicates.
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
    /// The model's MIG profiles, as reliable as [`certainty`](Self::certainty) says; `None` for a GPU without MIG.
    #[must_use]
    pub fn mig_table(&self) -> Option<MigTable> {
        self.layout.table()
    }

    /// Names that other drivers give to profiles of the table: an id of the table, and the other name. On a node NVML's
    /// name is used.
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
