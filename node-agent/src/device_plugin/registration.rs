//! Serves all names and keeps them registered, also when the kubelet restarts.
//!
//! A kubelet that starts removes every socket in the folder, and serves only what registers with it. Old servers are
//! closed before new ones register: when an old stream ends, the kubelet drops whatever is registered under its name by
//! then.

use super::Allocations;
use super::server::{List, Plugin, Streams, options};
use crate::event::Events;
use crate::kubelet_api::deviceplugin::RegisterRequest;
use crate::kubelet_api::deviceplugin::device_plugin_server::DevicePluginServer;
use crate::kubelet_api::deviceplugin::registration_client::RegistrationClient;
use crate::kubelet_api::{API_VERSION, KUBELET_SOCKET};
use futures::StreamExt as _;
use kerf_core::nvidia_keys;
use kerf_core::resource::ResourceName;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};

/// How often the sockets are checked, and how long a failed registration waits.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long one registration may take: the kubelet dials back, for up to ten seconds.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(15);

/// How many names register concurrently.
const AT_ONCE: usize = 8;

const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// After how many checks without a stream a name registers again.
const CHECK_LIMIT: u32 = 3;

#[derive(Debug, Clone)]
pub struct Served {
    pub name: ResourceName,
    pub list: watch::Receiver<List>,
    pub allocations: Allocations,
}

/// Serves the names from `folder` until `stop`, and reports when they are registered and when they are not.
pub async fn serve(
    folder: PathBuf,
    names: Vec<Served>,
    events: Events,
    report: impl Fn(Result<(), String>) + Send,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let run = stop.child_token();
        // Cancel a registration that is under way, too. Its servers have closed, so the kubelet would answer it only
        // after its timeout.
        let Some(started) = stop.run_until_cancelled(Run::start(&folder, &names, &events, &run)).await else {
            return;
        };
        match started {
            Ok(mut running) => {
                report(Ok(()));
                let lost = running.keep(&stop).await;
                if !stop.is_cancelled() {
                    tracing::warn!(reason = lost, "all resource names must be registered again");
                    report(Err(lost.to_owned()));
                }
                run.cancel();
                running.close().await;
            }
            Err(error) => {
                run.cancel();
                tracing::warn!(%error, "names are not registered with the kubelet; trying again");
                report(Err(error));
                pause(POLL_INTERVAL, &stop).await;
            }
        }
    }
}

async fn pause(time: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = stop.cancelled() => {}
    }
}

/// The inode and time of a socket, which differ for another socket at the same path.
type Identity = (u64, i64, i64);

fn identity(path: &Path) -> Option<Identity> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

struct Socket {
    name: ResourceName,
    path: PathBuf,
    identity: Option<Identity>,
    streams: Streams,
    checks_without_stream: u32,
}

/// All servers between one start of the kubelet and the next.
struct Run {
    kubelet: PathBuf,
    identity: Identity,
    sockets: Vec<Socket>,
    servers: JoinSet<()>,
    channel: Channel,
}

impl Run {
    async fn start(
        folder: &Path,
        names: &[Served],
        events: &Events,
        run: &CancellationToken,
    ) -> Result<Self, String> {
        let kubelet = folder.join(KUBELET_SOCKET);
        let identity = identity(&kubelet)
            .ok_or_else(|| format!("{} is not there; is the kubelet running?", kubelet.display()))?;
        let endpoint = Endpoint::from_shared(format!("unix://{}", kubelet.display()));
        let channel = endpoint.map_err(|e| e.to_string())?.timeout(REGISTER_TIMEOUT).connect_lazy();
        let mut all = Self { kubelet, identity, sockets: Vec::new(), servers: JoinSet::new(), channel };
        for served in names {
            all.serve_one(folder, served, events, run)?;
        }
        let wanted: Vec<ResourceName> = names.iter().map(|served| served.name).collect();
        all.register(&wanted).await?;
        tracing::info!(names = wanted.len(), "registered with the kubelet");
        Ok(all)
    }

