//! Loopback ports for programs that are started later or restarted.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that Linux assigns to outgoing connections (`net.ipv4.ip_local_port_range`, from 32768). A
/// port of that range may become the source of a connection before its program listens; a client that dials
/// it meanwhile can even connect to itself.
const RANGE: Range<u16> = 16_384..30_000;

/// How many ports this process has tried.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns `N` ports on which no program listens, and which this process has returned to no other caller. No
/// listening socket reserves them, so the programs can bind them. Processes start at different ports, so that
/// they rarely choose the same.
///
/// # Errors
/// No port of the range is free.
pub fn free<const N: usize>() -> io::Result<[u16; N]> {
    let mut ports = [0; N];
    for port in &mut ports {
        *port = next()?;
    }
    Ok(ports)
}

fn next() -> io::Result<u16> {
    let count = u32::from(RANGE.end - RANGE.start);
    // Consecutive process ids begin 97 ports apart, so that tests side by side rarely collide.
    let begin = std::process::id().wrapping_mul(97);
    for _ in 0..count {
        let offset = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        let port = RANGE.start + u16::try_from(offset).map_err(io::Error::other)?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "every port for tests is in use"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let mut ports: Vec<u16> = (0..4).flat_map(|_| free::<8>().unwrap()).collect();
        assert!(ports.iter().all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()));
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn no_outgoing_connection_takes_one() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        assert!(free::<8>().unwrap().into_iter().all(|port| port < first));
    }
}
