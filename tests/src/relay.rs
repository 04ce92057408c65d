//! Relays TCP connections, as a Service does.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

/// Relays a connection until one side closes it. Without a target it closes the client's connection at once, as a
/// Service without endpoints refuses one. As with kube-proxy, a target that cannot be reached is not replaced by
/// another.
pub(crate) async fn relay(mut client: TcpStream, target: Option<SocketAddr>) {
    let Some(target) = target else { return };
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    // Nagle's algorithm would add delays that kube-proxy, which only rewrites packets, does not.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // An error means that one side closed; both connections are closed then.
    let _ = copy_bidirectional(&mut client, &mut server).await;
}
