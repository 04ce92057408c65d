//! Compares what a container reports of its GPU with what is expected, without I/O.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::job::Ask;

const MPS_MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const MPS_THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const MPS_PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// Device files that the driver creates beside those of the GPUs, and that containers with a GPU may have.
const COMMON_FILES: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];

/// Multiprocessors of the GPU that this test runs on, and by how many percent the driver may round up: it
/// gives them in pairs.
const H200: u64 = 132;
const ROUNDING: u64 = 3;

/// The fewest multiprocessors that driver 580 gives a client of this GPU, seen with limits of 2 and 3
/// percent.
const LEAST: u64 = 8;

/// The report of a container.
#[derive(Debug, Deserialize)]
pub struct Seen {
    environment: BTreeMap<String, String>,
    devices: Vec<String>,
    pub user: u32,
    /// How many GPUs CUDA shows. `cuda` has one entry for each GPU that the pod asked for.
    gpus: usize,
    cuda: Vec<Cuda>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cuda {
    name: String,
    multiprocessors: u64,
    free_mib: u64,
    total_mib: u64,
    /// For each try: whether a fifth less than the share was allocated, and whether a fifth more was.
    tries: Vec<(bool, bool)>,
}

pub struct Expected {
    pub ask: Ask,
    /// How often it tried its limit.
    pub tries: usize,
    /// Memory of the whole GPU.
    pub of_mib: u64,
    /// Whether the node has a real GPU, so that device files and CUDA are checked.
    pub gpu: bool,
}

impl Expected {
    /// Every difference between the report and the expectation, as a text.
    pub fn compare(&self, seen: &Seen) -> Vec<String> {
        let mut wrong = self.environment(seen);
        if self.gpu {
            let asked = self.ask.gpus();
            wrong.extend(device_files(&seen.devices, asked));
            if (seen.gpus, seen.cuda.len()) != (asked, asked) {
                wrong.push(format!(
                    "expected {asked} GPUs of CUDA, saw {} and used {}",
                    seen.gpus,
                    seen.cuda.len()
                ));
            }
            wrong.extend(seen.cuda.iter().flat_map(|cuda| self.cuda(cuda)));
        }
        wrong
    }

    fn percent(&self, memory_mib: u64) -> u64 {
        (memory_mib * 100 / self.of_mib.max(1)).max(1)
    }

    fn environment(&self, seen: &Seen) -> Vec<String> {
        let reported = |key: &str| seen.environment.get(key).map(String::as_str);
        let Ask::Share(gib) = self.ask else {
            let set = seen.environment.keys().filter(|key| key.starts_with("CUDA_MPS_"));
            return set.map(|key| format!("expected no {key}, saw {:?}", reported(key))).collect();
        };
        let mib = gib * 1024;
        let expected = [(MPS_MEMORY, format!("0={mib}M")), (MPS_THREADS, self.percent(mib).to_string())];
        let mut wrong = Vec::new();
        for (key, value) in expected {
            if reported(key) != Some(&value) {
                wrong.push(format!("expected {key}={value}, saw {:?}", reported(key)));
            }
        }
        if reported(MPS_PIPE).is_none() {
            wrong.push(format!("expected {MPS_PIPE}, saw none"));
        }
        wrong
    }

