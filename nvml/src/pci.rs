//! Reads the kernel's information about a GPU on the PCI bus: its class, the nearest NUMA node, and the bridges above
//! it. It reads the same files as NVIDIA's device plugin and GFD. `nvmlDeviceGetNumaNodeId` is not suitable, because it
//! returns the node that the memory of a GPU itself forms, on machines where it does.

use std::path::{Component, Path, PathBuf};

const DEVICES: &str = "bus/pci/devices";

/// The NUMA node of the GPU with NVML's PCI address `bus_id`; `None` on machines with one node, or if it cannot be
/// read.
pub(crate) fn numa_node(sys: &Path, bus_id: &str) -> Option<u32> {
    // There is no node for -1, because the kernel writes that for none, and it does not parse as unsigned.
    read(sys, bus_id, "numa_node")?.trim().parse().ok()
}

/// The class of the GPU with this address: 0x030200 is a 3D controller. `None` if it cannot be read.
pub(crate) fn class(sys: &Path, bus_id: &str) -> Option<u32> {
    let text = read(sys, bus_id, "class")?;
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// The host bridge of the GPU with this address, and the bridges from there to it, by the kernel's names: `pci0000:15`,
/// `0000:15:01.0`. Empty if they cannot be read.
pub(crate) fn bridges(sys: &Path, bus_id: &str) -> Vec<String> {
    let Ok(path) = device(sys, bus_id).canonicalize() else { return Vec::new() };
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let is_host_bridge = |name: &str| name.strip_prefix("pci").is_some_and(|bus| bus.contains(':'));
    let mut bridges: Vec<_> = names.skip_while(|name| !is_host_bridge(name)).map(str::to_owned).collect();
    bridges.pop();
    bridges
}

fn read(sys: &Path, bus_id: &str, file: &str) -> Option<String> {
    std::fs::read_to_string(device(sys, bus_id).join(file)).ok()
}

fn device(sys: &Path, bus_id: &str) -> PathBuf {
    sys.join(DEVICES).join(address(bus_id))
}

/// Converts an address, because NVML writes the domain with eight digits, and the kernel writes at least four, in lower
/// case.
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
    fn the_kernels_files_are_found_by_nvmls_address() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        let file = |address: &str, text: &str| {
            let device = sys.join(DEVICES).join(address);
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("numa_node"), text).unwrap();
        };
        file("0000:1b:00.0", "1\n");
        file("10000:04:00.0", "3\n");
        file("0000:1f:00.0", "-1\n");
        std::fs::write(sys.join(DEVICES).join("0000:1b:00.0/class"), "0x030200\n").unwrap();
        assert_eq!(class(sys, "00000000:1B:00.0"), Some(0x03_02_00));
        assert_eq!(class(sys, "00000000:1F:00.0"), None, "the kernel reports no class");
        assert_eq!(numa_node(sys, "00000000:1B:00.0"), Some(1));
        assert_eq!(numa_node(sys, "00010000:04:00.0"), Some(3));
        assert_eq!(numa_node(sys, "00000000:1F:00.0"), None, "the machine has one node");
        assert_eq!(numa_node(sys, "00000000:FF:00.0"), None, "there is no such device");
    }

    #[test]
    fn bridges_are_those_between_the_host_bridge_and_the_gpu() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        std::fs::create_dir_all(sys.join(DEVICES)).unwrap();
        for (address, path) in [
            ("0000:18:00.0", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:18:00.0"),
            ("0000:00:06.0", "pci0000:00/0000:00:06.0"),
        ] {
            let device = sys.join("devices").join(path);
            std::fs::create_dir_all(&device).unwrap();
            std::os::unix::fs::symlink(device, sys.join(DEVICES).join(address)).unwrap();
        }
        std::fs::create_dir(sys.join(DEVICES).join("0000:1b:00.0")).unwrap();
        let found = |bus_id| bridges(sys, bus_id);
        assert_eq!(found("00000000:18:00.0"), ["pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:02.0"]);
        assert_eq!(found("00000000:00:06.0"), ["pci0000:00"], "as in a virtual machine");
        assert!(found("00000000:1B:00.0").is_empty() && found("00000000:FF:00.0").is_empty());
    }
}
