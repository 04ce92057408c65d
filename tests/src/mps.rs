//! A stand-in for `nvidia-cuda-mps-control` (the program `mps_control_stand_in`): what it is told, and what it tells.
//!
//! It answers as driver 580 was seen to on an H200, without a GPU. For the daemon of `<root>/<target>/pipe` the orders are
//! in `<root>.stand-in/<target>.json` and what happened in `<root>.stand-in/<target>.log`, out of the way of whoever
//! keeps the folders below `<root>`.

use crate::binaries::{self, BinaryError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// What a daemon is told. Changes are seen within some milliseconds; by a daemon that hangs, the end of that alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Orders {
    /// Rises with each change. What is to happen once happens once for each.
    pub serial: u64,
    /// What goes wrong with words.
    pub faults: Vec<WordFault>,
    /// The client processes that are connected, or try to be. One that lost its server does not come back.
    pub clients: BTreeSet<u32>,
    /// Whether no client is accepted any more.
    pub refuse_clients: bool,
    /// The servers get into fault, once.
    pub server_fault: Option<ServerFault>,
}

/// What goes wrong with a word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WordFault {
    /// The word without its arguments, such as `get_server_list`.
    pub word: String,
    /// What goes wrong.
    pub fault: Fault,
    /// How often, over restarts of the daemon; always if none.
    pub times: Option<u32>,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// Nothing is done, and this is answered.
    Answer(String),
    /// The daemon does nothing, and answers nobody until the orders no longer say so.
    HangBefore,
    /// It does what was said, and then answers nobody until the orders no longer say so.
    HangAfter,
    /// It is killed before it did anything.
    DieBefore,
    /// It is killed after it answered.
    DieAfter,
}

/// How long a server stays in fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServerFault {
    /// Until its clients have left, as a real one.
    UntilClientsLeave,
    /// Until it is shut down.
    UntilShutDown,
    /// Until the daemon is started anew: it cannot be shut down.
    UntilRestart,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// The daemon began.
    Started {
        /// Its process.
        daemon: u32,
        /// Its arguments.
        arguments: Vec<String>,
    },
    /// A word came.
    Word {
        /// The word with its arguments.
        word: String,
        /// The serial of the orders at the time.
        serial: u64,
        /// What went wrong.
        fault: Option<Fault>,
    },
    /// A client was accepted.
    Client {
        /// Its process.
        client: u32,
        /// Its server.
        server: u32,
        /// The memory that it may have, in MiB.
        memory: Option<u64>,
        /// The multiprocessors that it may have, in percent.
        threads: f64,
    },
    /// The servers got into fault.
    Fault {
        /// The serial of the orders that said so.
        serial: u64,
    },
}

/// The files of one daemon.
#[derive(Debug, Clone)]
pub struct Files {
    orders: PathBuf,
    log: PathBuf,
}

impl Files {
    /// Those of a target below a root.
    #[must_use]
    pub fn of(root: &Path, target: &str) -> Self {
        let mut name = root.file_name().map_or_else(OsString::new, ToOwned::to_owned);
        name.push(".stand-in");
        let folder = root.with_file_name(name);
        Self { orders: folder.join(format!("{target}.json")), log: folder.join(format!("{target}.log")) }
    }

    /// Those of the daemon with this pipe directory, if it is `<root>/<target>/pipe`.
    #[must_use]
    pub fn of_pipe(pipe: &Path) -> Option<Self> {
        let target = pipe.parent()?;
        Some(Self::of(target.parent()?, target.file_name()?.to_str()?))
    }

    /// The orders; none if there are none yet.
    pub fn orders(&self) -> io::Result<Orders> {
        match fs::read(&self.orders) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Orders::default()),
            text => serde_json::from_slice(&text?).map_err(io::Error::other),
        }
    }

    /// Gives orders, all at once and with the next serial.
    pub fn order(&self, orders: Orders) -> io::Result<()> {
        let serial = self.orders()?.serial + 1;
        let next = self.orders.with_extension("next");
        if let Some(folder) = next.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&next, serde_json::to_vec_pretty(&Orders { serial, ..orders })?)?;
        fs::rename(next, &self.orders)
    }

    /// What happened so far.
    pub fn events(&self) -> io::Result<Vec<Event>> {
        let text = match fs::read_to_string(&self.log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        // The last line may be half written.
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.map(|line| serde_json::from_str(line).map_err(io::Error::other)).collect()
    }

    /// Notes what happened.
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
    /// Those with pipe directories `<root>/<target>/pipe`.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The program to run instead of `nvidia-cuda-mps-control`.
    pub fn program() -> Result<PathBuf, BinaryError> {
        binaries::ours("mps_control_stand_in")
    }

    /// Gives a target's daemon orders, whether or not it runs.
    pub fn order(&self, target: &str, orders: Orders) -> io::Result<()> {
        Files::of(&self.root, target).order(orders)
    }

    /// What happened to a target's daemons.
    pub fn events(&self, target: &str) -> io::Result<Vec<Event>> {
        Files::of(&self.root, target).events()
    }

    /// The words that a target's daemons were told, with their arguments.
    pub fn words(&self, target: &str) -> io::Result<Vec<String>> {
        let words = self.events(target)?.into_iter().filter_map(|event| match event {
            Event::Word { word, .. } => Some(word),
            _ => None,
        });
        Ok(words.collect())
    }

    /// How often each word came, without its arguments.
    pub fn counts(&self, target: &str) -> io::Result<BTreeMap<String, usize>> {
        let mut counts = BTreeMap::new();
        for word in self.words(target)? {
            *counts.entry(name(&word).to_owned()).or_insert(0) += 1;
        }
        Ok(counts)
    }

    /// What went wrong with words so far, without their arguments.
    pub fn struck(&self, target: &str) -> io::Result<Vec<(String, Fault)>> {
        let struck = self.events(target)?.into_iter().filter_map(|event| match event {
            Event::Word { word, fault: Some(fault), .. } => Some((name(&word).to_owned(), fault)),
            _ => None,
        });
        Ok(struck.collect())
    }
}

/// A word without its arguments.
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
        let files = Files::of_pipe(&root.join("GPU-1/pipe")).unwrap();
        assert_eq!(files.orders().unwrap().serial, 2);
        assert_eq!(files.orders().unwrap().clients, [7].into());
        assert_eq!(Files::of(&root, "GPU-2").orders().unwrap(), Orders::default());
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
