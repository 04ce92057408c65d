//! Detects sockets of NVIDIA's device plugin in the kubelet's folder.
//!
//! The plugin names them after its resources (k8s-device-plugin `internal/plugin/server.go`): `nvidia-gpu.sock`,
//! `nvidia-mig-1g.10gb.sock`. GKE's plugin has `nvidiaGPU-<time>.sock`. kerf's own begin with `kerf-`.

use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;

/// How long a connection may take. After this the plugin counts as present, because it is busy or stuck.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The names of the sockets that answer, sorted.
pub(super) async fn live(folder: &Path) -> Vec<String> {
    let mut live = Vec::new();
    for name in named(folder) {
        if answers(&folder.join(&name)).await {
            live.push(name);
        }
    }
    live
}

fn named(folder: &Path) -> Vec<String> {
    // A folder that cannot be read has no plugins, because the kubelet creates it.
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_nvidias(name)).collect();
    names.sort();
    names
}

fn is_nvidias(name: &str) -> bool {
    let Some(plugin) = name.strip_suffix(".sock") else { return false };
    plugin == "nvidia" || plugin.starts_with("nvidia-") || plugin.starts_with("nvidiaGPU-")
}

/// Whether a process listens. A plugin that is gone leaves its socket behind, which refuses connections.
async fn answers(path: &Path) -> bool {
    match tokio::time::timeout(TIMEOUT, UnixStream::connect(path)).await {
        Ok(Ok(_)) | Err(_) => true,
        Ok(Err(error)) => !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn only_nvidias_sockets_that_answer_count() {
        let folder = tempfile::tempdir().unwrap();
        let bind = |name: &str| UnixListener::bind(folder.path().join(name)).unwrap();
        let _listening =
            ["nvidia-mig-1g.10gb.sock", "nvidia-gpu.sock", "kerf-gpu-4gb.sock", "kubelet.sock"].map(bind);
        drop(bind("nvidia-gone.sock"));
        std::fs::write(folder.path().join("nvidia-file.sock"), "").unwrap();
        assert_eq!(live(folder.path()).await, ["nvidia-gpu.sock", "nvidia-mig-1g.10gb.sock"]);
        assert!(live(&folder.path().join("none")).await.is_empty());
    }

    #[test]
    fn only_nvidias_socket_names_match() {
        for (name, is) in [
            ("nvidia-gpu.sock", true),
            ("nvidiaGPU-1600000000.sock", true),
            ("nvidia.sock", true),
            ("kerf-gpu.sock", false),
            ("nvidia-gpu.sock.tmp", false),
            ("kubevirt-GA102GL_A10.sock", false),
        ] {
            assert_eq!(is_nvidias(name), is, "{name}");
        }
    }
}
