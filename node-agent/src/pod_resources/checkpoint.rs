//! Reads the kubelet's checkpoint of devices and their holders: `kubelet_internal_checkpoint` beside the device
//! plugins' sockets.
//!
//! List omits ordinary init containers; this file has them, with the UIDs of pods. The facts below are from the source
//! of Kubernetes v1.36.4 (`pkg/kubelet/cm/devicemanager`). Format, checksum and places of writes are the same in
//! v1.33.5, v1.34.1 and v1.35.0:
//!
//! - Format (`checkpoint/checkpoint.go`): JSON of `Data` and `Checksum`. Devices are listed by NUMA node, `-1` for
//!   none, and the plugin's answer as base64 beside them. Releases after v1.36 add `BootID` outside `Data`, which is not
//!   part of the checksum.
//! - Checksum (`checkpointmanager/checksum`, `k8s.io/utils/dump`): FNV-1a of 32 bits over a fixed text form of `Data`.
//! - Written (`allocateContainerResources`): for each container, after the plugins have answered `Allocate` for all its
//!   names and before the pod is admitted; an error of the write rejects the pod. It is also written with each list that
//!   a plugin sends (`genericDeviceUpdateCallback`), even between an answer and the write that follows it. So a file that
//!   is newer than an allocation may still lack it.
//! - A write is a temporary file, fsync and rename (`pkg/kubelet/util/store`), so a reader sees one state as a whole.
//! - Entries of pods that have ended leave the kubelet's memory with the next allocation or List
//!   (`UpdateAllocatedDevices`), and the file with the next write after that. So an entry counts only while its pod is
//!   alive.

use crate::node::Recorded;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kerf_core::names::{DeviceId, PodUid};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use thiserror::Error;

/// The file in the folder of device plugins (`kubeletDeviceManagerCheckpoint`).
const FILE: &str = "kubelet_internal_checkpoint";

/// Why the kubelet's checkpoint cannot be used.
#[derive(Debug, Error)]
pub enum CheckpointError {
    #[error("failed to read the kubelet's {FILE}: {0}")]
    Unreadable(#[from] std::io::Error),
    #[error("the kubelet's {FILE} has an unknown form: {0}")]
    Unknown(#[from] serde_json::Error),
    #[error("the kubelet's {FILE} has an unknown form: AllocResp: {0}")]
    Answer(#[from] base64::DecodeError),
    #[error("the kubelet's {FILE} is corrupt: its checksum is {stated}, that of its content {computed}")]
    Corrupt {
        /// The checksum in the file.
        stated: u64,
        /// The checksum of the content.
        computed: u32,
    },
}

/// Reads the checkpoint in the folder of device plugins.
///
/// # Errors
/// There is no file, or its form or its checksum is wrong.
pub async fn read(folder: &Path) -> Result<Vec<Recorded>, CheckpointError> {
    parse(&tokio::fs::read(folder.join(FILE)).await?)
}

/// The devices of kerf's names in a checkpoint with a correct checksum.
fn parse(text: &[u8]) -> Result<Vec<Recorded>, CheckpointError> {
    let File { data, checksum: stated } = serde_json::from_slice(text)?;
    let computed = checksum(&data)?;
    if stated != u64::from(computed) {
        return Err(CheckpointError::Corrupt { stated, computed });
    }
    let mut all: Vec<Recorded> = data.entries.into_iter().flatten().flat_map(recorded).collect();
    // The kubelet writes them in the random order of a Go map.
    all.sort();
    Ok(all)
}

fn recorded(entry: Entry) -> Vec<Recorded> {
    let Ok(name) = entry.resource.parse() else { return Vec::new() };
    let devices = entry.devices.into_iter().flatten().filter_map(|(_, devices)| devices).flatten();
    let of_device = |device: String| Recorded {
        uid: PodUid::new(&entry.uid),
        container: entry.container.clone(),
        name,
        device: DeviceId::new(device),
    };
    devices.map(of_device).collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u64,
}

/// Go writes a list or a map that was never created as null. The checksum differs between null and an empty one.
#[derive(Deserialize)]
struct Data {
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<Entry>>,
    #[serde(rename = "RegisteredDevices")]
    registered: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    devices: Option<BTreeMap<i64, Option<Vec<String>>>>,
    #[serde(rename = "AllocResp")]
    answer: Option<String>,
}

fn checksum(data: &Data) -> Result<u32, base64::DecodeError> {
    let answer = |entry: &Entry| entry.answer.as_ref().map(|text| STANDARD.decode(text)).transpose();
    let answers = data.entries.iter().flatten().map(answer).collect::<Result<Vec<_>, _>>()?;
    let mut sum = Fnv::default();
    // Writing into a sum cannot fail.
    write_data(&mut sum, data, &answers).ok();
    Ok(sum.0)
}

fn write_data(to: &mut Fnv, data: &Data, answers: &[Option<Vec<u8>>]) -> fmt::Result {
    to.write_str("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)")?;
    let entries = data.entries.as_ref().map(|entries| entries.iter().zip(answers));
    write_list(to, entries, |to, (entry, answer)| write_entry(to, entry, answer.as_ref()))?;
    to.write_str(" RegisteredDevices:(map[string][]string)")?;
    write_map(to, data.registered.as_ref())?;
    to.write_str("}")
}

fn write_entry(to: &mut Fnv, entry: &Entry, answer: Option<&Vec<u8>>) -> fmt::Result {
    let Entry { uid, container, resource, devices, .. } = entry;
    write!(to, "{{PodUID:(string){uid} ContainerName:(string){container} ResourceName:(string){resource}")?;
    to.write_str(" DeviceIDs:(checkpoint.DevicesPerNUMA)")?;
    write_map(to, devices.as_ref())?;
    to.write_str(" AllocResp:([]uint8)")?;
    write_list(to, answer.map(|bytes| bytes.iter()), |to, byte| write!(to, "{byte}"))?;
    to.write_str("}")
}

fn write_map<K: fmt::Display>(to: &mut Fnv, map: Option<&BTreeMap<K, Option<Vec<String>>>>) -> fmt::Result {
    to.write_str(if map.is_some() { "map" } else { "" })?;
    write_list(to, map.map(|map| map.iter()), |to, (key, devices)| {
        write!(to, "{key}:")?;
        write_list(to, devices.as_ref().map(|all| all.iter()), |to, device| to.write_str(device))
    })
}

fn write_list<I: Iterator>(
    to: &mut Fnv,
    list: Option<I>,
    write_one: impl Fn(&mut Fnv, I::Item) -> fmt::Result,
) -> fmt::Result {
    let Some(list) = list else { return to.write_str("<nil>") };
    to.write_str("[")?;
    for (number, item) in list.enumerate() {
        to.write_str(if number == 0 { "" } else { " " })?;
        write_one(to, item)?;
    }
    to.write_str("]")
}

struct Fnv(u32);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x811c_9dc5)
    }
}

impl fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = text.bytes().fold(self.0, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Ok(())
    }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
