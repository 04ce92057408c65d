//! The daemon's servers and their clients.

use crate::limits::Limits;
use kerf_tests::mps::{Event, Files, Orders, ServerFault};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a server takes to start. A real one takes 150 to 270 ms.
const START_DELAY: Duration = Duration::from_millis(20);

/// How long a server with clients takes to end. A real one takes up to 2 s.
const STOP_DELAY: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct Server {
    pub limits: Limits,
    pub ready_at: Instant,
    pub clients: BTreeSet<u32>,
    pub fault: Option<ServerFault>,
    pub ends_at: Option<Instant>,
}

/// The servers. At most one of them accepts clients; others are ending.
#[derive(Debug)]
pub struct Servers {
    pub defaults: Limits,
    /// Default limits of the daemon's other GPUs, by their index.
    pub of_other_devices: BTreeMap<String, Limits>,
    pub all: BTreeMap<u32, Server>,
    /// Clients that lost their server. They do not connect again.
    lost: BTreeSet<u32>,
    next: u32,
}

impl Servers {
    pub fn new() -> Self {
        Self {
            defaults: Limits::default(),
            of_other_devices: BTreeMap::new(),
            all: BTreeMap::new(),
            lost: BTreeSet::new(),
            // Restarted daemons must not reuse ids of earlier servers.
            next: std::process::id() * 10,
        }
    }

    /// Starts a server, unless one already accepts clients, and returns its id.
    pub fn start(&mut self) -> u32 {
        if let Some((own, _)) = self.all.iter().find(|(_, server)| server.ends_at.is_none()) {
            return *own;
        }
        self.next += 1;
        let server = Server {
            limits: self.defaults,
            ready_at: Instant::now() + START_DELAY,
            clients: BTreeSet::new(),
            fault: None,
            ends_at: None,
        };
        self.all.insert(self.next, server);
        self.next
    }

    /// Ends a server by force: its clients lose it.
    pub fn shut_down(&mut self, own: u32) {
        let Some(server) = self.all.get_mut(&own) else { return };
        if server.fault == Some(ServerFault::UntilRestart) {
            return;
        }
        let slow = if server.clients.is_empty() { Duration::ZERO } else { STOP_DELAY };
        server.ends_at.get_or_insert(Instant::now() + slow);
    }

    /// Disconnects a client, and returns whether the server had it.
    pub fn terminate(&mut self, own: u32, client: u32) -> bool {
        let known = self.all.get_mut(&own).is_some_and(|server| server.clients.remove(&client));
        if known {
            self.lost.insert(client);
        }
        known
    }

    pub fn have_clients(&self) -> bool {
        self.all.values().any(|server| !server.clients.is_empty())
    }

    /// Applies what is due: servers end, clients come and go, faults begin and heal.
    pub fn pass(&mut self, orders: &Orders, files: &Files) -> anyhow::Result<()> {
        let now = Instant::now();
        let ended: Vec<u32> = self
            .all
            .iter()
            .filter(|(_, s)| s.ends_at.is_some_and(|at| now >= at))
            .map(|(own, _)| *own)
            .collect();
        for own in ended {
            self.lost.extend(self.all.remove(&own).into_iter().flat_map(|server| server.clients));
        }
        self.lost.retain(|client| orders.clients.contains(client));
        for server in self.all.values_mut() {
            server.clients.retain(|client| orders.clients.contains(client));
        }
        self.accept(orders, files)?;
        self.fault(orders, files)?;
        for server in self.all.values_mut() {
            if server.clients.is_empty() && server.fault == Some(ServerFault::UntilClientsLeave) {
                server.fault = None;
            }
        }
        Ok(())
    }

    fn accept(&mut self, orders: &Orders, files: &Files) -> anyhow::Result<()> {
        let connected: BTreeSet<u32> =
            self.all.values().flat_map(|server| &server.clients).copied().collect();
        for client in &orders.clients {
            if connected.contains(client) || self.lost.contains(client) {
                continue;
            }
            let own = self.start();
            let Some(server) = self.all.get_mut(&own).filter(|server| server.fault.is_none()) else {
                continue;
            };
            server.clients.insert(*client);
            let Limits { memory, threads } = server.limits;
            files.note(&Event::Client { client: *client, server: own, memory, threads })?;
        }
        Ok(())
    }

    fn fault(&mut self, orders: &Orders, files: &Files) -> anyhow::Result<()> {
        let Some(fault) = orders.server_fault.filter(|_| !self.all.is_empty()) else { return Ok(()) };
        let struck = Event::Fault { serial: orders.serial };
        if !files.events()?.contains(&struck) {
            files.note(&struck)?;
            self.all.values_mut().for_each(|server| server.fault = Some(fault));
        }
        Ok(())
    }
}
