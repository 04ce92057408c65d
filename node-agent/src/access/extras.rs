//! Extras for containers with a GPU, if an admin enables them: GPUDirect Storage, GDRCopy, RDMA and IMEX. They match
//! NVIDIA's device plugin (k8s-device-plugin, `--gds-enabled`, `--gdrcopy-enabled`, `--mofed-enabled`,
//! `--imex-channel-ids`).

use super::driver::DriverFile;
use super::error::AccessError;
use super::rooted::{outside, resolve};
use super::{DeviceFile, Places, node_file};
use std::fs;
use std::path::Path;

/// Which extras containers get; none by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extras {
    /// The device file `/dev/gdrdrv`, for GDRCopy.
    pub gdrcopy: bool,
    /// The device files `/dev/nvidia-fs*`, for GPUDirect Storage, with its configuration and udev's state.
    pub gds: bool,
    /// The device files `/dev/infiniband`, for RDMA.
    pub mofed: bool,
    /// The IMEX channel 0, for memory on other nodes of an `NVLink` domain.
    pub imex: ImexChannel,
}

/// Whether containers get the IMEX channel 0, which is the only channel of NVIDIA's plugin too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ImexChannel {
    #[default]
    Off,
    /// Containers get it if the node has it.
    IfPresent,
    /// Every container needs it: without it no device is offered.
    Required,
}

/// The values that `nvidia-container-runtime` reads, for runtimes without CDI.
const ENABLED: &str = "enabled";
const CHANNEL: &str = "nvidia-caps-imex-channels/channel0";

/// Files that GPUDirect Storage reads (nvidia-container-toolkit, `internal/discover/gds.go`).
const GDS_FILES: [&str; 2] = ["/etc/cufile.json", "/run/udev"];

impl Extras {
    /// The device files of these extras that the node has.
    pub(super) fn device_files(self, places: &Places) -> Result<Vec<DeviceFile>, AccessError> {
        let mut names = Vec::new();
        names.extend(self.gdrcopy.then(|| "gdrdrv".to_owned()));
        if self.gds {
            names.extend(names_with(&places.dev, "nvidia-fs"));
        }
        if self.mofed {
            let rdma = names_with(&places.dev.join("infiniband"), "uverbs");
            names.extend(
                rdma.into_iter().chain(["rdma_cm".to_owned()]).map(|name| format!("infiniband/{name}")),
            );
        }
        if self.imex != ImexChannel::Off {
            names.push(CHANNEL.to_owned());
        }
        let files: Vec<_> = names.iter().filter_map(|name| device_file(places, name)).collect();
        let channel = Path::new("/dev").join(CHANNEL);
        if self.imex == ImexChannel::Required && !files.iter().any(|file| file.container == channel) {
            return Err(AccessError::NoImexChannel { path: places.dev.join(CHANNEL) });
        }
        Ok(files)
    }

    /// The mounts that belong to these device files.
    pub(super) fn mounts(self, places: &Places, files: &[DeviceFile]) -> Vec<DriverFile> {
        let is_gds = |file: &DeviceFile| file.container.to_string_lossy().starts_with("/dev/nvidia-fs");
        if !self.gds || !files.iter().any(is_gds) {
            return Vec::new();
        }
        let there = GDS_FILES.iter().filter_map(|path| {
            let real = resolve(&places.driver_root, Path::new(path))?;
            Some(DriverFile { container: path.into(), host: outside(&places.host_driver_root, &real) })
        });
        there.collect()
    }

    /// Environment variables for NVIDIA's runtime, which reads them where CDI is off.
    pub(super) fn environment(self) -> Vec<(&'static str, &'static str)> {
        let variables = [
            (self.gdrcopy, "NVIDIA_GDRCOPY", ENABLED),
            (self.gds, "NVIDIA_GDS", ENABLED),
            (self.mofed, "NVIDIA_MOFED", ENABLED),
            (self.imex != ImexChannel::Off, "NVIDIA_IMEX_CHANNELS", "0"),
        ];
        variables.into_iter().filter_map(|(is_on, name, value)| is_on.then_some((name, value))).collect()
    }
}

/// Returns the device file if it exists and is a character device.
fn device_file(places: &Places, name: &str) -> Option<DeviceFile> {
    let (major, minor) = node_file::number(&fs::metadata(places.dev.join(name)).ok()?)?;
    let container = Path::new("/dev").join(name);
    Some(DeviceFile { container, host: places.host_dev.join(name), major, minor })
}

/// The names in a folder with this prefix, sorted.
fn names_with(folder: &Path, start: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(start)).collect();
    names.sort();
    names
}
