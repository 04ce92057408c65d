//! The CDI spec of a device, and its CDI name.
//!
//! A device's kubelet id is also its CDI name (`kerf.dev/gpu=GPU-…::3`). The ids that kerf assigns fit CDI's grammar,
//! in which a name begins and ends with a letter or digit and may have `_ - . :` in between.

use super::DeviceFile;
use super::driver::DriverFile;
use super::error::AccessError;
use super::hook::Hook;
use kerf_core::keys;
use kerf_core::names::DeviceId;
use serde::Serialize;
use std::path::Path;

/// The lowest version of CDI that has every field of a spec: `hostPath` came with it (CDI, SPEC.md).
const VERSION: &str = "0.5.0";

/// The device class in a CDI name, after the vendor.
const CLASS: &str = "gpu";

/// Keeps NVIDIA's runtime from adding the devices and the driver a second time.
const NOT_BY_NVIDIAS_RUNTIME: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// Access to a device file: read and write, but not mknod (CDI, SPEC.md).
const PERMISSIONS: &str = "rw";

/// Mount options of the driver's files.
const MOUNT: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    cdi_version: &'a str,
    kind: String,
    devices: [Device<'a>; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device<'a> {
    name: &'a str,
    container_edits: Edits<'a>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Edits<'a> {
    env: [&'a str; 1],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    device_nodes: Vec<DeviceNode<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<Mount<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hooks: Option<[Hook<'a>; 1]>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceNode<'a> {
    path: &'a Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_path: Option<&'a Path>,
    r#type: &'a str,
    major: u32,
    minor: u32,
    permissions: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mount<'a> {
    host_path: &'a Path,
    container_path: &'a Path,
    options: [&'a str; 5],
}

/// The CDI name of a device, without vendor and class.
pub(super) fn device_name(device: &DeviceId) -> Result<&str, AccessError> {
    let name = device.as_str();
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let may_stand = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    let is_name = is_end(name.chars().next()) && is_end(name.chars().last()) && name.chars().all(may_stand);
    if is_name { Ok(name) } else { Err(AccessError::Name(device.clone())) }
}

/// The full CDI name, by which the kubelet requests a device from the container runtime.
pub(super) fn full_name(name: &str) -> String {
    format!("{}={name}", kind())
}

fn kind() -> String {
    format!("{}/{CLASS}", keys::GROUP)
}

pub(super) fn document<'a>(
    name: &'a str,
    files: &'a [DeviceFile],
    mounted: impl Iterator<Item = &'a DriverFile>,
    hook: Option<Hook<'a>>,
) -> Result<String, AccessError> {
    let device_nodes = files.iter().map(|file| DeviceNode {
        path: &file.container,
        host_path: Some(file.host.as_path()).filter(|host| *host != file.container),
        r#type: "c",
        major: file.major,
        minor: file.minor,
        permissions: PERMISSIONS,
    });
    let mounts =
        mounted.map(|file| Mount { host_path: &file.host, container_path: &file.container, options: MOUNT });
    let container_edits = Edits {
        env: [NOT_BY_NVIDIAS_RUNTIME],
        device_nodes: device_nodes.collect(),
        mounts: mounts.collect(),
        hooks: hook.map(|hook| [hook]),
    };
    let spec = Spec { cdi_version: VERSION, kind: kind(), devices: [Device { name, container_edits }] };
    serde_json::to_string_pretty(&spec).map_err(AccessError::Spec)
}
