//! A listener that pods of every cluster can reach, with IPv4, IPv6 or both.

use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::TcpListener;

/// The most connections that wait to be accepted, as in tokio.
const BACKLOG: i32 = 1024;

/// Listens on `address`. For `[::]` it listens on both address families, whatever `bindv6only` says, and on IPv4 alone
/// if the kernel has no IPv6.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        return TcpListener::bind(address).await;
    }
    match Socket::new(Domain::IPV6, Type::STREAM, None) {
        Ok(socket) => on_both(socket, address),
        Err(error) => {
            tracing::info!(%error, "the kernel has no IPv6: listening on IPv4 alone");
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
    }
}

fn on_both(socket: Socket, address: SocketAddr) -> io::Result<TcpListener> {
    socket.set_only_v6(false)?;
    // Otherwise a restarted program could not bind while connections of its predecessor linger.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn a_listener_on_all_addresses_accepts_both_families() {
        let listener = bind("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        // Not every machine that runs the tests has an IPv6 address.
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_listener_on_one_address_accepts_only_that_one() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        assert_eq!(listener.local_addr().unwrap().ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
}
