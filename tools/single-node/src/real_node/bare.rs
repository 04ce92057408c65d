//! A real node before kerf is installed: containerd, the kubelet, and Services that pods can reach. Manifests
//! applied to the control plane start their own pods.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use super::containerd::{self, Setup};
use super::network::Services;
use super::{Places, RuntimeHandler, announce, delete_pods, kubelet, node_ready};
use kerf_tests::control_plane::ControlPlane;
use kerf_tests::process::Child;

/// A running node without kerf. Fields are dropped in this order: users of a part end before it.
pub struct BareNode {
    kubelet: Child,
    containerd: Child,
    services: Services,
}

impl BareNode {
    /// Starts everything and waits until the node is Ready. containerd gets these images beside that of
    /// tests' pods, and these handlers. The control plane must use the addresses of
    /// [`super::service_addresses`] for Services.
    pub async fn start(
        plane: &ControlPlane,
        name: &str,
        places: &Places,
        images: &[PathBuf],
        handlers: &[RuntimeHandler],
        mut progress: impl FnMut(&str),
    ) -> anyhow::Result<Self> {
        places.create()?;
        let services = Services::start(plane).await?;
        let containerd = containerd::start(places, &Setup { images, handlers }).await?;
        announce(plane, handlers).await?;
        progress("containerd serves, and has the images");
        let kubelet = kubelet::start(plane, name, places)?;
        node_ready(plane, name).await.with_context(|| kubelet.log_tail())?;
        progress("the node is Ready");
        Ok(Self { kubelet, containerd, services })
    }

    /// Deletes all pods, then stops the programs in order.
    pub async fn stop(mut self, plane: &ControlPlane) -> anyhow::Result<()> {
        // The kubelet still runs, because it must end the pods.
        let gone = delete_pods(plane).await;
        self.kubelet.terminate(Duration::from_secs(5))?;
        self.containerd.terminate(Duration::from_secs(10))?;
        self.services.end().await?;
        gone
    }
}
