//! A container that is restarted when it ends, with a record of each run.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::kubelet::locked;
use crate::process::{Child, Program, tail};

/// How often a process is checked for its end.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Grace period of a container. It is 30 s on a real node; NVIDIA's programs end at once.
const GRACE: Duration = Duration::from_secs(5);

/// Lines of a log that a timeout's error shows.
const SHOWN_LINES: usize = 25;

/// How a run of a container ended without an order to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, or 128 plus the signal.
    pub code: i32,
    /// The last lines of its log.
    pub log: String,
}

/// When a container is restarted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Again {
    /// Whenever it ends, after this time.
    Always(Duration),
    /// When it fails, after this time: an init container.
    OnFailure(Duration),
}

/// The record of a container's runs.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Its process while it runs.
    pub process: Option<u32>,
    /// How often it was started.
    pub starts: u32,
    pub exits: Vec<Exit>,
}

/// A container's record, and a way to signal it.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    record: Arc<Mutex<Record>>,
    orders: UnboundedSender<Order>,
    log: PathBuf,
}

impl Handle {
    /// Applies `look` to the record.
    pub fn read<T>(&self, look: impl FnOnce(&Record) -> T) -> T {
        look(&locked(&self.record))
    }

    /// The container's whole output over its runs.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its output, for error messages.
    pub fn tail(&self) -> String {
        tail(&self.log, SHOWN_LINES)
    }

    /// Sends its process a signal, if one runs.
    pub fn signal(&self, signal: Signal) {
        let _ = self.orders.send(Order::Signal(signal));
    }
}

#[derive(Debug)]
enum Order {
    Signal(Signal),
    End,
}

/// A container that a task supervises and restarts.
pub(super) struct Running {
    pub handle: Handle,
    task: JoinHandle<()>,
}

impl Running {
    pub fn start(program: Program, again: Again) -> Self {
        let record = Arc::new(Mutex::new(Record::default()));
        let (orders, receiver) = unbounded_channel();
        let handle = Handle { record: Arc::clone(&record), orders, log: program.log().to_owned() };
        Self { handle, task: tokio::spawn(keep(program, again, record, receiver)) }
    }

    /// Waits until an init container has succeeded.
    pub async fn success(&mut self) {
        let _ = (&mut self.task).await;
    }

    /// Ends it: TERM, then KILL.
    pub async fn end(self) {
        let _ = self.handle.orders.send(Order::End);
        let _ = self.task.await;
    }
}

async fn keep(
    program: Program,
    again: Again,
    record: Arc<Mutex<Record>>,
    mut orders: UnboundedReceiver<Order>,
) {
    loop {
        let mut child = match program.clone().spawn_blocking().await {
            Ok(child) => child,
            Err(error) => {
                let exit = Exit { code: -1, log: format!("it could not be started: {error}") };
                return locked(&record).exits.push(exit);
            }
        };
        {
            let mut record = locked(&record);
            record.process = Some(child.id());
            record.starts += 1;
        }
        let ended = follow(&mut child, &mut orders).await;
        // Its children are killed too, as those of a container's first process are.
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let _nobody_left = group.map(|group| kill_process_group(group, Signal::KILL));
        locked(&record).process = None;
        let Some(code) = ended else { return };
        let (pause, done) = match again {
            Again::Always(pause) => (pause, false),
            Again::OnFailure(pause) => (pause, code == 0),
        };
        if done {
            return;
        }
        locked(&record).exits.push(Exit { code, log: child.log_tail() });
        if tokio::time::timeout(pause, end_ordered(&mut orders)).await.is_ok() {
            return;
        }
    }
}

async fn end_ordered(orders: &mut UnboundedReceiver<Order>) {
    while matches!(orders.recv().await, Some(Order::Signal(_))) {}
}

/// Waits for its exit code; `None` if it was ordered to end.
async fn follow(child: &mut Child, orders: &mut UnboundedReceiver<Order>) -> Option<i32> {
    let mut until = None;
    loop {
        if let Ok(Some(code)) = child.exit_code() {
            return until.is_none().then_some(code);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            let _ = child.kill();
            return None;
        }
        if until.is_some() {
            tokio::time::sleep(EXIT_POLL_INTERVAL).await;
            continue;
        }
        match tokio::time::timeout(EXIT_POLL_INTERVAL, orders.recv()).await {
            Err(_) => {}
            Ok(Some(Order::Signal(signal))) => drop(child.signal(signal)),
            Ok(Some(Order::End) | None) => {
                let _ = child.signal(Signal::TERM);
                until = Some(Instant::now() + GRACE);
            }
        }
    }
}
