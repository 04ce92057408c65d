//! Reads the driver's character devices from `/proc`: their major numbers, and the capabilities of MIG instances.
//!
//! The driver lists a capability in two places of `/proc` (nvidia-modprobe, `nvidia-modprobe-utils.c`):
//! `driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access`, a file that exists as long as the instance does, and a line
//! `gpu0/gi1/ci0/access 13` of `driver/nvidia-caps/mig-minors`, a table of all that could exist. Some containers
//! hide the first from the agent; then the table alone has to suffice.

use super::error::AccessError;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Permissions of an instance's capability if only the table is visible: readable for all, the value that the driver
/// writes into the capability's own file (292).
const MODE: u32 = 0o444;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capability {
    pub(super) minor: u32,
    pub(super) mode: u32,
    /// Whether the agent may create and change the file; the driver can leave that to the administrator.
    pub(super) may_make: bool,
}

/// A GPU instance, or a compute instance in one, whose capability is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Instance {
    pub(super) gpu: u32,
    pub(super) gi: u32,
    /// The compute instance's id; `None` for the GPU instance itself.
    pub(super) ci: Option<u32>,
}

impl Instance {
    /// The capability's name, without the prefix for the GPU.
    fn name(self) -> String {
        let ci = self.ci.map(|ci| format!("/ci{ci}")).unwrap_or_default();
        format!("gi{}{ci}/access", self.gi)
    }
}

pub(super) fn read(proc: &Path, instance: Instance) -> Result<Capability, AccessError> {
    let table = proc.join("driver/nvidia-caps/mig-minors");
    if !table.exists() {
        return Err(AccessError::NoCapabilities { path: table });
    }
    let tree = proc.join("driver/nvidia/capabilities");
    if !tree.is_dir() {
        return from_table(&table, instance);
    }
    let file = tree.join(format!("gpu{}/mig/{}", instance.gpu, instance.name()));
    match fs::read_to_string(&file) {
        Ok(text) => from_file(&file, &text),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(AccessError::NoSuchInstance {
            path: tree,
            name: format!("gpu{}/mig/{}", instance.gpu, instance.name()),
        }),
        Err(error) => Err(AccessError::file(&file)(error)),
    }
}

fn from_file(file: &Path, text: &str) -> Result<Capability, AccessError> {
    let unreadable = |line: &str| AccessError::Unreadable { path: file.to_owned(), line: line.to_owned() };
    let value = |key: &str| -> Result<u32, AccessError> {
        let line =
            text.lines().find(|line| line.split(':').next() == Some(key)).ok_or_else(|| unreadable(text))?;
        let value = line.split_once(':').and_then(|(_, value)| value.trim().parse().ok());
        value.ok_or_else(|| unreadable(line))
    };
    Ok(Capability {
        minor: value("DeviceFileMinor")?,
        mode: value("DeviceFileMode")?,
        may_make: value("DeviceFileModify")? != 0,
    })
}

fn from_table(table: &Path, instance: Instance) -> Result<Capability, AccessError> {
    let text = fs::read_to_string(table).map_err(AccessError::file(table))?;
    let name = format!("gpu{}/{}", instance.gpu, instance.name());
    let line = text.lines().find(|line| line.split(' ').next() == Some(&name));
    let Some(line) = line else { return Err(AccessError::NoSuchInstance { path: table.to_owned(), name }) };
    let minor = line.split_once(' ').and_then(|(_, minor)| minor.trim().parse().ok());
    let minor =
        minor.ok_or_else(|| AccessError::Unreadable { path: table.to_owned(), line: line.to_owned() })?;
    Ok(Capability { minor, mode: MODE, may_make: true })
}

/// The kernel's table of character devices, in its text form.
#[derive(Debug, Default)]
pub(super) struct Majors(String);

impl Majors {
    /// Reads `<proc>/devices`; the table is empty if that fails.
    pub(super) fn read(proc: &Path) -> Self {
        Self(fs::read_to_string(proc.join("devices")).unwrap_or_default())
    }

    /// The major number of the first of these names that the kernel lists.
    pub(super) fn major(&self, names: &[&str]) -> Option<u32> {
        let characters = self.0.lines().take_while(|line| !line.starts_with("Block"));
        let listed = characters.filter_map(|line| line.trim().split_once(' '));
        listed.filter(|(_, name)| names.contains(name)).find_map(|(major, _)| major.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majors_are_those_of_character_devices() {
        let majors = Majors(
            "Character devices:\n  1 mem\n195 nvidia\n241 nvidia-caps\n\nBlock devices:\n  7 loop\n".into(),
        );
        assert_eq!(majors.major(&["nvidia-frontend", "nvidia"]), Some(195));
        assert_eq!(majors.major(&["nvidia-caps"]), Some(241));
        assert_eq!((majors.major(&["loop"]), majors.major(&["nvidia-uvm"])), (None, None));
    }

    #[test]
    fn a_capability_file_has_the_minor_number_the_mode_and_whether_the_agent_may_create_it() {
        let text = "DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n";
        let capability = from_file(Path::new("f"), text).unwrap();
        assert_eq!(capability, Capability { minor: 12, mode: 0o444, may_make: true });
        for bad in ["", "DeviceFileMinor: x\n", "DeviceFileMinor: 12\nDeviceFileMode: 292\n"] {
            assert!(matches!(from_file(Path::new("f"), bad), Err(AccessError::Unreadable { .. })), "{bad:?}");
        }
    }
}
