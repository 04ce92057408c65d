//! Free ports of the loopback interface, chosen by the kernel.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// `N` different ports that were free a moment ago. All are held while the others are chosen, and given up on return:
/// the programs take no listening socket, so another process can come first, which the caller must survive.
pub fn free<const N: usize>() -> io::Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::with_capacity(N);
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let mut ports = free::<8>().unwrap();
        assert!(ports.iter().all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()));
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
