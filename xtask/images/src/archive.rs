//! Writes an image as one file: an OCI image layout in a tar archive, with the list that Docker reads.

use std::collections::HashMap;
use std::str::FromStr as _;

use oci_spec::image::{
    ANNOTATION_REF_NAME, Arch, ConfigBuilder, Descriptor, HistoryBuilder, ImageConfigurationBuilder,
    ImageIndexBuilder, ImageManifestBuilder, MediaType, OciLayoutBuilder, Os, PlatformBuilder, RootFsBuilder,
    SCHEMA_VERSION, Sha256Digest,
};
use serde::Serialize;
use serde_json::json;
use tar::Builder;

use crate::catalog::Description;
use crate::layer::{self, Layer, sha256};
use crate::release::{Release, VERSION};
use crate::system::Machine;
use crate::tree::Tree;

/// The annotation in which containerd finds the image's full name at an import.
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// The prefix of Docker's hub, which runtimes assume for names without a registry.
const HUB: &str = "docker.io/library";

pub fn bytes(
    image: &Description,
    release: &Release,
    (machine, registry): (&Machine, Option<&str>),
    layer: &Layer,
) -> anyhow::Result<Vec<u8>> {
    let mut blobs = Blobs::default();
    let configuration =
        blobs.document(MediaType::ImageConfig, &configuration(image, release, machine, layer)?)?;
    let compressed = blobs.add(MediaType::ImageLayerGzip, layer.compressed.clone())?;
    let docker = json!([{
        "Config": blob(&configuration),
        "RepoTags": [tag(image, registry)],
        "Layers": [blob(&compressed)],
    }]);
    let manifest = ImageManifestBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageManifest)
        .config(configuration)
        .layers(vec![compressed])
        .annotations(release.labels(image))
        .build()?;
    let mut manifest = blobs.document(MediaType::ImageManifest, &manifest)?;
    manifest.set_platform(Some(
        PlatformBuilder::default().architecture(Arch::from(machine.oci)).os(Os::Linux).build()?,
    ));
    manifest.set_annotations(Some(names(image, registry)));
    let index = ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests(vec![manifest])
        .build()?;
    let mut tree = blobs.0;
    let layout = OciLayoutBuilder::default().image_layout_version("1.0.0").build()?;
    tree.file("oci-layout", document(&layout)?)?;
    tree.file("index.json", document(&index)?)?;
    tree.file("manifest.json", document(&docker)?)?;
    let mut archive = Builder::new(Vec::new());
    for (path, node) in tree.iter() {
        layer::entry(&mut archive, path, node, release.seconds())?;
    }
    Ok(archive.into_inner()?)
}

#[derive(Default)]
struct Blobs(Tree);

impl Blobs {
    fn add(&mut self, media_type: MediaType, content: Vec<u8>) -> anyhow::Result<Descriptor> {
        let digest = Sha256Digest::from_str(&sha256(&content))?;
        let descriptor = Descriptor::new(media_type, content.len() as u64, digest);
        self.0.file(&blob(&descriptor), content)?;
        Ok(descriptor)
    }

    fn document(&mut self, media_type: MediaType, content: &impl Serialize) -> anyhow::Result<Descriptor> {
        self.add(media_type, document(content)?)
    }
}

fn blob(descriptor: &Descriptor) -> String {
    format!("blobs/sha256/{}", descriptor.digest().digest())
}

/// JSON with sorted keys, because the crate's maps have no fixed order.
fn document(content: &impl Serialize) -> anyhow::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&serde_json::to_value(content)?)?)
}

fn configuration(
    image: &Description,
    release: &Release,
    machine: &Machine,
    layer: &Layer,
) -> anyhow::Result<impl Serialize + use<>> {
    let environment: Vec<String> =
        image.environment().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let ports: Vec<String> = image.ports.iter().map(|port| format!("{port}/tcp")).collect();
    let config = ConfigBuilder::default()
        .user(image.user.ids())
        .env(environment)
        .entrypoint(vec![image.entrypoint()])
        .exposed_ports(ports)
        .working_dir("/")
        .labels(release.labels(image))
        .build()?;
    let created = release.created.to_string();
    let history =
        HistoryBuilder::default().created(created.clone()).created_by("cargo xtask images").build()?;
    let rootfs =
        RootFsBuilder::default().typ("layers").diff_ids(vec![format!("sha256:{}", layer.diff_id)]).build()?;
    Ok(ImageConfigurationBuilder::default()
        .created(created)
        .architecture(Arch::from(machine.oci))
        .os(Os::Linux)
        .config(config)
        .rootfs(rootfs)
        .history(vec![history])
        .build()?)
}

fn tag(image: &Description, registry: Option<&str>) -> String {
    let registry = registry.map(|registry| format!("{registry}/")).unwrap_or_default();
    format!("{registry}{}:{VERSION}", image.name)
}

fn names(image: &Description, registry: Option<&str>) -> HashMap<String, String> {
    let names = [
        (ANNOTATION_REF_NAME, VERSION.to_owned()),
        (CONTAINERD_NAME, tag(image, Some(registry.unwrap_or(HUB)))),
    ];
    names.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
