//! A pod's volumes: folders on this machine that are filled and updated as the kubelet does it.

mod atomic;
mod content;
mod host_path;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, Volume};
use kube::Client;

use super::downward::Whereabouts;
use super::node_resources::ResourceList;
pub use atomic::{AtomicFolder, Payload};
use content::Tokens;
pub(super) use content::{Entries, config_map, containers, secret};
pub(super) use host_path::NodeFiles;

/// Why a volume cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub(super) enum MountError {
    #[error("{0}")]
    Api(#[source] Box<kube::Error>),
    /// An object that the volume needs is missing.
    #[error("{kind} {name:?} not found")]
    NotFound {
        /// The kind as the kubelet writes it, such as `configmap`.
        kind: &'static str,
        name: String,
    },
    /// The Secret, the ConfigMap or the pod has no such key or field.
    #[error("references non-existent key: {0}")]
    NoKey(String),
    /// The node's path is missing, or has another type.
    #[error("{0}")]
    HostPath(String),
    #[error("{0}")]
    Write(#[from] io::Error),
    /// The stand-in does not support this type of volume.
    #[error("the stand-in kubelet has no volumes of this type")]
    Unsupported,
}

/// The sources of volumes' contents and variables.
pub(super) struct MountContext<'a> {
    pub(super) client: &'a Client,
    pub(super) pod: &'a Pod,
    pub(super) whereabouts: &'a Whereabouts,
    /// The node's allocatable resources, for fields without a limit.
    pub(super) node: &'a ResourceList,
}

impl MountContext<'_> {
    pub(super) fn namespace(&self) -> String {
        self.pod.metadata.namespace.clone().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub(super) struct PodVolumes {
    mounted: BTreeMap<String, Mounted>,
}

#[derive(Debug)]
enum Mounted {
    /// The kubelet does not write its content.
    Plain(PathBuf),
    /// The kubelet writes its content and keeps it up to date.
    Kept { folder: AtomicFolder, tokens: Tokens },
}

impl PodVolumes {
    /// Mounts missing volumes below `folder`. The error names the volume.
    pub(super) async fn mount(
        &mut self,
        context: &MountContext<'_>,
        files: &NodeFiles,
        folder: &Path,
    ) -> Result<(), (String, MountError)> {
        for volume in volumes(context.pod) {
            if !self.mounted.contains_key(&volume.name) {
                let mounted = mounted(context, files, folder, volume).await;
                let mounted = mounted.map_err(|error| (volume.name.clone(), error))?;
                self.mounted.insert(volume.name.clone(), mounted);
            }
        }
        Ok(())
    }

    /// Updates the content that the kubelet writes. A volume whose source cannot be read keeps its content.
    pub(super) async fn refresh(&mut self, context: &MountContext<'_>) {
        for volume in volumes(context.pod) {
            let Some(Mounted::Kept { folder, tokens }) = self.mounted.get_mut(&volume.name) else { continue };
            let refreshed = async { Ok(folder.show(payload(context, volume, tokens).await?)?) };
            let refreshed: Result<bool, MountError> = refreshed.await;
            if let Err(error) = refreshed {
                tracing::debug!(volume = volume.name, %error, "a volume stays as it is");
            }
        }
    }

    /// A volume's path, and whether the kubelet writes its content, so that containers may only read it.
    pub(super) fn path(&self, name: &str) -> Option<(&Path, bool)> {
        Some(match self.mounted.get(name)? {
            Mounted::Plain(path) => (path, false),
            Mounted::Kept { folder, .. } => (folder.path(), true),
        })
    }
}

fn volumes(pod: &Pod) -> &[Volume] {
    pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default()
}

async fn mounted(
    context: &MountContext<'_>,
    files: &NodeFiles,
    folder: &Path,
    volume: &Volume,
) -> Result<Mounted, MountError> {
    let own = folder.join(&volume.name);
    if let Some(host) = &volume.host_path {
        let kind = host.type_.as_deref().unwrap_or_default();
        return files.host_path(&host.path, kind).map(Mounted::Plain).map_err(MountError::HostPath);
    }
    if volume.empty_dir.is_some() {
        std::fs::create_dir_all(&own)?;
        return Ok(Mounted::Plain(own));
    }
    let mut tokens = Tokens::new();
    let payload = payload(context, volume, &mut tokens).await?;
    let mut folder = AtomicFolder::make(own)?;
    folder.show(payload)?;
    Ok(Mounted::Kept { folder, tokens })
}

/// The files that a volume must have now.
async fn payload(
    context: &MountContext<'_>,
    volume: &Volume,
    tokens: &mut Tokens,
) -> Result<Payload, MountError> {
    if let Some(source) = &volume.secret {
        let optional = source.optional.unwrap_or_default();
        let entries = secret(context, source.secret_name.as_deref().unwrap_or_default(), optional).await?;
        return content::selected(entries, source.items.as_ref(), optional);
    }
    if let Some(source) = &volume.config_map {
        let optional = source.optional.unwrap_or_default();
        let entries = config_map(context, &source.name, optional).await?;
        return content::selected(entries, source.items.as_ref(), optional);
    }
    if let Some(source) = &volume.downward_api {
        return content::reported(context, source.items.as_ref());
    }
    let Some(source) = &volume.projected else { return Err(MountError::Unsupported) };
    let mut payload = Payload::new();
    for source in source.sources.iter().flatten() {
        payload.extend(content::projected(context, source, tokens).await?);
    }
    Ok(payload)
}
