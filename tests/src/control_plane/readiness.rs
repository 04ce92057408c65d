//! Probes whether a program serves.

use std::net::Ipv4Addr;

use kube::Client;
use tokio::net::TcpStream;

/// A probe of a program that has just been started.
pub enum Probe {
    /// The program accepts connections on this loopback port.
    Connects(u16),
    /// A GET of this path returns 200.
    Answers(Client, &'static str),
}

impl Probe {
    /// Probes once. The error says why the program is not ready yet.
    pub async fn ask(&self) -> Result<(), String> {
        match self {
            Self::Connects(port) => {
                let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await;
                connected.map(drop).map_err(|error| error.to_string())
            }
            Self::Answers(client, path) => {
                let request =
                    http::Request::get(*path).body(Vec::new()).map_err(|error| error.to_string())?;
                client.request_text(request).await.map(drop).map_err(|error| error.to_string())
            }
        }
    }
}
