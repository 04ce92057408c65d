//! A process on a GPU, as the driver lists it.

use kerf_core::units::MemoryMib;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id in the host's PID namespace.
    pub pid: u32,
    /// The memory that it uses; `None` if the driver does not report it.
    pub memory: Option<MemoryMib>,
    pub gi: Option<u32>,
    pub ci: Option<u32>,
}
