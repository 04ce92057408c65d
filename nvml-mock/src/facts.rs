//! Each model's answers to simple queries of NVML: name, memory, PCI ids, clocks. Data only.

use crate::model::Model;

/// The values of `nvmlDeviceArchitecture_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Architecture {
    Turing = 6,
    Ampere = 7,
    Ada = 8,
    Hopper = 9,
    Blackwell = 10,
}

/// A model's answers to simple queries.
pub(crate) struct Facts {
    /// The answer to `nvmlDeviceGetName`.
    pub name: &'static str,
    /// Memory as NVML counts it, which is less than the nominal size if ECC or firmware takes a part.
    pub total_mib: u64,
    /// Memory that the driver reserves (`reserved` of the v2 memory structure).
    pub reserved_mib: u64,
    /// PCI device and vendor as one word, `0xDDDDVVVV`.
    pub pci_device_id: u32,
    /// The subsystem word. The H200's is real; the others are nominal.
    pub pci_subsystem_id: u32,
    pub architecture: Architecture,
    pub compute_capability: (i32, i32),
    pub power_limit_mw: u32,
    /// The highest graphics, SM, memory and video clock, in MHz.
    pub clocks_mhz: [u32; 4],
    pub pcie_generation: u32,
}

use Architecture::{Ada, Ampere, Blackwell, Hopper, Turing};

#[rustfmt::skip]
const A100_40: Facts = Facts {
    name: "NVIDIA A100-SXM4-40GB", total_mib: 40960, reserved_mib: 612,
    pci_device_id: 0x20B0_10DE, pci_subsystem_id: 0x134F_10DE, architecture: Ampere,
    compute_capability: (8, 0), power_limit_mw: 400_000,
    clocks_mhz: [1410, 1410, 1215, 1290], pcie_generation: 4,
};

#[rustfmt::skip]
const A100_80: Facts = Facts {
    name: "NVIDIA A100-SXM4-80GB", total_mib: 81920, reserved_mib: 636,
    pci_device_id: 0x20B2_10DE, pci_subsystem_id: 0x1463_10DE, architecture: Ampere,
    compute_capability: (8, 0), power_limit_mw: 400_000,
    clocks_mhz: [1410, 1410, 1593, 1290], pcie_generation: 4,
};

#[rustfmt::skip]
const A30: Facts = Facts {
    name: "NVIDIA A30", total_mib: 24576, reserved_mib: 512,
    pci_device_id: 0x20B7_10DE, pci_subsystem_id: 0x1532_10DE, architecture: Ampere,
    compute_capability: (8, 0), power_limit_mw: 165_000,
    clocks_mhz: [1440, 1440, 1215, 1305], pcie_generation: 4,
};

#[rustfmt::skip]
const H100: Facts = Facts {
    name: "NVIDIA H100 80GB HBM3", total_mib: 81559, reserved_mib: 551,
    pci_device_id: 0x2330_10DE, pci_subsystem_id: 0x16C1_10DE, architecture: Hopper,
    compute_capability: (9, 0), power_limit_mw: 700_000,
    clocks_mhz: [1980, 1980, 2619, 1545], pcie_generation: 5,
};

#[rustfmt::skip]
const H200: Facts = Facts {
    name: "NVIDIA H200", total_mib: 143_771, reserved_mib: 615,
    pci_device_id: 0x2335_10DE, pci_subsystem_id: 0x18BF_10DE, architecture: Hopper,
    compute_capability: (9, 0), power_limit_mw: 700_000,
    clocks_mhz: [1980, 1980, 3201, 1545], pcie_generation: 5,
};

#[rustfmt::skip]
const H100_NVL: Facts = Facts {
    name: "NVIDIA H100 NVL", total_mib: 95830, reserved_mib: 551,
    pci_device_id: 0x2321_10DE, pci_subsystem_id: 0x1839_10DE, architecture: Hopper,
    compute_capability: (9, 0), power_limit_mw: 400_000,
    clocks_mhz: [1785, 1785, 2619, 1545], pcie_generation: 5,
};

#[rustfmt::skip]
const H100_96: Facts = Facts {
    name: "NVIDIA H100 96GB HBM3", total_mib: 97871, reserved_mib: 551,
    pci_device_id: 0x233D_10DE, pci_subsystem_id: 0x16C1_10DE, architecture: Hopper,
    compute_capability: (9, 0), power_limit_mw: 700_000,
    clocks_mhz: [1980, 1980, 2619, 1545], pcie_generation: 5,
};

#[rustfmt::skip]
const H20_96: Facts = Facts {
    name: "NVIDIA H20", total_mib: 97871, reserved_mib: 551,
    pci_device_id: 0x2329_10DE, pci_subsystem_id: 0x198B_10DE, architecture: Hopper,
    compute_capability: (9, 0), power_limit_mw: 500_000,
    clocks_mhz: [1980, 1980, 2619, 1545], pcie_generation: 5,
};

#[rustfmt::skip]
const H20_141: Facts = Facts {
    name: "NVIDIA H20-3e", total_mib: 143_771, reserved_mib: 615,
    pci_device_id: 0x232C_10DE, pci_subsystem_id: 0x198B_10DE, architecture: Hopper,
    compute_capability: (9, 0), power_limit_mw: 500_000,
    clocks_mhz: [1980, 1980, 3201, 1545], pcie_generation: 5,
};

#[rustfmt::skip]
const GH200_96: Facts = Facts {
    name: "NVIDIA GH200 480GB", total_mib: 97871, reserved_mib: 551,
    pci_device_id: 0x2342_10DE, pci_subsystem_id: 0x16EB_10DE, architecture: Hopper,
    compute_capability: (9, 0), power_limit_mw: 900_000,
    clocks_mhz: [1980, 1980, 2619, 1545], pcie_generation: 5,
};

