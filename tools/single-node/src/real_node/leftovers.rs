//! Finds what may outlive a node that did not end in order: containerd's shims with their children, and MPS
//! daemons. They are identified by their arguments and environment, so that no other processes are killed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::{Places, Process};

/// How long a killed process may take to end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The part of the name `containerd-shim-runc-v2` that the kernel stores.
const SHIM: &str = "containerd-shim";

#[derive(Debug, Default)]
pub struct Leftovers {
    processes: BTreeMap<i32, String>,
}

impl Leftovers {
    /// Finds shims whose arguments have the folder of sockets, processes whose environment has an MPS pipe
    /// there, and all their descendants.
    #[must_use]
    pub fn find(places: &Places) -> Self {
        let all = Process::all();
        let socket = format!("{}/", places.run().display());
        let pipes = format!("CUDA_MPS_PIPE_DIRECTORY={socket}");
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let mut found: BTreeMap<i32, String> = BTreeMap::new();
        // A child may be listed before its parent, so the search repeats until it finds nothing new.
        loop {
            let before = found.len();
            for (&id, process) in &all {
                let shim = process.name == SHIM && process.arguments.contains(&socket);
                let client = process.environment.contains(&pipes);
                let ours = shim || client || found.contains_key(&process.parent);
                // This process and init must never be killed, even if they match.
                if ours && id != own && id > 1 {
                    found.insert(id, process.name.clone());
                }
            }
            if found.len() == before {
                return Self { processes: found };
            }
        }
    }

    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.processes.iter().map(|(id, name)| format!("{name} ({id})")).collect()
    }

    /// Kills them and waits until they have ended. Returns those that have not.
    #[must_use]
    pub fn kill(&self) -> Vec<String> {
        let ids: Vec<Pid> = self.processes.keys().filter_map(|id| Pid::from_raw(*id)).collect();
        for id in &ids {
            // It may have ended meanwhile.
            let _ = kill_process(*id, Signal::KILL);
        }
        let begun = Instant::now();
        while ids.iter().any(|id| is_alive(*id)) && begun.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_millis(20));
        }
        let alive = ids.iter().filter(|id| is_alive(**id));
        alive.map(|id| id.as_raw_nonzero().to_string()).collect()
    }

    /// Removes the cgroups that the kubelet leaves behind. Only empty ones can be removed.
    pub fn remove_cgroups() {
        let root = Path::new("/sys/fs/cgroup");
        // Both places are searched, because cgroups of version 2 are below the root, and those of version 1 below each
        // controller's folder.
        let controllers = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        for folder in controllers.chain([root.to_owned()]) {
            remove_below(&folder.join("kubepods"));
        }
    }
}

/// Whether the process exists and is not a zombie.
#[must_use]
pub fn is_alive(id: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).unwrap_or_default();
    let zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
    test_kill_process(id).is_ok() && !zombie
}

fn remove_below(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path());
        }
    }
    // A missing folder, or one with processes in it, stays as it is.
    let _ = fs::remove_dir(folder);
}
