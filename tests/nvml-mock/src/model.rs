//! The GPU models and what each says of itself. Knows nothing of MIG layouts (profile.rs) or of state.

use serde::{Deserialize, Serialize};

/// A GPU model that the mock can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Model {
    /// A100 SXM4 with 40 GB: MIG on seven compute slices, eight memory slices.
    #[serde(rename = "A100-40GB")]
    A100Gb40,
    /// A100 SXM4 with 80 GB.
    #[serde(rename = "A100-80GB")]
    A100Gb80,
    /// A30 with 24 GB: MIG on four slices, with profile ids of its own.
    #[serde(rename = "A30-24GB")]
    A30,
    /// H100 SXM5 with 80 GB.
    #[serde(rename = "H100-80GB")]
    H100,
    /// H200 SXM with 141 GB.
    #[serde(rename = "H200-141GB")]
    H200,
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

/// `nvmlDeviceArchitecture_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Architecture {
    Turing = 6,
    Ampere = 7,
    Ada = 8,
    Hopper = 9,
}

/// What a model answers to NVML's plain questions.
pub(crate) struct Facts {
    /// `nvmlDeviceGetName`.
    pub name: &'static str,
    /// Memory as NVML counts it, which is less than the nominal size where ECC or firmware takes a part.
    pub total_mib: u64,
    /// What the driver keeps for itself (`reserved` of the v2 memory structure).
    pub reserved_mib: u64,
    /// PCI device and vendor as one word, `0xDDDDVVVV`.
    pub pci_device_id: u32,
    /// Subsystem word. The H200's is real; the others are nominal.
    pub pci_subsystem_id: u32,
    pub architecture: Architecture,
    pub compute_capability: (i32, i32),
    pub power_limit_mw: u32,
    /// Graphics, SM, memory and video clock at their highest, in MHz.
    pub clocks_mhz: [u32; 4],
    pub pcie_generation: u32,
}

impl Model {
    /// Every model, in the order of the enum.
    pub const ALL: [Model; 9] = [
        Model::A100Gb40,
        Model::A100Gb80,
        Model::A30,
        Model::H100,
        Model::H200,
        Model::A10G,
        Model::L40S,
        Model::L4,
        Model::T4,
    ];

    /// The product name that NVML gives.
    #[must_use]
    pub fn product_name(self) -> &'static str {
        self.facts().name
    }

    /// Total memory in MiB as NVML reports it.
    #[must_use]
    pub fn total_mib(self) -> u64 {
        self.facts().total_mib
    }

    /// Whether the model can be cut by MIG at all.
    #[must_use]
    pub fn has_mig(self) -> bool {
        matches!(self, Model::A100Gb40 | Model::A100Gb80 | Model::A30 | Model::H100 | Model::H200)
    }

    /// Hopper and later keep MIG mode in the driver, so that a reboot loses it, and switch it without a reset.
    pub(crate) fn mig_mode_lives_in_driver(self) -> bool {
        self.facts().architecture >= Architecture::Hopper
    }

    /// `nvmlBrandType_t`: 2 is Tesla, 14 is NVIDIA (what an H200 answers).
    pub(crate) fn brand(self) -> u32 {
        if self == Model::T4 { 2 } else { 14 }
    }

    /// Turing retires pages; Ampere and later remap rows.
    pub(crate) fn retires_pages(self) -> bool {
        self.facts().architecture == Architecture::Turing
    }

    /// Totals are what `nvidia-smi` shows under recent drivers; the H200's column was read on a real one.
    #[rustfmt::skip]
    pub(crate) fn facts(self) -> &'static Facts {
        use Architecture::{Ada, Ampere, Hopper, Turing};
        match self {
            Model::A100Gb40 => &Facts {
                name: "NVIDIA A100-SXM4-40GB", total_mib: 40960, reserved_mib: 612,
                pci_device_id: 0x20B0_10DE, pci_subsystem_id: 0x134F_10DE, architecture: Ampere,
                compute_capability: (8, 0), power_limit_mw: 400_000,
                clocks_mhz: [1410, 1410, 1215, 1290], pcie_generation: 4,
            },
            Model::A100Gb80 => &Facts {
                name: "NVIDIA A100-SXM4-80GB", total_mib: 81920, reserved_mib: 636,
                pci_device_id: 0x20B2_10DE, pci_subsystem_id: 0x1463_10DE, architecture: Ampere,
                compute_capability: (8, 0), power_limit_mw: 400_000,
                clocks_mhz: [1410, 1410, 1593, 1290], pcie_generation: 4,
            },
            Model::A30 => &Facts {
                name: "NVIDIA A30", total_mib: 24576, reserved_mib: 512,
                pci_device_id: 0x20B7_10DE, pci_subsystem_id: 0x1532_10DE, architecture: Ampere,
                compute_capability: (8, 0), power_limit_mw: 165_000,
                clocks_mhz: [1440, 1440, 1215, 1305], pcie_generation: 4,
            },
            Model::H100 => &Facts {
                name: "NVIDIA H100 80GB HBM3", total_mib: 81559, reserved_mib: 551,
                pci_device_id: 0x2330_10DE, pci_subsystem_id: 0x16C1_10DE, architecture: Hopper,
                compute_capability: (9, 0), power_limit_mw: 700_000,
                clocks_mhz: [1980, 1980, 2619, 1545], pcie_generation: 5,
            },
            Model::H200 => &Facts {
                name: "NVIDIA H200", total_mib: 143_771, reserved_mib: 615,
                pci_device_id: 0x2335_10DE, pci_subsystem_id: 0x18BF_10DE, architecture: Hopper,
                compute_capability: (9, 0), power_limit_mw: 700_000,
                clocks_mhz: [1980, 1980, 3201, 1545], pcie_generation: 5,
            },
            Model::A10G => &Facts {
                name: "NVIDIA A10G", total_mib: 23028, reserved_mib: 512,
                pci_device_id: 0x2237_10DE, pci_subsystem_id: 0x152F_10DE, architecture: Ampere,
                compute_capability: (8, 6), power_limit_mw: 300_000,
                clocks_mhz: [1710, 1710, 6251, 1500], pcie_generation: 4,
            },
            Model::L40S => &Facts {
                name: "NVIDIA L40S", total_mib: 46068, reserved_mib: 597,
                pci_device_id: 0x26B9_10DE, pci_subsystem_id: 0x1851_10DE, architecture: Ada,
                compute_capability: (8, 9), power_limit_mw: 350_000,
                clocks_mhz: [2520, 2520, 9001, 1965], pcie_generation: 4,
            },
            Model::L4 => &Facts {
                name: "NVIDIA L4", total_mib: 23034, reserved_mib: 471,
                pci_device_id: 0x27B8_10DE, pci_subsystem_id: 0x16CA_10DE, architecture: Ada,
                compute_capability: (8, 9), power_limit_mw: 72_000,
                clocks_mhz: [2040, 2040, 6251, 1770], pcie_generation: 4,
            },
            Model::T4 => &Facts {
                name: "Tesla T4", total_mib: 15360, reserved_mib: 444,
                pci_device_id: 0x1EB8_10DE, pci_subsystem_id: 0x12A2_10DE, architecture: Turing,
                compute_capability: (7, 5), power_limit_mw: 70_000,
                clocks_mhz: [1590, 1590, 5001, 1470], pcie_generation: 3,
            },
        }
    }
}
