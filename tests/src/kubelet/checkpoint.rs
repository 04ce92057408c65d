//! The kubelet's checkpoint file: which containers hold which devices, and what the plugins answered. `Data`
//! and `Checksum` are as the real kubelet writes them (kubernetes v1.36,
//! `pkg/kubelet/cm/devicemanager/checkpoint`). A further field has what this kubelet restores.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::grant::Grant;
use super::ledger::LedgerCheckpoint;

/// Name of the real kubelet's file in the device plugin folder.
const FILE: &str = "kubelet_internal_checkpoint";

/// The field beside `Data`. Readers of the real file ignore unknown fields.
const OWN: &str = "StandIn";

/// The state that a kubelet restores after its restart.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    pub(super) ledger: LedgerCheckpoint,
    /// Answers of `Allocate` by pod UID and container.
    pub(super) grants: BTreeMap<String, BTreeMap<String, Grant>>,
}

impl Checkpoint {
    /// Reads the checkpoint. `None` if there is no readable one, which the kubelet treats as a first start.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let mut file: Value = serde_json::from_slice(&std::fs::read(path(folder)).ok()?).ok()?;
        serde_json::from_value(file.get_mut(OWN)?.take()).ok()
    }

    /// Writes the checkpoint by a rename, so that no reader sees half of it.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let draft = folder.join(".checkpoint");
        let (entries, texts) = self.entries()?;
        // The real kubelet also writes each name's devices, which are left out because kerf does not read them.
        let names: BTreeMap<&String, Value> =
            self.ledger.names.iter().map(|name| (name, json!([]))).collect();
        let registered: Vec<_> = names.keys().map(|name| format!("{name}:[]")).collect();
        let text = format!(
            "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry)[{}] \
             RegisteredDevices:(map[string][]string)map[{}]}}",
            texts.join(" "),
            registered.join(" ")
        );
        let data = json!({"PodDeviceEntries": entries, "RegisteredDevices": names});
        let file = json!({"Data": data, "Checksum": fnv1a(&text), OWN: self});
        std::fs::write(&draft, serde_json::to_vec(&file)?)?;
        std::fs::rename(draft, path(folder))
    }

    /// An entry for each container and name, and the text of which the checksum is computed.
    fn entries(&self) -> io::Result<(Vec<Value>, Vec<String>)> {
        let mut all = (Vec::new(), Vec::new());
        for (uid, containers) in &self.ledger.holdings {
            for (container, names) in containers {
                let grant = self.grants.get(uid).and_then(|containers| containers.get(container));
                // These are other bytes than the real kubelet's, because kerf does not read the plugin's
                // answer.
                let answer = serde_json::to_vec(&grant)?;
                for (name, ids) in names {
                    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                    let bytes: Vec<String> = answer.iter().map(u8::to_string).collect();
                    all.1.push(format!(
                        "{{PodUID:(string){uid} ContainerName:(string){container} ResourceName:(string){name} \
                         DeviceIDs:(checkpoint.DevicesPerNUMA)map[-1:[{}]] AllocResp:([]uint8)[{}]}}",
                        ids.join(" "),
                        bytes.join(" ")
                    ));
                    all.0.push(json!({
                        "PodUID": uid,
                        "ContainerName": container,
                        "ResourceName": name,
                        "DeviceIDs": {"-1": ids},
                        "AllocResp": STANDARD.encode(&answer),
                    }));
                }
            }
        }
        Ok(all)
    }
}

fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn path(folder: &Path) -> PathBuf {
    folder.join(FILE)
}
