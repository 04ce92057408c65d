//! The command: builds the chosen images and writes them, with bills of materials and a list of checksums.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Parser;
use flate2::Compression;

use crate::build::{self, Built, Places, Profile};
use crate::catalog::{Description, Image, Linkage};
use crate::layer::{self, Layer, sha256};
use crate::linkage::Needs;
use crate::release::Release;
use crate::sbom::{self, Materials};
use crate::system::{self, Machine, System};
use crate::{archive, content, crates};

/// Write container images of kerf's programs as OCI archives, without a container engine.
#[derive(Debug, Parser)]
#[command(name = "kerf-images", bin_name = "cargo xtask images", version)]
pub struct Args {
    /// Which images; all if none is named.
    #[arg(value_enum)]
    images: Vec<Image>,
    /// How programs are built.
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// The registry, and the path in it, that images are named after, such as `registry.example.com/kerf`. Without it
    /// they have the names that deploy/base uses.
    #[arg(long, value_parser = registry)]
    registry: Option<String>,
    /// The address of the source, for the label `org.opencontainers.image.source`.
    #[arg(long)]
    source: Option<String>,
    /// The folder for the archives. Default: target/images.
    #[arg(long)]
    output: Option<PathBuf>,
}

struct Written {
    archive: Vec<u8>,
    bill: Vec<u8>,
}

fn registry(text: &str) -> Result<String, String> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "./-_:".contains(c);
    if text.is_empty()
        || text.contains("://")
        || text.starts_with('/')
        || text.ends_with('/')
        || !text.chars().all(legal)
    {
        return Err(
            "give a host and a path in lower case without a scheme, such as registry.example.com/kerf"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let places = Places::locate()?;
        let machine = Machine::this()?;
        let release = Release::from_git(&places.root, self.source.clone())?;
        let folder = self.output.clone().unwrap_or_else(|| places.target.join("images"));
        fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
        let images = if self.images.is_empty() { Image::ALL.to_vec() } else { self.images.clone() };
        let mut sums = Vec::new();
        for image in images.iter().map(|image| image.description()) {
            let written = self.image(&places, machine, &release, image)?;
            let files = [
                (format!("{}.tar", image.name), &written.archive),
                (format!("{}.cdx.json", image.name), &written.bill),
            ];
            for (name, content) in files {
                let path = folder.join(&name);
                fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))?;
                sums.push(format!("{}  {name}\n", sha256(content)));
            }
            println!(
                "{}.tar: {:.1} MiB",
                folder.join(image.name).display(),
                mebibytes(written.archive.len())
            );
        }
        fs::write(folder.join("SHA256SUMS"), sums.concat()).context("failed to write SHA256SUMS")
    }

    fn image(
        &self,
        places: &Places,
        machine: &Machine,
        release: &Release,
        image: &'static Description,
    ) -> anyhow::Result<Written> {
        let built = build::program(places, image, self.profile, machine, release)?;
        let program = checked(&built, image.linkage, machine)?;
        let mut toolchain = build::toolchain(&built.target)?;
        let mut crates = crates::linked(&places.root, image.package, &built.target)?;
        let mut beside = None;
        if let Some(other) = image.beside {
            let built = build::beside(places, other, image, self.profile, (machine, release))?;
            beside = Some(checked(&built, Linkage::Static, machine)?);
            toolchain.musl = build::toolchain(&built.target)?.musl;
            let known: BTreeSet<_> =
                crates.iter().map(|one| (one.name.clone(), one.version.clone())).collect();
            let more = crates::linked(&places.root, other.package, &built.target)?;
            crates.extend(
                more.into_iter().filter(|one| !known.contains(&(one.name.clone(), one.version.clone()))),
            );
        }
        let system = match image.linkage {
            Linkage::Static => None,
            Linkage::Dynamic => Some(System::read(machine)?),
        };
        let licence = fs::read(places.root.join("LICENSE")).context("failed to read LICENSE")?;
        let tree = content::tree(image, program, beside, licence, system.as_ref())?;
        let layer: Layer = layer::write(&tree, release.seconds(), self.compression())?;
        let materials = Materials { crates: &crates, toolchain: &toolchain, system: system.as_ref() };
        // An empty list would make a bill of materials that hides every crate.
        ensure!(!crates.is_empty(), "cargo tree names no crate of {}", image.package);
        let registry = self.registry.as_deref();
        Ok(Written {
            archive: archive::bytes(image, release, (machine, registry), &layer)?,
            bill: sbom::write(image, release, machine, &materials)?,
        })
    }

    /// Unoptimised programs are large and their images are read once, so fast compression is better for tests.
    fn compression(&self) -> Compression {
        match self.profile {
            Profile::Release => Compression::best(),
            Profile::Dev => Compression::fast(),
        }
    }
}

/// Reads a built program. A program that could not start in its image is an error here, because otherwise it would be
/// one in a cluster.
fn checked(built: &Built, linkage: Linkage, machine: &Machine) -> anyhow::Result<Vec<u8>> {
    let program =
        fs::read(&built.path).with_context(|| format!("failed to read {}", built.path.display()))?;
    let libraries = system::LIBRARIES.map(|(library, _)| library);
    Needs::from_elf(&program)
        .and_then(|needs| needs.check(linkage, machine.loader, &libraries))
        .with_context(|| built.path.display().to_string())?;
    Ok(program)
}

#[expect(clippy::cast_precision_loss, reason = "one digit behind the point is shown")]
fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_a_host_and_a_path() {
        for good in ["registry.example.com/kerf", "localhost:5000", "ghcr.io/some-one/kerf"] {
            assert_eq!(registry(good).unwrap(), good);
        }
        for bad in
            ["", "https://registry.example.com", "registry.example.com/kerf/", "/kerf", "ghcr.io/SomeOne"]
        {
            assert!(registry(bad).unwrap_err().contains("registry.example.com/kerf"), "{bad}");
        }
    }
}