#[rustfmt::skip]
const GH200_144: Facts = Facts {
    name: "NVIDIA GH200 144G HBM3e", total_mib: 146_831, reserved_mib: 615,
    pci_device_id: 0x2348_10DE, pci_subsystem_id: 0x18D2_10DE, architecture: Hopper,
    compute_capability: (9, 0), power_limit_mw: 900_000,
    clocks_mhz: [1980, 1980, 3201, 1545], pcie_generation: 5,
};

#[rustfmt::skip]
const B200: Facts = Facts {
    name: "NVIDIA B200", total_mib: 183_359, reserved_mib: 700,
    pci_device_id: 0x2901_10DE, pci_subsystem_id: 0x1999_10DE, architecture: Blackwell,
    compute_capability: (10, 0), power_limit_mw: 1_000_000,
    clocks_mhz: [1965, 1965, 3996, 1860], pcie_generation: 5,
};

#[rustfmt::skip]
const GB200: Facts = Facts {
    name: "NVIDIA GB200", total_mib: 189_471, reserved_mib: 700,
    pci_device_id: 0x2941_10DE, pci_subsystem_id: 0x2046_10DE, architecture: Blackwell,
    compute_capability: (10, 0), power_limit_mw: 1_200_000,
    clocks_mhz: [2062, 2062, 3996, 1860], pcie_generation: 5,
};

#[rustfmt::skip]
const B300: Facts = Facts {
    name: "NVIDIA B300 SXM6 AC", total_mib: 275_040, reserved_mib: 700,
    pci_device_id: 0x3182_10DE, pci_subsystem_id: 0x20E6_10DE, architecture: Blackwell,
    compute_capability: (10, 3), power_limit_mw: 1_100_000,
    clocks_mhz: [2032, 2032, 3996, 1860], pcie_generation: 6,
};

#[rustfmt::skip]
const GB300: Facts = Facts {
    name: "NVIDIA GB300", total_mib: 284_208, reserved_mib: 700,
    pci_device_id: 0x31C2_10DE, pci_subsystem_id: 0x21F1_10DE, architecture: Blackwell,
    compute_capability: (10, 3), power_limit_mw: 1_400_000,
    clocks_mhz: [2032, 2032, 3996, 1860], pcie_generation: 6,
};

#[rustfmt::skip]
const RTX_PRO_6000: Facts = Facts {
    name: "NVIDIA RTX PRO 6000 Blackwell Server Edition", total_mib: 97887, reserved_mib: 650,
    pci_device_id: 0x2BB5_10DE, pci_subsystem_id: 0x204E_10DE, architecture: Blackwell,
    compute_capability: (12, 0), power_limit_mw: 600_000,
    clocks_mhz: [2430, 2430, 12481, 2092], pcie_generation: 5,
};

#[rustfmt::skip]
const A10G: Facts = Facts {
    name: "NVIDIA A10G", total_mib: 23028, reserved_mib: 512,
    pci_device_id: 0x2237_10DE, pci_subsystem_id: 0x152F_10DE, architecture: Ampere,
    compute_capability: (8, 6), power_limit_mw: 300_000,
    clocks_mhz: [1710, 1710, 6251, 1500], pcie_generation: 4,
};

#[rustfmt::skip]
const L40S: Facts = Facts {
    name: "NVIDIA L40S", total_mib: 46068, reserved_mib: 597,
    pci_device_id: 0x26B9_10DE, pci_subsystem_id: 0x1851_10DE, architecture: Ada,
    compute_capability: (8, 9), power_limit_mw: 350_000,
    clocks_mhz: [2520, 2520, 9001, 1965], pcie_generation: 4,
};

#[rustfmt::skip]
const L4: Facts = Facts {
    name: "NVIDIA L4", total_mib: 23034, reserved_mib: 471,
    pci_device_id: 0x27B8_10DE, pci_subsystem_id: 0x16CA_10DE, architecture: Ada,
    compute_capability: (8, 9), power_limit_mw: 72_000,
    clocks_mhz: [2040, 2040, 6251, 1770], pcie_generation: 4,
};

#[rustfmt::skip]
const T4: Facts = Facts {
    name: "Tesla T4", total_mib: 15360, reserved_mib: 444,
    pci_device_id: 0x1EB8_10DE, pci_subsystem_id: 0x12A2_10DE, architecture: Turing,
    compute_capability: (7, 5), power_limit_mw: 70_000,
    clocks_mhz: [1590, 1590, 5001, 1470], pcie_generation: 3,
};

impl Model {
    /// Totals are what `nvidia-smi` shows under recent drivers; the H200's column was read on a real one. The name of
    /// the H100 with 96 GB is made up.
    pub(crate) fn facts(self) -> &'static Facts {
        match self {
            Model::A100Gb40 => &A100_40,
            Model::A100Gb80 => &A100_80,
            Model::A30 => &A30,
            Model::H100 => &H100,
            Model::H200 => &H200,
            Model::H100Nvl => &H100_NVL,
            Model::H100Gb96 => &H100_96,
            Model::H20Gb96 => &H20_96,
            Model::H20Gb141 => &H20_141,
            Model::GH200Gb96 => &GH200_96,
            Model::GH200Gb144 => &GH200_144,
            Model::B200 => &B200,
            Model::GB200 => &GB200,
            Model::B300 => &B300,
            Model::GB300 => &GB300,
            Model::RtxPro6000 => &RTX_PRO_6000,
            Model::A10G => &A10G,
            Model::L40S => &L40S,
            Model::L4 => &L4,
            Model::T4 => &T4,
        }
    }
}
