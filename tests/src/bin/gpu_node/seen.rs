//! What a container tells of its GPU, and what it should be. Decides only.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

const MPS_MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const MPS_THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const MPS_PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// What the driver makes beside the GPUs' own files, and containers with a GPU have.
const COMMON_FILES: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];

/// Multiprocessors of the GPU that this is about, and how many percent of them the driver may round up by: they come in twos.
const H200: u64 = 132;
const ROUNDING: u64 = 3;

/// What a container tells.
#[derive(Debug, Deserialize)]
pub struct Seen {
    environment: BTreeMap<String, String>,
    /// The names in `/dev`.
    devices: Vec<String>,
    /// Absent where there is no CUDA.
    cuda: Option<Cuda>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cuda {
    gpus: u32,
    name: String,
    multiprocessors: u64,
    free_mib: u64,
    total_mib: u64,
    eight_gib: bool,
    twelve_gib: bool,
}

/// What a pod with a share should see.
pub struct Expected {
    /// The share's memory.
    pub memory_mib: u64,
    /// The whole GPU's.
    pub of_mib: u64,
    /// Whether there is a GPU to be seen.
    pub gpu: bool,
}

impl Expected {
    /// What is not as expected, each as a text.
    pub fn compare(&self, seen: &Seen) -> Vec<String> {
        let mut wrong = self.environment(seen);
        if self.gpu {
            wrong.extend(device_files(&seen.devices));
            match &seen.cuda {
                Some(cuda) => wrong.extend(self.cuda(cuda)),
                None => wrong.push("expected CUDA, saw none".to_owned()),
            }
        }
        wrong
    }

    fn percent(&self) -> u64 {
        (self.memory_mib * 100 / self.of_mib.max(1)).max(1)
    }

    /// The most that a process of the share's may use.
    fn multiprocessors(&self) -> u64 {
        (self.percent() + ROUNDING) * H200 / 100
    }

    fn environment(&self, seen: &Seen) -> Vec<String> {
        let expected =
            [(MPS_MEMORY, format!("0={}M", self.memory_mib)), (MPS_THREADS, self.percent().to_string())];
        let mut wrong = Vec::new();
        for (key, value) in expected {
            let told = seen.environment.get(key);
            if told != Some(&value) {
                wrong.push(format!("expected {key}={value}, saw {told:?}"));
            }
        }
        if !seen.environment.contains_key(MPS_PIPE) {
            wrong.push(format!("expected {MPS_PIPE}, saw none"));
        }
        wrong
    }

    fn cuda(&self, cuda: &Cuda) -> Vec<String> {
        let holds = [
            (cuda.gpus == 1, "one GPU"),
            (cuda.free_mib <= self.memory_mib, "no more free memory than the share's"),
            (cuda.eight_gib, "8 GiB to be had"),
            (!cuda.twelve_gib, "12 GiB to be refused"),
            (cuda.multiprocessors <= self.multiprocessors(), "the share's part of the multiprocessors"),
        ];
        let wrong = holds.into_iter().filter(|(holds, _)| !holds);
        wrong.map(|(_, what)| format!("expected {what}, saw {cuda:?}")).collect()
    }
}

/// The one GPU's file and the common ones, and no others of the driver's; no disk of the machine's.
fn device_files(devices: &[String]) -> Vec<String> {
    let of_gpu = |name: &&String| name.strip_prefix("nvidia").is_some_and(|n| n.parse::<u32>().is_ok());
    let gpus: Vec<&String> = devices.iter().filter(of_gpu).collect();
    let mut wrong = Vec::new();
    if gpus.len() != 1 {
        wrong.push(format!("expected one GPU in /dev, saw {gpus:?}"));
    }
    for needed in ["nvidiactl", "nvidia-uvm"] {
        if !devices.iter().any(|name| name == needed) {
            wrong.push(format!("expected {needed} in /dev, saw {devices:?}"));
        }
    }
    let known = |name: &&String| of_gpu(name) || COMMON_FILES.contains(&name.as_str());
    let foreign =
        |name: &&String| name.starts_with("nvidia") || name.starts_with("vd") || name.starts_with("sd");
    let more: Vec<&String> = devices.iter().filter(|name| foreign(name) && !known(name)).collect();
    if !more.is_empty() {
        wrong.push(format!("expected no other devices in /dev, saw {more:?}"));
    }
    wrong
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |key: &str| self.environment.get(key).map_or("none", String::as_str);
        write!(f, "memory {} and threads {} %", told(MPS_MEMORY), told(MPS_THREADS))?;
        let Some(cuda) = &self.cuda else { return write!(f, "; no CUDA; /dev: {}", self.devices.join(" ")) };
        let Cuda { name, multiprocessors, free_mib, total_mib, eight_gib, twelve_gib, .. } = cuda;
        let had = |had: bool| if had { "had" } else { "refused" };
        write!(
            f,
            "; {name}, {multiprocessors} multiprocessors, {free_mib} of {total_mib} MiB free; 8 GiB {}",
            had(*eight_gib)
        )?;
        write!(f, ", 12 GiB {}; /dev: {}", had(*twelve_gib), self.devices.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(change: impl FnOnce(&mut serde_json::Value)) -> Seen {
        let mut told = json!({
            "environment": {
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "7",
                "CUDA_MPS_PIPE_DIRECTORY": "/run/x",
            },
            "devices": ["null", "nvidia-uvm", "nvidia0", "nvidiactl"],
            "cuda": {
                "gpus": 1, "name": "NVIDIA H200", "multiprocessors": 10, "freeMib": 9900, "totalMib": 10240,
                "eightGib": true, "twelveGib": false,
            },
        });
        change(&mut told);
        serde_json::from_value(told).unwrap()
    }

    const EXPECTED: Expected = Expected { memory_mib: 10_240, of_mib: 143_771, gpu: true };

    #[test]
    fn a_fenced_share_is_as_expected() {
        assert_eq!(EXPECTED.compare(&seen(|_| ())), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_fenced_is_told_with_what_was_seen() {
        let wrong = EXPECTED.compare(&seen(|told| {
            told["cuda"]["twelveGib"] = json!(true);
            told["cuda"]["multiprocessors"] = json!(132);
            told["devices"] = json!(["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "vda"]);
            told["environment"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = json!("0=1M");
        }));
        assert_eq!(wrong.len(), 5, "{wrong:#?}");
        assert!(wrong[0].contains("expected CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M, saw Some(\"0=1M\")"));
    }
}