    fn cuda(&self, cuda: &Cuda) -> Vec<String> {
        let mut holds = vec![(cuda.tries.len() == self.tries, "as many tries as were asked for")];
        match self.ask {
            Ask::Share(gib) => {
                let most = ((self.percent(gib * 1024) + ROUNDING) * H200 / 100).max(LEAST);
                holds.extend([
                    (cuda.free_mib <= gib * 1024, "no more free memory than the share's"),
                    (cuda.multiprocessors <= most, "the share's part of the multiprocessors"),
                    (cuda.tries.iter().all(|(below, _)| *below), "a fifth less than the share to be had"),
                    (
                        !cuda.tries.iter().any(|(_, above)| *above),
                        "a fifth more than the share to be refused",
                    ),
                ]);
            }
            Ask::TimeSlice(_) => holds.push((cuda.multiprocessors == H200, "all multiprocessors")),
            Ask::Gpus(_) => holds.extend([
                (cuda.multiprocessors == H200, "all multiprocessors"),
                (cuda.free_mib * 100 >= self.of_mib * 95, "nearly all memory free"),
            ]),
        }
        let wrong = holds.into_iter().filter(|(holds, _)| !holds);
        wrong.map(|(_, what)| format!("expected {what}, saw {cuda:?}")).collect()
    }
}

/// Checks `/dev`: one file for each GPU and the common ones, no other file of the driver, and no disk of the
/// machine.
fn device_files(devices: &[String], asked: usize) -> Vec<String> {
    let of_gpu = |name: &&String| name.strip_prefix("nvidia").is_some_and(|n| n.parse::<u32>().is_ok());
    let gpus: Vec<&String> = devices.iter().filter(of_gpu).collect();
    let mut wrong = Vec::new();
    if gpus.len() != asked {
        wrong.push(format!("expected {asked} GPUs in /dev, saw {gpus:?}"));
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
        let reported = |key: &str| self.environment.get(key).map_or("none", String::as_str);
        write!(f, "memory {} and threads {} %", reported(MPS_MEMORY), reported(MPS_THREADS))?;
        if self.cuda.is_empty() {
            write!(f, "; no CUDA")?;
        }
        for Cuda { name, multiprocessors, free_mib, total_mib, tries } in &self.cuda {
            write!(f, "; {name}, {multiprocessors} multiprocessors, {free_mib} of {total_mib} MiB free")?;
            if !tries.is_empty() {
                let had =
                    |which: fn(&(bool, bool)) -> bool| tries.iter().filter(|tried| which(tried)).count();
                let (below, above) = (had(|tried| tried.0), had(|tried| tried.1));
                write!(f, "; a fifth less had {below} and a fifth more {above} of {} times", tries.len())?;
            }
        }
        write!(f, "; /dev: {}", self.devices.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(change: impl FnOnce(&mut serde_json::Value)) -> Seen {
        let mut reported = json!({
            "environment": {
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "7",
                "CUDA_MPS_PIPE_DIRECTORY": "/run/x",
            },
            "devices": ["null", "nvidia-uvm", "nvidia0", "nvidiactl"],
            "user": 0,
            "gpus": 1,
            "cuda": [{
                "name": "NVIDIA H200", "multiprocessors": 10, "freeMib": 9900, "totalMib": 10240,
                "tries": [[true, false], [true, false]],
            }],
        });
        change(&mut reported);
        serde_json::from_value(reported).unwrap()
    }

    fn expected(ask: Ask) -> Expected {
        Expected { ask, tries: 2, of_mib: 143_771, gpu: true }
    }

    #[test]
    fn a_fenced_share_is_as_expected() {
        assert_eq!(expected(Ask::Share(10)).compare(&seen(|_| ())), Vec::<String>::new());
    }

    #[test]
    fn a_missing_fence_is_reported_with_its_evidence() {
        let wrong = expected(Ask::Share(10)).compare(&seen(|reported| {
            reported["cuda"][0]["tries"][1] = json!([true, true]);
            reported["cuda"][0]["multiprocessors"] = json!(132);
            reported["devices"] = json!(["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "vda"]);
            reported["environment"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = json!("0=1M");
        }));
        assert_eq!(wrong.len(), 5, "{wrong:#?}");
        assert!(wrong[0].contains("expected CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M, saw Some(\"0=1M\")"));
    }

    #[test]
    fn a_try_that_was_not_made_is_no_success() {
        let wrong =
            expected(Ask::Share(10)).compare(&seen(|reported| reported["cuda"][0]["tries"] = json!([])));
        assert_eq!(wrong.len(), 1, "{wrong:#?}");
    }

    #[test]
    fn a_pod_that_got_one_gpu_of_two_is_reported() {
        let expected = Expected { tries: 0, ..expected(Ask::Gpus(2)) };
        let wrong = expected.compare(&seen(|reported| {
            reported["environment"] = json!({});
            reported["cuda"][0] = json!({"name": "NVIDIA H200", "multiprocessors": 132, "freeMib": 143_000, "totalMib": 143_771, "tries": []});
        }));
        assert_eq!(wrong.len(), 2, "the device files and what CUDA shows: {wrong:#?}");
    }

    #[test]
    fn pods_with_a_time_slice_or_a_whole_gpu_see_no_server_and_all_multiprocessors() {
        let whole = |reported: &mut serde_json::Value| {
            reported["environment"] = json!({});
            reported["cuda"][0]["multiprocessors"] = json!(132);
            reported["cuda"][0]["freeMib"] = json!(143_000);
        };
        for ask in [Ask::Gpus(1), Ask::TimeSlice(10)] {
            assert_eq!(expected(ask).compare(&seen(whole)), Vec::<String>::new());
            assert!(expected(ask).compare(&seen(|_| ())).len() >= 4, "a share is none");
        }
    }
}
