//! The network of a real node's pods, which the real kubelet requires. It needs no kube-proxy, cluster DNS or
//! routes between nodes: a pair of interfaces connects each pod to the machine, which has the Services'
//! addresses itself.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use rtnetlink::Handle;
use rtnetlink::packet_route::address::AddressMessage;
use serde_json::json;
use tokio::task::JoinHandle;

use super::Places;
use kerf_tests::control_plane::{ControlPlane, ServiceAddresses};
use kerf_tests::services::ServiceProxy;

/// The first address of Services. A lent machine has no other addresses in this range.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const PREFIX: u8 = 24;

const PODS: &str = "10.97.0.0/24";

/// The kernel's index of the loopback interface, in each network namespace.
const LOOPBACK: u32 = 1;

/// Writes the CNI configuration of the pods' network for containerd.
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

#[must_use]
pub fn service_addresses() -> ServiceAddresses {
    ServiceAddresses { range: format!("10.96.0.0/{PREFIX}"), first: FIRST }
}

/// The Services of a control plane, at addresses that pods reach. [`Services::end`] removes the addresses.
pub struct Services {
    netlink: Handle,
    address: AddressMessage,
    talking: JoinHandle<()>,
    _proxy: ServiceProxy,
}

impl Services {
    /// Adds the Services' addresses to the machine, and serves them.
    pub async fn start(plane: &ControlPlane) -> anyhow::Result<Self> {
        let (connection, netlink, _) = rtnetlink::new_connection().context("failed to open netlink")?;
        let talking = tokio::spawn(connection);
        // All addresses of a loopback interface's networks are local. `replace` accepts addresses that a
        // killed holder has left.
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

    pub async fn end(self) -> anyhow::Result<()> {
        let taken = self.netlink.address().del(self.address).execute().await;
        self.talking.abort();
        taken.context("failed to take the Services' addresses from the machine")
    }
}
