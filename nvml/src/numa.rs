//! The NUMA node that a GPU is nearest to.
//!
//! By the kernel, as NVIDIA's device plugin asks. (`nvmlDeviceGetNumaNodeId` tells another thing: the node that the memory
//! of a GPU itself is, on machines where it is one.)

use std::path::Path;

/// The kernel's folder of PCI devices.
pub(crate) const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// The node of the GPU with NVML's PCI address `bus_id`; `None` on machines with one node, or where it cannot be read.
pub(crate) fn node_of(devices: &Path, bus_id: &str) -> Option<u32> {
    let text = std::fs::read_to_string(devices.join(address(bus_id)).join("numa_node")).ok()?;
    // The kernel writes -1 for none.
    text.trim().parse().ok()
}

/// NVML writes the domain with eight digits, the kernel with as many as it needs and at least four, in small letters.
fn address(bus_id: &str) -> String {
    let bus_id = bus_id.to_ascii_lowercase();
    match bus_id.split_once(':') {
        Some((domain, rest)) => format!("{:0>4}:{rest}", domain.trim_start_matches('0')),
        None => bus_id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_answer_is_found_by_nvmls_address() {
        let folder = tempfile::tempdir().unwrap();
        let file = |address: &str, text: &str| {
            let device = folder.path().join(address);
            std::fs::create_dir(&device).unwrap();
            std::fs::write(device.join("numa_node"), text).unwrap();
        };
        file("0000:1b:00.0", "1\n");
        file("10000:04:00.0", "3\n");
        file("0000:1f:00.0", "-1\n");
        assert_eq!(node_of(folder.path(), "00000000:1B:00.0"), Some(1));
        assert_eq!(node_of(folder.path(), "00010000:04:00.0"), Some(3));
        assert_eq!(node_of(folder.path(), "00000000:1F:00.0"), None, "the machine has one node");
        assert_eq!(node_of(folder.path(), "00000000:FF:00.0"), None, "there is no such device");
    }
}
