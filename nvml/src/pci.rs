//! What the kernel says of a GPU on the PCI bus, as NVIDIA's device plugin and GFD ask it: its class, and the NUMA node that it is
//! nearest to. (`nvmlDeviceGetNumaNodeId` tells another thing: the node that the memory of a GPU itself is, on machines where
//! it is one.)

use std::path::Path;

/// The kernel's folder of PCI devices.
pub(crate) const DEVICES: &str = "/sys/bus/pci/devices";

/// The node of the GPU with NVML's PCI address `bus_id`; `None` on machines with one node, or where it cannot be read.
pub(crate) fn numa_node(devices: &Path, bus_id: &str) -> Option<u32> {
    // The kernel writes -1 for none.
    read(devices, bus_id, "numa_node")?.trim().parse().ok()
}

/// The class of the GPU with this address: 0x030200 is a 3D controller. `None` where it cannot be read.
pub(crate) fn class(devices: &Path, bus_id: &str) -> Option<u32> {
    let text = read(devices, bus_id, "class")?;
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

fn read(devices: &Path, bus_id: &str, file: &str) -> Option<String> {
    std::fs::read_to_string(devices.join(address(bus_id)).join(file)).ok()
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
        std::fs::write(folder.path().join("0000:1b:00.0/class"), "0x030200\n").unwrap();
        assert_eq!(class(folder.path(), "00000000:1B:00.0"), Some(0x03_02_00));
        assert_eq!(class(folder.path(), "00000000:1F:00.0"), None, "the kernel does not tell");
        assert_eq!(numa_node(folder.path(), "00000000:1B:00.0"), Some(1));
        assert_eq!(numa_node(folder.path(), "00010000:04:00.0"), Some(3));
        assert_eq!(numa_node(folder.path(), "00000000:1F:00.0"), None, "the machine has one node");
        assert_eq!(numa_node(folder.path(), "00000000:FF:00.0"), None, "there is no such device");
    }
}
