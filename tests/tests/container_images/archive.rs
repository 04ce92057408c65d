//! Writes the images once for all tests, and reads them by the OCI's own types.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use flate2::read::GzDecoder;
use kerf_tests::binaries;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use sha2::{Digest as _, Sha256};

pub const IMAGES: [&str; 4] = ["kerf-webhook", "kerf-extender", "kerf-node-agent", "kerf-cli"];

/// Any time other than the present.
const TIME: &str = "1700000000";

/// An archive that was read.
pub struct Image {
    pub name: &'static str,
    /// Every file, by its path.
    pub files: BTreeMap<String, Vec<u8>>,
    pub descriptor: Descriptor,
    pub manifest: ImageManifest,
    pub configuration: ImageConfiguration,
}

/// The folder with the images, which the first caller writes.
pub fn build() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
        write(&folder, &[]);
        folder
    })
}

/// Runs `cargo xtask images` for the programs of this very build.
pub fn write(folder: &Path, images: &[&str]) {
    let mut command = Command::new(binaries::ours("kerf-images").unwrap());
    command.args(images).args(["--profile=dev", "--registry=registry.example.com/kerf"]);
    command.args(["--source=https://example.com/kerf", "--output"]).arg(folder);
    let output = command.env("SOURCE_DATE_EPOCH", TIME).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub fn image(name: &'static str) -> Image {
    let archive = fs::read(build().join(format!("{name}.tar"))).unwrap();
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        if !path.ends_with('/') {
            files.insert(path, content);
        }
    }
    let index = ImageIndex::from_reader(files["index.json"].as_slice()).unwrap();
    assert_eq!(index.manifests().len(), 1);
    let descriptor = index.manifests()[0].clone();
    let manifest = ImageManifest::from_reader(blob(&files, &descriptor)).unwrap();
    assert_eq!(manifest.layers().len(), 1);
    blob(&files, &manifest.layers()[0]);
    let configuration = ImageConfiguration::from_reader(blob(&files, manifest.config())).unwrap();
    Image { name, files, descriptor, manifest, configuration }
}

/// The content that a descriptor refers to, whose size must match.
fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Descriptor) -> &'a [u8] {
    let content = &files[&format!("blobs/sha256/{}", descriptor.digest().digest())];
    assert_eq!(content.len() as u64, descriptor.size());
    content
}

pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

impl Image {
    pub fn manifest_digest(&self) -> &str {
        self.descriptor.digest().digest()
    }

    pub fn configuration_digest(&self) -> &str {
        self.manifest.config().digest().digest()
    }

    pub fn layer_digest(&self) -> &str {
        self.manifest.layers()[0].digest().digest()
    }

    pub fn layer(&self) -> Vec<u8> {
        let mut layer = Vec::new();
        GzDecoder::new(blob(&self.files, &self.manifest.layers()[0])).read_to_end(&mut layer).unwrap();
        layer
    }

    /// The paths of all entries in the layer.
    pub fn entries(&self) -> Vec<String> {
        let layer = self.layer();
        let mut archive = tar::Archive::new(layer.as_slice());
        archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
    }
}
