//! The files of a pod with known images: its address, folder and volumes, and for each container a file
//! system and a command line.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use tokio::sync::Mutex;

use crate::container_root::{ContainerRoot, Mount, PROGRAMS};

use super::downward::Whereabouts;
use super::expansion::expand;
use super::grant::Grant;
use super::images::{Image, on_address};
use super::node;
use super::node_resources::ResourceList;
use super::parts::Core;
use super::variables::{self, Variables};
use super::volumes::{MountContext, MountError, PodVolumes};

/// The PATH that container runtimes set when an image has none.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A pod's files and address on its node.
pub(super) struct PodFiles {
    folder: PathBuf,
    pub(super) whereabouts: Whereabouts,
    node: ResourceList,
    volumes: Mutex<PodVolumes>,
}

impl PodFiles {
    /// The files of a pod with at least one known image; `None` for any other pod.
    pub(super) async fn for_pod(core: &Core, pod: &Pod) -> Option<Self> {
        let images = &core.options.processes.images;
        let is_ours =
            |container: &&Container| images.find(container.image.as_deref().unwrap_or_default()).is_some();
        if !super::volumes::containers(pod).iter().any(is_ours) {
            return None;
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let on_host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        let host = Ipv4Addr::LOCALHOST;
        let whereabouts = Whereabouts { pod: if on_host { host } else { address(&uid) }, host };
        let folder = core.options.dir.join("pods").join(&uid);
        let node = node::allocatable(core).await.unwrap_or_default();
        Some(Self { folder, whereabouts, node, volumes: Mutex::default() })
    }

    fn context<'a>(&'a self, core: &'a Core, pod: &'a Pod) -> MountContext<'a> {
        MountContext { client: &core.options.client, pod, whereabouts: &self.whereabouts, node: &self.node }
    }

    /// Mounts missing volumes. The error names the volume.
    pub(super) async fn mount(&self, core: &Core, pod: &Pod) -> Result<(), (String, MountError)> {
        let mut volumes = self.volumes.lock().await;
        volumes.mount(&self.context(core, pod), &core.files, &self.folder.join("volumes")).await
    }

    /// Updates the volumes from the API server.
    pub(super) async fn refresh(&self, core: &Core, pod: &Pod) {
        self.volumes.lock().await.refresh(&self.context(core, pod)).await;
    }

    /// Writes the document that describes a container's process, and returns its path.
    pub(super) async fn container(
        &self,
        core: &Core,
        pod: &Pod,
        container: &Container,
        image: &Image,
        grant: &Grant,
    ) -> Result<PathBuf, MountError> {
        let context = self.context(core, pod);
        let mut services = variables::of_services(&context).await?;
        if let Some(server) = core.options.processes.api_server {
            services.insert("KUBERNETES_SERVICE_HOST".to_owned(), server.ip().to_string());
            services.insert("KUBERNETES_SERVICE_PORT".to_owned(), server.port().to_string());
        }
        let own = variables::own(&context, container, &services).await?;
        let mut environment = Variables::from([("PATH".to_owned(), format!("{PROGRAMS}:{PATH}"))]);
        environment.insert("HOSTNAME".to_owned(), pod.metadata.name.clone().unwrap_or_default());
        // Later entries override earlier ones, so the container's own variables win.
        for more in [image.environment(), &services, &grant.environment, &own] {
            let more =
                more.iter().map(|(name, value)| (name.clone(), on_address(value, self.whereabouts.pod)));
            environment.extend(more);
        }
        let root = ContainerRoot {
            scratch: self.folder.join(format!("{}.root", container.name)),
            mounts: self.mounts(core, container, image, grant, &environment).await?,
            read_only: container.security_context.as_ref().and_then(|c| c.read_only_root_filesystem)
                == Some(true),
            working_dir: container.working_dir.clone().unwrap_or_else(|| "/".to_owned()).into(),
            command: self.command(container, image, &environment),
            environment,
        };
        let document = self.folder.join(format!("{}.json", container.name));
        root.write(&document)?;
        Ok(document)
    }

    fn command(&self, container: &Container, image: &Image, environment: &Variables) -> Vec<String> {
        let expanded = |texts: &Option<Vec<String>>| -> Vec<String> {
            texts.iter().flatten().map(|text| expand(text, environment)).collect()
        };
        image.command(&expanded(&container.command), &expanded(&container.args), self.whereabouts.pod)
    }

    async fn mounts(
        &self,
        core: &Core,
        container: &Container,
        image: &Image,
        grant: &Grant,
        environment: &Variables,
    ) -> Result<Vec<Mount>, MountError> {
        let mut mounts: Vec<Mount> = image.mounts().collect();
        let hosts = core.options.processes.hosts.as_ref();
        mounts.extend(hosts.map(|hosts| Mount {
            source: hosts.clone(),
            target: "/etc/hosts".into(),
            read_only: true,
        }));
        mounts.extend(grant.mounts.iter().map(|(target, source)| Mount {
            source: core.files.locate(Path::new(source)),
            target: target.into(),
            read_only: false,
        }));
        let volumes = self.volumes.lock().await;
        for mount in container.volume_mounts.iter().flatten() {
            mounts.push(volume_mount(&volumes, mount, environment)?);
        }
        Ok(mounts)
    }

    /// The path of a container's document, for a command that runs beside the container's process.
    pub(super) fn document(&self, container: &str) -> PathBuf {
        self.folder.join(format!("{container}.json"))
    }

    /// Removes the folder of a pod that has ended.
    pub(super) fn remove(&self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %self.folder.display(), %error, "a pod's folder stays");
        }
    }
}

fn volume_mount(
    volumes: &PodVolumes,
    mount: &VolumeMount,
    environment: &Variables,
) -> Result<Mount, MountError> {
    let missing = || MountError::NotFound { kind: "volume", name: mount.name.clone() };
    let (volume, is_kept) = volumes.path(&mount.name).ok_or_else(missing)?;
    let below = match (&mount.sub_path, &mount.sub_path_expr) {
        (_, Some(expression)) => expand(expression, environment),
        (path, None) => path.clone().unwrap_or_default(),
    };
    if Path::new(&below).components().any(|part| part == Component::ParentDir) {
        return Err(MountError::HostPath(format!("subPath {below} must not have ..")));
    }
    let mut source = volume.to_owned();
    if !below.is_empty() {
        source.push(below);
        if !source.exists() && !is_kept {
            std::fs::create_dir_all(&source)?;
        }
        // A link in the volume is resolved now, as the kubelet does; the mount does not follow later changes.
        source = source.canonicalize()?;
    }
    let read_only = is_kept || mount.read_only == Some(true);
    Ok(Mount { source, target: (&mount.mount_path).into(), read_only })
}

/// A pod's address from 127.64.0.0/11, which is local to every machine. It derives from the pod's random UID.
fn address(uid: &str) -> Ipv4Addr {
    let digits: String = uid.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    let random = u32::from_str_radix(&digits, 16).unwrap_or_default() % (1 << 21);
    // The range's first and last address are not used.
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 64, 0, 0)) + random.clamp(1, (1 << 21) - 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_have_addresses_of_their_own_on_loopback() {
        let one = address("5f0f9d2e-0000-4000-8000-000000000001");
        assert_eq!(one, Ipv4Addr::new(127, 79, 157, 46));
        assert_ne!(one, address("5f0f9d2f-0000-4000-8000-000000000001"));
        assert_eq!(address("00000000"), Ipv4Addr::new(127, 64, 0, 1));
        assert_eq!(address("ffffffff"), Ipv4Addr::new(127, 95, 255, 254));
    }
}