    fn serve_one(
        &mut self,
        folder: &Path,
        served: &Served,
        events: &Events,
        run: &CancellationToken,
    ) -> Result<(), String> {
        let path = folder.join(endpoint(served.name));
        // Remove a socket that an earlier process left, because bind does not replace it.
        drop(std::fs::remove_file(&path));
        let listener = UnixListener::bind(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let streams = Streams::default();
        let plugin = Plugin {
            name: served.name,
            list: served.list.clone(),
            events: events.clone(),
            allocations: served.allocations.clone(),
            streams: streams.clone(),
            stop: run.clone(),
        };
        let serving = Server::builder()
            .add_service(DevicePluginServer::new(plugin))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), run.clone().cancelled_owned());
        let name = served.name;
        self.servers.spawn(async move {
            if let Err(error) = serving.await {
                tracing::warn!(%name, %error, "a device plugin socket failed");
            }
        });
        let identity = identity(&path);
        self.sockets.push(Socket { name, path, identity, streams, checks_without_stream: 0 });
        Ok(())
    }

    async fn register(&self, names: &[ResourceName]) -> Result<(), String> {
        let calls: Vec<_> = names
            .iter()
            .copied()
            .map(|name| {
                let mut client = RegistrationClient::new(self.channel.clone());
                let request = RegisterRequest {
                    version: API_VERSION.to_owned(),
                    endpoint: endpoint(name),
                    resource_name: name.to_string(),
                    options: Some(options()),
                };
                async move {
                    let answer = client.register(request).await;
                    answer.map(drop).map_err(|status| format!("{name}: {}", status.message()))
                }
            })
            .collect();
        let answers: Vec<Result<(), String>> =
            futures::stream::iter(calls).buffer_unordered(AT_ONCE).collect().await;
        answers.into_iter().collect()
    }

    /// Keeps the names registered. Returns the reason why all must register again.
    async fn keep(&mut self, stop: &CancellationToken) -> &'static str {
        loop {
            pause(POLL_INTERVAL, stop).await;
            if stop.is_cancelled() {
                return "the agent stops";
            }
            if identity(&self.kubelet) != Some(self.identity) {
                return "the kubelet has restarted";
            }
            if self.sockets.iter().any(|s| identity(&s.path) != s.identity) {
                return "a socket of the agent's was removed";
            }
            let cut_off = self.cut_off();
            if !cut_off.is_empty() {
                tracing::warn!(names = ?cut_off, "the kubelet does not listen to these names; registering again");
                if self.register(&cut_off).await.is_err() {
                    return "the kubelet does not take a registration";
                }
            }
        }
    }

    fn cut_off(&mut self) -> Vec<ResourceName> {
        for socket in &mut self.sockets {
            let unwatched = socket.streams.count() == 0;
            socket.checks_without_stream = if unwatched { socket.checks_without_stream + 1 } else { 0 };
        }
        let unwatched = self.sockets.iter_mut().filter(|s| s.checks_without_stream >= CHECK_LIMIT);
        unwatched
            .map(|socket| {
                socket.checks_without_stream = 0;
                socket.name
            })
            .collect()
    }

    async fn close(mut self) {
        let closing = async { while self.servers.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSE_TIMEOUT, closing).await.is_err() {
            self.servers.abort_all();
        }
        for socket in &self.sockets {
            // A file with another identity at this path is not ours, so leave it.
            if identity(&socket.path) == socket.identity {
                drop(std::fs::remove_file(&socket.path));
            }
        }
    }
}

/// The file name of a name's socket. NVIDIA's prefix is dropped; a name with another prefix keeps it, so no two names
/// collide.
fn endpoint(name: ResourceName) -> String {
    let text = name.to_string();
    let short = text.strip_prefix(nvidia_keys::PREFIX).unwrap_or(&text);
    format!("kerf-{}.sock", short.replace('/', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet_api::deviceplugin::Empty;
    use crate::kubelet_api::deviceplugin::registration_server::{Registration, RegistrationServer};
    use kerf_core::resource::all_names;
    use std::collections::BTreeSet;
    use tonic::{Request, Response, Status};

    #[test]
    fn no_two_names_have_one_socket() {
        let names = all_names();
        let sockets: BTreeSet<String> = names.iter().copied().map(endpoint).collect();
        assert_eq!(sockets.len(), names.len());
        assert!(sockets.contains("kerf-gpu-10gb.sock") && sockets.contains("kerf-kerf.dev-gpu-10gb.sock"));
        let is_file = |socket: &String| socket.starts_with("kerf-") && !socket.contains('/');
        assert!(sockets.iter().all(is_file), "{sockets:?}");
    }

    /// A kubelet that accepts every registration.
    struct Willing;

    #[tonic::async_trait]
    impl Registration for Willing {
        async fn register(&self, _: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
            Ok(Response::new(Empty {}))
        }
    }

    #[tokio::test]
    async fn names_are_registered_again_only_after_a_socket_was_removed() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = UnixListener::bind(folder.path().join(KUBELET_SOCKET)).unwrap();
        let serving = Server::builder().add_service(RegistrationServer::new(Willing));
        tokio::spawn(serving.serve_with_incoming(UnixListenerStream::new(kubelet)));
        let (events, _queue) = Events::channel();
        let (_lists, list) = watch::channel(List::default());
        let name = "nvidia.com/mig-1g.10gb".parse().unwrap();
        let names = [Served { name, list, allocations: Allocations::default() }];
        let stop = CancellationToken::new();
        let mut run = Run::start(folder.path(), &names, &events, &stop).await.unwrap();
        tokio::time::pause();
        assert!(
            tokio::time::timeout(POLL_INTERVAL * 3 / 2, run.keep(&stop)).await.is_err(),
            "all is as it was"
        );
        std::fs::remove_file(folder.path().join(endpoint(name))).unwrap();
        assert_eq!(run.keep(&stop).await, "a socket of the agent's was removed");
    }

    #[tokio::test]
    async fn an_unanswered_registration_does_not_delay_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = UnixListener::bind(folder.path().join(KUBELET_SOCKET)).unwrap();
        let (events, _queue) = Events::channel();
        let (_lists, list) = watch::channel(List::default());
        let name = "nvidia.com/mig-1g.10gb".parse().unwrap();
        let names = vec![Served { name, list, allocations: Allocations::default() }];
        let stop = CancellationToken::new();
        let serving = serve(folder.path().to_owned(), names, events, |_| (), stop.clone());
        let serving = tokio::spawn(serving);
        let _dialled = kubelet.accept().await.unwrap();
        stop.cancel();
        let ended = tokio::time::timeout(REGISTER_TIMEOUT / 3, serving).await;
        assert!(ended.is_ok(), "it waits for the kubelet's answer");
    }
}
