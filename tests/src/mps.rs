//! The orders and events of the stand-in for `nvidia-cuda-mps-control` (the program `mps_control_stand_in`).
//!
//! It answers as driver 580 did on an H200, but needs no GPU. The daemon of `<root>/<target>/pipe` reads its
//! orders from `<root>.stand-in/<target>.json` and logs events to `<root>.stand-in/<target>.log`. Both are
//! outside of `<root>`, because the agent manages the folders there.

use crate::binaries::{self, BinaryError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The orders of a daemon. It reads changes within some milliseconds; while it hangs, it only reads whether
/// the hang has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Orders {
    /// Increases with each change. A fault that occurs once does so once for each serial.
    pub serial: u64,
    pub faults: Vec<WordFault>,
    /// The client processes that are connected or try to be. One that lost its server does not return.
    pub clients: BTreeSet<u32>,
    /// Puts the servers into fault, once.
    pub server_fault: Option<ServerFault>,
}

/// The fault of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WordFault {
    /// The command without its arguments, such as `get_server_list`.
    pub word: String,
    pub fault: Fault,
    /// How often it occurs, counted over restarts of the daemon; `None` means always.
    pub times: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// The command is not executed, and this is the answer.
    Answer(String),
    /// The daemon does nothing and answers no client until the orders no longer have this fault.
    HangBefore,
    /// The daemon executes the command, then answers no client until the orders no longer have this fault.
    HangAfter,
    /// The daemon is killed before it executes the command.
    DieBefore,
    /// The daemon is killed after its answer.
    DieAfter,
}

/// How long a server stays in fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerFault {
    /// Until its clients have left, as a real one does.
    UntilClientsLeave,
    /// Until it is shut down.
    UntilShutDown,
    /// Until the daemon restarts. Shutting the server down has no effect.
    UntilRestart,
}

/// An event in a daemon's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    Started {
        /// Process id of the daemon.
        daemon: u32,
        arguments: Vec<String>,
    },
    Word {
        /// The command with its arguments.
        word: String,
        /// The serial of the orders at that time.
        serial: u64,
        /// The fault that it had.
        fault: Option<Fault>,
    },
    Client {
        /// Process id of the client.
        client: u32,
        /// The id of its server.
        server: u32,
        /// Its memory limit in MiB; `None` if unlimited.
        memory: Option<u64>,
        /// Its part of the multiprocessors, in percent.
        threads: f64,
    },
    /// The servers were put into fault.
    Fault {
        /// The serial of the orders that caused it.
        serial: u64,
    },
}

#[derive(Debug, Clone)]
pub struct Files {
    orders: PathBuf,
    log: PathBuf,
}

impl Files {
    /// The files of a target's daemon below a root.
    #[must_use]
    pub fn for_target(root: &Path, target: &str) -> Self {
        let mut name = root.file_name().map_or_else(OsString::new, ToOwned::to_owned);
        name.push(".stand-in");
        let folder = root.with_file_name(name);
        Self { orders: folder.join(format!("{target}.json")), log: folder.join(format!("{target}.log")) }
    }

    /// The files of the daemon with this pipe directory; `None` unless it is `<root>/<target>/pipe`.
    #[must_use]
    pub fn from_pipe(pipe: &Path) -> Option<Self> {
        let target = pipe.parent()?;
        Some(Self::for_target(target.parent()?, target.file_name()?.to_str()?))
    }

