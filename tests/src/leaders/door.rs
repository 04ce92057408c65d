//! A small Service for the extender: new connections go to the replica that holds the Lease; open ones stay
//! with their replica.

use std::io;
use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The port that kube-scheduler calls. Dropping it closes it.
pub(super) struct Door {
    leads_to: watch::Sender<Option<SocketAddr>>,
    address: SocketAddr,
    accepting: AbortHandle,
}

impl Door {
    pub(super) async fn open(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let leads_to = watch::Sender::new(None);
        let target = leads_to.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let target = *target.borrow();
                tokio::spawn(connection(client, target));
            }
        });
        Ok(Self { leads_to, address, accepting: accepting.abort_handle() })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn target(&self) -> watch::Sender<Option<SocketAddr>> {
        self.leads_to.clone()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Closes the connection if no replica leads, as a Service without a ready pod refuses it.
async fn connection(mut client: TcpStream, target: Option<SocketAddr>) {
    let Some(target) = target else { return };
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    // Nagle's algorithm would add delays that are not the extender's.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // An error here means that one side closed; both connections are closed then.
    let _ = copy_bidirectional(&mut client, &mut server).await;
}
