//! The control words that kerf sends to MPS daemons.

use kerf_core::units::MemoryMib;
use std::fmt;

/// Which limit a word is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The limit of servers that will be started.
    Default,
    /// The limit of a live server, by its process id. Its current clients keep theirs.
    Server(u32),
}

/// One control word with its arguments. A daemon sees one device, so the device is always the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    ServerList,
    /// Reads a server's status. The answer waits while the server is being initialised.
    ServerStatus(u32),
    /// Starts a server for every user, if there is none.
    StartServer,
    /// Lists the processes that a server serves.
    ClientList(u32),
    /// Reads the part of the multiprocessors that a client may have.
    Threads(Scope),
    /// Sets the part of the multiprocessors, in percent.
    SetThreads(Scope, u8),
    /// Reads the device memory that a client process may have.
    Memory(Scope),
    SetMemory(Scope, MemoryMib),
    /// Shuts a server down at once: its clients' calls fail with error 806.
    ShutdownServer(u32),
    Quit {
        /// How long clients may take to end, in seconds.
        within: u64,
    },
}

impl Word {
    /// The server that the word is about, if any.
    #[must_use]
    pub fn server(&self) -> Option<u32> {
        match self {
            Self::ServerStatus(server)
            | Self::ClientList(server)
            | Self::ShutdownServer(server)
            | Self::Threads(Scope::Server(server))
            | Self::SetThreads(Scope::Server(server), _)
            | Self::Memory(Scope::Server(server))
            | Self::SetMemory(Scope::Server(server), _) => Some(*server),
            _ => None,
        }
    }

    #[must_use]
    pub fn changes(&self) -> bool {
        !matches!(
            self,
            Self::ServerList
                | Self::ServerStatus(_)
                | Self::ClientList(_)
                | Self::Threads(_)
                | Self::Memory(_)
        )
    }
}

/// The form in which the daemon reads it.
impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Scope::{Default, Server};
        match self {
            Self::ServerList => write!(f, "get_server_list"),
            Self::ServerStatus(server) => write!(f, "get_server_status {server}"),
            // With `-multiuser-server`, root's server serves every user.
            Self::StartServer => write!(f, "start_server -uid 0"),
            Self::ClientList(server) => write!(f, "get_client_list {server}"),
            Self::Threads(Default) => write!(f, "get_default_active_thread_percentage"),
            Self::Threads(Server(server)) => write!(f, "get_active_thread_percentage {server}"),
            Self::SetThreads(Default, percent) => write!(f, "set_default_active_thread_percentage {percent}"),
            Self::SetThreads(Server(server), percent) => {
                write!(f, "set_active_thread_percentage {server} {percent}")
            }
            Self::Memory(Default) => write!(f, "get_default_device_pinned_mem_limit 0"),
            Self::Memory(Server(server)) => write!(f, "get_device_pinned_mem_limit {server} 0"),
            Self::SetMemory(Default, limit) => {
                write!(f, "set_default_device_pinned_mem_limit 0 {}M", limit.0)
            }
            Self::SetMemory(Server(server), limit) => {
                write!(f, "set_device_pinned_mem_limit {server} 0 {}M", limit.0)
            }
            Self::ShutdownServer(server) => write!(f, "shutdown_server {server} -f"),
            Self::Quit { within } => write!(f, "quit -t {within}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_as_the_guide_has_them() {
        for (word, text) in [
            (Word::ServerList, "get_server_list"),
            (Word::ServerStatus(7), "get_server_status 7"),
            (Word::StartServer, "start_server -uid 0"),
            (Word::ClientList(7), "get_client_list 7"),
            (Word::Threads(Scope::Default), "get_default_active_thread_percentage"),
            (Word::Threads(Scope::Server(7)), "get_active_thread_percentage 7"),
            (Word::SetThreads(Scope::Default, 14), "set_default_active_thread_percentage 14"),
            (Word::SetThreads(Scope::Server(7), 14), "set_active_thread_percentage 7 14"),
            (Word::Memory(Scope::Default), "get_default_device_pinned_mem_limit 0"),
            (Word::Memory(Scope::Server(7)), "get_device_pinned_mem_limit 7 0"),
            (
                Word::SetMemory(Scope::Default, MemoryMib(10_240)),
                "set_default_device_pinned_mem_limit 0 10240M",
            ),
            (Word::SetMemory(Scope::Server(7), MemoryMib(512)), "set_device_pinned_mem_limit 7 0 512M"),
            (Word::ShutdownServer(7), "shutdown_server 7 -f"),
            (Word::Quit { within: 2 }, "quit -t 2"),
        ] {
            assert_eq!(word.to_string(), text);
            assert_eq!(word.server(), text.contains(" 7").then_some(7), "{text}");
            assert_eq!(word.changes(), !text.starts_with("get_"), "{text}");
        }
    }
}
