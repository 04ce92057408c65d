//! The kubelet's two sockets: their paths and their servers.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kerf_node_agent::kubelet_api::KUBELET_SOCKET;
use kerf_node_agent::kubelet_api::deviceplugin::registration_server::RegistrationServer;
use kerf_node_agent::kubelet_api::podresources::pod_resources_lister_server::PodResourcesListerServer;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Router;

use super::devices::DeviceManager;
use super::go_clients;
use super::pod_resources::PodResourcesService;
use super::rate_limit::RateLimit;
use super::registration::RegistrationService;

/// How long open calls may take to finish when the kubelet stops.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// A socket or folder that cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("failed to set up {path} for the stand-in kubelet (a socket's path has 107 bytes at most)")]
pub struct SocketError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The paths of a kubelet's sockets below its root folder.
#[derive(Debug, Clone)]
pub struct SocketPaths {
    root: PathBuf,
}

impl SocketPaths {
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// Folder of the plugins' sockets and of the registration socket.
    #[must_use]
    pub fn device_plugin_dir(&self) -> PathBuf {
        self.root.join("device-plugins")
    }

    #[must_use]
    pub fn registration(&self) -> PathBuf {
        self.device_plugin_dir().join(KUBELET_SOCKET)
    }

    #[must_use]
    pub fn pod_resources(&self) -> PathBuf {
        self.root.join("pod-resources").join(KUBELET_SOCKET)
    }
}

/// Both servers of one kubelet, which run until `stop`.
#[derive(Debug)]
pub struct KubeletServers {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl KubeletServers {
    /// Removes all sockets from the device plugin folder, as the kubelet does at its start, then serves.
    pub fn start(
        paths: &SocketPaths,
        devices: &Arc<DeviceManager>,
        limit_pod_resources: bool,
    ) -> Result<Self, SocketError> {
        let (plugins, resources) = (paths.registration(), paths.pod_resources());
        for socket in [&plugins, &resources] {
            prepare(socket).map_err(|source| SocketError { path: socket.clone(), source })?;
        }
        let bound = |path: PathBuf| UnixListener::bind(&path).map_err(|source| SocketError { path, source });
        let mut servers = Self { stop: CancellationToken::new(), tasks: JoinSet::new() };
        let registration = RegistrationServer::new(RegistrationService(Arc::clone(devices)));
        let lister = PodResourcesService(Arc::clone(devices));
        let resources = bound(resources)?;
        servers.serve(bound(plugins)?, Server::builder().add_service(registration));
        if limit_pod_resources {
            let limit = Arc::new(RateLimit::full(Instant::now()));
            let limited = PodResourcesListerServer::with_interceptor(lister, move |request| {
                limit.take(Instant::now()).map(|()| request)
            });
            servers.serve(resources, Server::builder().add_service(limited));
        } else {
            servers.serve(resources, Server::builder().add_service(PodResourcesListerServer::new(lister)));
        }
        Ok(servers)
    }

    fn serve(&mut self, listener: UnixListener, router: Router) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let stopped = stop.clone().cancelled_owned();
            let incoming = UnixListenerStream::new(listener).map(|stream| stream.map(go_clients::accept));
            let serving = router.serve_with_incoming_shutdown(incoming, stopped);
            let overdue = async {
                stop.cancelled().await;
                tokio::time::sleep(CLOSE_TIMEOUT).await;
            };
            tokio::select! {
                ended = serving => if let Err(error) = ended {
                    tracing::warn!(%error, "a socket of the stand-in kubelet failed");
                },
                () = overdue => {}
            }
        });
    }

    /// Stops serving. Open calls get a short time to finish.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for KubeletServers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Creates the socket's folder, and removes all sockets from it.
fn prepare(socket: &Path) -> io::Result<()> {
    let Some(folder) = socket.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
