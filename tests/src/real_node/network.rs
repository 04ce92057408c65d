//! The network of a real node's pods. The real kubelet wants one; kube-proxy, a cluster's DNS and routes between nodes it does
//! not need: a pair of interfaces leads from each pod to the machine, which has the Services' addresses for its own.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use rtnetlink::Handle;
use rtnetlink::packet_route::address::AddressMessage;
use serde_json::json;
use tokio::task::JoinHandle;

use super::Places;
use crate::control_plane::{ControlPlane, ServiceAddresses};
use crate::services::ServiceProxy;

/// The first address of Services, of which a machine that is lent has no others.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const PREFIX: u8 = 24;

/// The addresses of pods.
const PODS: &str = "10.97.0.0/24";

/// The kernel's number of the loopback interface, in each network namespace.
const LOOPBACK: u32 = 1;

/// Writes the pods' network for containerd, by CNI.
pub(super) fn write(places: &Places) -> anyhow::Result<()> {
    let plugin = json!({
        "type": "ptp",
        "ipam": {
            "type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": places.state().join("cni-leases"),
        },
    });
    let network = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]});
    fs::write(places.state().join("cni/10-pods.conflist"), network.to_string())
        .context("failed to write the network's configuration")
}

/// The Services' addresses.
#[must_use]
pub fn service_addresses() -> ServiceAddresses {
    ServiceAddresses { range: format!("10.96.0.0/{PREFIX}"), first: FIRST }
}

/// The Services of a control plane, at addresses that pods reach. Ends with [`Services::end`], or with the machine.
pub struct Services {
    netlink: Handle,
    address: AddressMessage,
    talking: JoinHandle<()>,
    _proxy: ServiceProxy,
}

impl Services {
    /// Gives the machine the Services' addresses, of which it has none, and serves them.
    pub async fn start(plane: &ControlPlane) -> anyhow::Result<Self> {
        let (connection, netlink, _) = rtnetlink::new_connection().context("failed to open netlink")?;
        let talking = tokio::spawn(connection);
        // All addresses of a loopback interface's networks are the machine's. A holder that was killed has left them.
        let mut add = netlink.address().add(LOOPBACK, IpAddr::V4(FIRST), PREFIX).replace();
        let address = add.message_mut().clone();
        add.execute()
            .await
            .with_context(|| format!("failed to give the machine the address {FIRST}/{PREFIX}"))?;
        let server: SocketAddr = plane.url().trim_start_matches("https://").parse()?;
        let kubernetes = SocketAddr::from((FIRST, 443));
        let proxy = ServiceProxy::beside(&plane.client(), plane.dir(), kubernetes, server)?;
        Ok(Self { netlink, address, talking, _proxy: proxy })
    }

    /// Takes the addresses away.
    pub async fn end(self) -> anyhow::Result<()> {
        let taken = self.netlink.address().del(self.address).execute().await;
        self.talking.abort();
        taken.context("failed to take the Services' addresses from the machine")
    }
}
