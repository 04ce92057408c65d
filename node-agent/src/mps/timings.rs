//! Timeouts and poll intervals of the MPS daemons.

use std::time::Duration;

/// Timeouts and poll intervals. The defaults follow Amazon ECS, which probes MPS with 3 seconds, three times.
#[derive(Debug, Clone)]
pub struct Timings {
    /// How long a control word may take before its client is killed.
    pub control_timeout: Duration,
    /// How often a daemon that serves is probed. A probe is three words, 2 ms of work each.
    pub probe_every: Duration,
    /// After how many failed probes in a row a daemon counts as hung.
    pub probe_failures: u32,
    /// How often verified limits are read back again.
    pub reread_every: Duration,
    /// How often a new daemon is asked whether it answers. It did after 45 ms.
    pub start_poll: Duration,
    /// How long a daemon may take to answer, and a server to be initialised (normally a quarter of a second).
    pub start_timeout: Duration,
    /// Poll interval while something in a daemon is not settled.
    pub settle_poll: Duration,
    /// How long the clients of a server in fault may take to leave before it is shut down, and how long the shutdown
    /// may take.
    pub fault_grace: Duration,
    /// How long `quit` lets clients end. Only whole seconds count.
    pub quit_within: Duration,
    /// How long a killed process may take to end.
    pub kill_timeout: Duration,
    /// The backoff before the first restart of a daemon. It doubles with each restart.
    pub backoff_min: Duration,
    /// The longest backoff before a restart. A daemon that served longer than this resets it to the shortest.
    pub backoff_max: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            control_timeout: Duration::from_secs(3),
            probe_every: Duration::from_secs(5),
            probe_failures: 3,
            reread_every: Duration::from_mins(1),
            start_poll: Duration::from_millis(20),
            start_timeout: Duration::from_secs(10),
            settle_poll: Duration::from_millis(250),
            fault_grace: Duration::from_secs(10),
            quit_within: Duration::from_secs(2),
            kill_timeout: Duration::from_secs(5),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
        }
    }
}
