//! The kernel's files of the GPUs' PCI devices, below `/sys`, which NVIDIA's programs read.

use std::path::Path;

use crate::files::{self, FileError};
use crate::state::{GpuState, MockState};

/// PCI bus of the first GPU; the others follow at a distance of four.
const FIRST_BUS: u32 = 0x1B;

/// Class of a 3D controller, which is a GPU without a display (PCI Code and ID Assignment Specification, base class
/// 03).
const CONTROLLER_3D: u32 = 0x03_0200;

/// The number of windows and ROM of a device in `resource`, all unused: start, end, flags.
const RESOURCES: usize = 13;

/// The size of a device's configuration space in bytes (PCI Local Bus Specification, 6.1).
const CONFIGURATION: usize = 256;

fn bus(gpu: u32) -> u32 {
    FIRST_BUS + gpu * 4
}

/// The address of the GPU at an index, in NVML's form.
pub(crate) fn bus_id(gpu: u32) -> String {
    format!("00000000:{:02X}:00.0", bus(gpu))
}

impl GpuState {
    pub(crate) fn bus(&self) -> u32 {
        bus(self.index)
    }
}

impl MockState {
    /// Writes the folder of each GPU below `sys`, which replaces `/sys`: `bus/pci/devices/<address>`.
    pub fn write_sys(&self, sys: &Path) -> Result<(), FileError> {
        let devices = sys.join("bus/pci/devices");
        for gpu in &self.gpus {
            let folder = devices.join(format!("0000:{:02x}:00.0", gpu.bus()));
            std::fs::create_dir_all(&folder)
                .map_err(|source| FileError::Write { path: folder.clone(), source })?;
            let id = gpu.model.facts().pci_device_id;
            let resource = ["0x0 0x0 0x0"; RESOURCES].join("\n");
            let texts = [
                ("vendor", format!("{:#06x}", id & 0xFFFF)),
                ("device", format!("{:#06x}", id >> 16)),
                ("class", format!("{CONTROLLER_3D:#08x}")),
                ("numa_node", gpu.numa_node.map_or_else(|| "-1".to_owned(), |node| node.to_string())),
                ("resource", resource),
            ];
            // Programs only check its configuration space for capabilities, such as a vGPU's, and it lists none.
            files::write_whole(&folder.join("config"), &[0; CONFIGURATION])?;
            for (file, text) in texts {
                files::write_whole(&folder.join(file), format!("{text}\n").as_bytes())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{MigMode, MockConfig, MockState, Model};

    #[test]
    fn each_gpu_has_a_folder_by_its_address() {
        let folder = tempfile::tempdir().unwrap();
        let config = MockConfig::new().gpus(Model::T4, 2, MigMode::Disabled);
        MockState::first_boot(&config).unwrap().write_sys(folder.path()).unwrap();
        let read = |file: &str| {
            let device = folder.path().join("bus/pci/devices/0000:1f:00.0");
            std::fs::read_to_string(device.join(file)).unwrap()
        };
        assert_eq!([read("vendor"), read("device"), read("class")], ["0x10de\n", "0x1eb8\n", "0x030200\n"]);
        assert_eq!(std::fs::read_dir(folder.path().join("bus/pci/devices")).unwrap().count(), 2);
    }
}