    /// The orders; the default ones if there is no file.
    pub fn orders(&self) -> io::Result<Orders> {
        match fs::read(&self.orders) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Orders::default()),
            text => serde_json::from_slice(&text?).map_err(io::Error::other),
        }
    }

    /// Replaces the orders by a rename, with the next serial.
    pub fn order(&self, orders: Orders) -> io::Result<()> {
        let serial = self.orders()?.serial + 1;
        let next = self.orders.with_extension("next");
        if let Some(folder) = next.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&next, serde_json::to_vec_pretty(&Orders { serial, ..orders })?)?;
        fs::rename(next, &self.orders)
    }

    pub fn events(&self) -> io::Result<Vec<Event>> {
        let text = match fs::read_to_string(&self.log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        // The last line may be half written.
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.map(|line| serde_json::from_str(line).map_err(io::Error::other)).collect()
    }

    /// Appends an event to the daemon's log.
    pub fn note(&self, event: &Event) -> io::Result<()> {
        if let Some(folder) = self.log.parent() {
            fs::create_dir_all(folder)?;
        }
        let line = serde_json::to_string(event)? + "\n";
        OpenOptions::new().create(true).append(true).open(&self.log)?.write_all(line.as_bytes())
    }
}

/// The stand-ins below one root, for a test.
#[derive(Debug, Clone)]
pub struct MpsStandIn {
    root: PathBuf,
}

impl MpsStandIn {
    /// The stand-ins with pipe directories `<root>/<target>/pipe`.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The program to run instead of `nvidia-cuda-mps-control`.
    pub fn program() -> Result<PathBuf, BinaryError> {
        binaries::ours("mps_control_stand_in")
    }

    /// Sets the orders of a target's daemon, whether or not it runs.
    pub fn order(&self, target: &str, orders: Orders) -> io::Result<()> {
        Files::for_target(&self.root, target).order(orders)
    }

    /// The events of a target's daemons.
    pub fn events(&self, target: &str) -> io::Result<Vec<Event>> {
        Files::for_target(&self.root, target).events()
    }

    /// The commands that a target's daemons received, with their arguments.
    pub fn words(&self, target: &str) -> io::Result<Vec<String>> {
        let words = self.events(target)?.into_iter().filter_map(|event| match event {
            Event::Word { word, .. } => Some(word),
            _ => None,
        });
        Ok(words.collect())
    }

    /// How often each command arrived, without its arguments.
    pub fn counts(&self, target: &str) -> io::Result<BTreeMap<String, usize>> {
        let mut counts = BTreeMap::new();
        for word in self.words(target)? {
            *counts.entry(name(&word).to_owned()).or_insert(0) += 1;
        }
        Ok(counts)
    }

    /// The faults of commands so far, with the commands' names.
    pub fn struck(&self, target: &str) -> io::Result<Vec<(String, Fault)>> {
        let struck = self.events(target)?.into_iter().filter_map(|event| match event {
            Event::Word { word, fault: Some(fault), .. } => Some((name(&word).to_owned(), fault)),
            _ => None,
        });
        Ok(struck.collect())
    }
}

/// The name of a command without its arguments.
#[must_use]
pub fn name(word: &str) -> &str {
    word.split_whitespace().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_log_lie_beside_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("mps");
        let stand_in = MpsStandIn::below(&root);
        let clients = BTreeSet::from([7]);
        stand_in.order("GPU-1", Orders { clients: clients.clone(), ..Orders::default() }).unwrap();
        stand_in.order("GPU-1", Orders { clients, ..Orders::default() }).unwrap();
        let files = Files::from_pipe(&root.join("GPU-1/pipe")).unwrap();
        assert_eq!(files.orders().unwrap().serial, 2);
        assert_eq!(files.orders().unwrap().clients, [7].into());
        assert_eq!(Files::for_target(&root, "GPU-2").orders().unwrap(), Orders::default());
        let fault = Some(Fault::Answer("no".to_owned()));
        let word = |word: &str, fault| Event::Word { word: word.to_owned(), serial: 2, fault };
        files.note(&word("get_server_status 1", None)).unwrap();
        files.note(&word("get_server_status 2", fault)).unwrap();
        assert_eq!(stand_in.counts("GPU-1").unwrap(), [("get_server_status".to_owned(), 2)].into());
        assert_eq!(
            stand_in.struck("GPU-1").unwrap(),
            [("get_server_status".to_owned(), Fault::Answer("no".to_owned()))]
        );
        assert!(!root.exists());
    }
}
