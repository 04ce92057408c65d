//! A small Service for the extender: new connections go to the replica that holds the Lease; open ones stay
//! with their replica.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::relay::relay;

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
                tokio::spawn(relay(client, target));
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
