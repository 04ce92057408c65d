//! Writes the bill of materials of an image in CycloneDX's JSON: the crates in the program, the libraries that are no
//! crates, and the files that were copied from the machine.

use serde::Serialize;

use crate::catalog::Description;
use crate::crates::Crate;
use crate::layer::sha256;
use crate::release::{Release, VERSION};
use crate::system::{Machine, System};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    /// Rust's version, because its standard library is in every program.
    pub rust: String,
    /// The version of musl that Rust ships; `None` for a dynamic program.
    pub musl: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Bom {
    #[serde(rename = "bomFormat")]
    format: &'static str,
    spec_version: &'static str,
    version: u32,
    metadata: Metadata,
    components: Vec<Component>,
}

#[derive(Debug, Serialize)]
struct Metadata {
    timestamp: String,
    component: Component,
}

#[derive(Debug, Serialize)]
struct Component {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(rename = "bom-ref")]
    reference: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hashes: Vec<Hash>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    licenses: Vec<Licence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purl: Option<String>,
}

#[derive(Debug, Serialize)]
struct Hash {
    alg: &'static str,
    content: String,
}

#[derive(Debug, Serialize)]
struct Licence {
    expression: String,
}

#[derive(Debug)]
pub struct Materials<'a> {
    pub crates: &'a [Crate],
    pub toolchain: &'a Toolchain,
    pub system: Option<&'a System>,
}

pub fn write(
    image: &Description,
    release: &Release,
    machine: &Machine,
    materials: &Materials,
) -> anyhow::Result<Vec<u8>> {
    let mut components: Vec<Component> = materials.crates.iter().map(of_crate).collect();
    components.extend(of_toolchain(materials.toolchain));
    if let Some(system) = materials.system {
        components.extend(of_system(system, machine));
    }
    let image = Component::new("container", image.name, Some(VERSION), Some(env!("CARGO_PKG_LICENSE")), None);
    let metadata = Metadata { timestamp: release.created.to_string(), component: image };
    let bom = Bom { format: "CycloneDX", spec_version: "1.5", version: 1, metadata, components };
    let mut text = serde_json::to_vec_pretty(&bom)?;
    text.push(b'\n');
    Ok(text)
}

impl Component {
    fn new(
        kind: &'static str,
        name: &str,
        version: Option<&str>,
        licence: Option<&str>,
        purl: Option<String>,
    ) -> Self {
        let reference = purl.clone().unwrap_or_else(|| format!("{kind}:{name}"));
        let licenses = licence.into_iter().map(|text| Licence { expression: text.to_owned() }).collect();
        let version = version.map(str::to_owned);
        Self { kind, reference, name: name.to_owned(), version, hashes: Vec::new(), licenses, purl }
    }

    fn hashed(mut self, sha256: Option<String>) -> Self {
        self.hashes.extend(sha256.map(|content| Hash { alg: "SHA-256", content }));
        self
    }
}

fn of_crate(one: &Crate) -> Component {
    let purl = format!("pkg:cargo/{}@{}", one.name, escaped(&one.version));
    Component::new("library", &one.name, Some(&one.version), one.licence.as_deref(), Some(purl))
        .hashed(one.checksum.clone())
}

fn of_toolchain(toolchain: &Toolchain) -> Vec<Component> {
    let generic = |name: &str, version: &str, licence| {
        let purl = format!("pkg:generic/{name}@{}", escaped(version));
        Component::new("library", name, Some(version), Some(licence), Some(purl))
    };
    let mut components = vec![generic("rust-std", &toolchain.rust, "MIT OR Apache-2.0")];
    components.extend(toolchain.musl.as_ref().map(|version| generic("musl", version, "MIT")));
    components
}

fn of_system(system: &System, machine: &Machine) -> Vec<Component> {
    let (distribution, release) = &system.distribution;
    let packages = system.packages.iter().map(|package| {
        let purl = format!(
            "pkg:deb/{distribution}/{}@{}?arch={}&distro={distribution}-{release}",
            package.name,
            escaped(&package.version),
            machine.oci
        );
        Component::new("library", package.name, Some(&package.version), Some(package.licence), Some(purl))
    });
    let files = system
        .libraries
        .iter()
        .map(|file| Component::new("file", &file.path, None, None, None).hashed(Some(sha256(&file.content))));
    packages.chain(files).collect()
}

/// Escapes a version, because `+` and `:` have a meaning in package URLs.
fn escaped(version: &str) -> String {
    version.replace('+', "%2B").replace(':', "%3A")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Image;
    use crate::system::{Copied, Package};
    use cyclonedx_bom::models::bom::Bom as Judge;
    use cyclonedx_bom::validation::Validate as _;

    fn crates() -> Vec<Crate> {
        let one = |name: &str, version: &str, licence: Option<&str>, checksum: Option<&str>| Crate {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: licence.map(str::to_owned),
            checksum: checksum.map(str::to_owned),
        };
        vec![
            one("kerf-core", "0.1.0", Some("Apache-2.0"), None),
            one("zstd-sys", "2.0.16+zstd.1.5.7", Some("MIT OR Apache-2.0"), Some(&"ab".repeat(32))),
            one("odd", "1.0.0", None, None),
        ]
    }

    fn system() -> System {
        let package = Package {
            name: "libc6",
            version: "2.36-9+deb12u14".to_owned(),
            licence: "LGPL-2.1-or-later",
            status: String::new(),
        };
        System {
            libraries: vec![Copied { path: "/usr/lib/libc.so.6".to_owned(), content: b"abc".to_vec() }],
            documents: Vec::new(),
            packages: vec![package],
            distribution: ("debian".to_owned(), "12".to_owned()),
        }
    }

    fn bill() -> String {
        let release =
            Release { revision: "05b355c".to_owned(), created: jiff::Timestamp::UNIX_EPOCH, source: None };
        let (crates, system) = (crates(), system());
        let toolchain = Toolchain { rust: "1.95.0".to_owned(), musl: Some("1.2.5".to_owned()) };
        let materials = Materials { crates: &crates, toolchain: &toolchain, system: Some(&system) };
        let machine = Machine::this().unwrap();
        String::from_utf8(write(Image::NodeAgent.description(), &release, machine, &materials).unwrap())
            .unwrap()
    }

    /// CycloneDX's own library validates the bill.
    #[test]
    fn the_bill_is_valid_and_names_everything() {
        let bom = Judge::parse_from_json(bill().as_bytes()).unwrap();
        let judged = bom.validate();
        assert!(judged.passed(), "{judged:?}");
        let components = bom.components.unwrap().0;
        let names: Vec<String> = components.iter().map(|c| c.name.to_string()).collect();
        assert_eq!(
            names,
            ["kerf-core", "zstd-sys", "odd", "rust-std", "musl", "libc6", "/usr/lib/libc.so.6"]
        );
    }

    #[test]
    fn package_urls_and_hashes_have_the_form_that_scanners_read() {
        let bill = bill();
        let wanted = [
            "pkg:cargo/zstd-sys@2.0.16%2Bzstd.1.5.7",
            "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=",
            "&distro=debian-12",
            "pkg:generic/musl@1.2.5",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ];
        for part in wanted {
            assert!(bill.contains(part), "{part} is not in {bill}");
        }
    }
}
