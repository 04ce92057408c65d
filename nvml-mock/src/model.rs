//! The GPU models. facts.rs has the answers of each, and tables.rs how MIG cuts it.

use serde::{Deserialize, Serialize};

use crate::facts::Architecture;

/// A GPU model that the mock can simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Model {
    /// A100 SXM4 with 40 GB: MIG with seven compute slices and eight memory slices.
    #[serde(rename = "A100-40GB")]
    A100Gb40,
    /// A100 SXM4 with 80 GB.
    #[serde(rename = "A100-80GB")]
    A100Gb80,
    /// A30 with 24 GB: MIG with four slices, and its own profile ids.
    #[serde(rename = "A30-24GB")]
    A30,
    /// H100 SXM5 with 80 GB.
    #[serde(rename = "H100-80GB")]
    H100,
    /// H200 SXM with 141 GB.
    #[serde(rename = "H200-141GB")]
    H200,
    /// H100 NVL with 94 GB.
    #[serde(rename = "H100-94GB")]
    H100Nvl,
    /// H100 with 96 GB. For this and all later models, everything that NVIDIA's listings leave open is nominal.
    #[serde(rename = "H100-96GB")]
    H100Gb96,
    #[serde(rename = "H20-96GB")]
    H20Gb96,
    #[serde(rename = "H20-141GB")]
    H20Gb141,
    #[serde(rename = "GH200-96GB")]
    GH200Gb96,
    #[serde(rename = "GH200-144GB")]
    GH200Gb144,
    #[serde(rename = "B200-180GB")]
    B200,
    #[serde(rename = "GB200-186GB")]
    GB200,
    #[serde(rename = "B300-269GB")]
    B300,
    #[serde(rename = "GB300-278GB")]
    GB300,
    /// RTX PRO 6000 Blackwell with 96 GB: MIG with four compute slices and twelve memory slices; fully listed.
    #[serde(rename = "RTX-PRO-6000-96GB")]
    RtxPro6000,
    /// A10G with 24 GB, without MIG.
    #[serde(rename = "A10G-24GB")]
    A10G,
    /// L40S with 48 GB, without MIG.
    #[serde(rename = "L40S-48GB")]
    L40S,
    /// L4 with 24 GB, without MIG.
    #[serde(rename = "L4-24GB")]
    L4,
    /// T4 with 16 GB, without MIG.
    #[serde(rename = "T4-16GB")]
    T4,
}

impl Model {
    /// Every model, in the order of the enum.
    pub const ALL: [Model; 20] = [
        Model::A100Gb40,
        Model::A100Gb80,
        Model::A30,
        Model::H100,
        Model::H200,
        Model::H100Nvl,
        Model::H100Gb96,
        Model::H20Gb96,
        Model::H20Gb141,
        Model::GH200Gb96,
        Model::GH200Gb144,
        Model::B200,
        Model::GB200,
        Model::B300,
        Model::GB300,
        Model::RtxPro6000,
        Model::A10G,
        Model::L40S,
        Model::L4,
        Model::T4,
    ];

    /// The product name that NVML returns.
    #[must_use]
    pub fn product_name(self) -> &'static str {
        self.facts().name
    }

    /// Total memory in MiB as NVML reports it.
    #[must_use]
    pub fn total_mib(self) -> u64 {
        self.facts().total_mib
    }

    #[must_use]
    pub fn has_mig(self) -> bool {
        !matches!(self, Model::A10G | Model::L40S | Model::L4 | Model::T4)
    }

    /// Whether the driver keeps the MIG mode, as on Hopper and later: a reboot loses it, and a switch needs no reset.
    pub(crate) fn mig_mode_lives_in_driver(self) -> bool {
        self.facts().architecture >= Architecture::Hopper
    }

    /// The value of `nvmlBrandType_t`: 2 is Tesla, 14 is NVIDIA (the answer of an H200).
    pub(crate) fn brand(self) -> u32 {
        if self == Model::T4 { 2 } else { 14 }
    }

    /// Turing retires pages; Ampere and later remap rows.
    pub(crate) fn retires_pages(self) -> bool {
        self.facts().architecture == Architecture::Turing
    }
}
