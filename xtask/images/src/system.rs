//! What a dynamic program's image takes of the machine that builds it: the loader, the libraries of glibc and what says whose
//! they are. The machine is Debian or one of its family; the programs were linked with these very libraries.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

/// An architecture, in the words of those who name it.
#[derive(Debug, PartialEq, Eq)]
pub struct Machine {
    /// Rust's and the kernel's.
    pub arch: &'static str,
    /// In OCI documents, and Debian's.
    pub oci: &'static str,
    /// Debian's folder of its libraries.
    pub multiarch: &'static str,
    /// The loader that programs name.
    pub loader: &'static str,
}

/// What images are built for.
const MACHINES: [Machine; 2] = [
    Machine {
        arch: "x86_64",
        oci: "amd64",
        multiarch: "x86_64-linux-gnu",
        loader: "/lib64/ld-linux-x86-64.so.2",
    },
    Machine {
        arch: "aarch64",
        oci: "arm64",
        multiarch: "aarch64-linux-gnu",
        loader: "/lib/ld-linux-aarch64.so.1",
    },
];

/// Libraries and the packages that have them. Rust's programs ask for libc, libm and libgcc; NVML, `nvidia-smi` and the MPS
/// programs of the driver for the others too (seen in driver 580: `readelf -d`; symbols up to `GLIBC_2.9`).
pub const LIBRARIES: [(&str, &str); 6] = [
    ("libc.so.6", "libc6"),
    ("libm.so.6", "libc6"),
    ("libdl.so.2", "libc6"),
    ("libpthread.so.0", "libc6"),
    ("librt.so.1", "libc6"),
    ("libgcc_s.so.1", "libgcc-s1"),
];

/// The packages, and their licences in SPDX's words.
const PACKAGES: [(&str, &str); 2] =
    [("libc6", "LGPL-2.1-or-later"), ("libgcc-s1", "GPL-3.0-or-later WITH GCC-exception-3.1")];

/// The texts that Debian's copyright files lead to.
const LICENCES: [&str; 3] = ["GPL-2", "GPL-3", "LGPL-2.1"];

const ELSEWHERE: &str =
    "on another system build in a container of Debian, or with deploy/images/*.Dockerfile";

/// A file of the machine's.
#[derive(Debug)]
pub struct Copied {
    /// Its path in the image.
    pub path: String,
    /// What it holds.
    pub content: Vec<u8>,
}

/// A package of the machine's.
#[derive(Debug)]
pub struct Package {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: String,
    /// Its licence in SPDX's words.
    pub licence: &'static str,
    /// What the package database says of it.
    pub status: String,
}

/// What is copied.
#[derive(Debug)]
pub struct System {
    /// The loader and the libraries.
    pub libraries: Vec<Copied>,
    /// Licences, and what a scanner for vulnerabilities looks at: where distroless images have it.
    pub documents: Vec<Copied>,
    /// Whose the libraries are.
    pub packages: Vec<Package>,
    /// The distribution and its release, such as `debian` and `12`.
    pub distribution: (String, String),
}

impl Machine {
    /// This machine.
    pub fn this() -> anyhow::Result<&'static Self> {
        let arch = std::env::consts::ARCH;
        let found = MACHINES.iter().find(|machine| machine.arch == arch);
        found.with_context(|| format!("images are built for x86_64 and aarch64, and this machine is {arch}"))
    }
}

impl System {
    /// Reads it off this machine.
    pub fn of(machine: &Machine) -> anyhow::Result<Self> {
        let mut libraries = vec![copied(machine.loader, machine.loader)?];
        for (name, _) in LIBRARIES {
            let path = format!("/usr/lib/{}/{name}", machine.multiarch);
            libraries.push(copied(&path, &path)?);
        }
        let packages = PACKAGES
            .iter()
            .map(|(name, licence)| package(name, licence))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut documents = vec![
            copied("/etc/os-release", "/etc/os-release")?,
            copied("/etc/debian_version", "/etc/debian_version")?,
        ];
        for package in &packages {
            let path = format!("/usr/share/doc/{}/copyright", package.name);
            documents.push(copied(&path, &path)?);
            let path = format!("/var/lib/dpkg/status.d/{}", package.name);
            documents.push(Copied { path, content: package.status.clone().into_bytes() });
        }
        for name in LICENCES {
            let path = format!("/usr/share/common-licenses/{name}");
            documents.push(copied(&path, &path)?);
        }
        let release = String::from_utf8_lossy(&documents[0].content).into_owned();
        let distribution = (field(&release, "ID")?, field(&release, "VERSION_ID")?);
        Ok(Self { libraries, documents, packages, distribution })
    }
}

/// A file of the machine's, where the image has it: a folder of the root that is a link on Debian is one in the image.
fn copied(path: &str, to: &str) -> anyhow::Result<Copied> {
    let content =
        fs::read(path).with_context(|| format!("failed to read {path}, which is Debian's; {ELSEWHERE}"))?;
    let to = to.strip_prefix("/lib").map_or_else(|| to.to_owned(), |rest| format!("/usr/lib{rest}"));
    Ok(Copied { path: to, content })
}

fn package(name: &'static str, licence: &'static str) -> anyhow::Result<Package> {
    let output = Command::new("dpkg-query").args(["--status", name]).output();
    let output =
        output.with_context(|| format!("failed to run dpkg-query, which is Debian's; {ELSEWHERE}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    let status = String::from_utf8(output.stdout).context("dpkg-query does not speak UTF-8")?;
    let version = status.lines().find_map(|line| line.strip_prefix("Version: "));
    let version = version.with_context(|| format!("dpkg-query names no version of {name}"))?.to_owned();
    Ok(Package { name, version, licence, status })
}

/// A field of `/etc/os-release`.
fn field(release: &str, name: &str) -> anyhow::Result<String> {
    for line in release.lines() {
        if let Some((key, value)) = line.split_once('=')
            && key == name
        {
            return Ok(value.trim_matches('"').to_owned());
        }
    }
    bail!("/etc/os-release has no {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_is_of_a_package_whose_licence_is_told() {
        for (library, package) in LIBRARIES {
            assert!(PACKAGES.iter().any(|(name, _)| *name == package), "{library}");
        }
    }

    #[test]
    fn a_release_is_read_with_and_without_quotes() {
        let release = "NAME=\"Debian GNU/Linux\"\nVERSION_ID=\"12\"\nID=debian\n";
        assert_eq!(field(release, "ID").unwrap(), "debian");
        assert_eq!(field(release, "VERSION_ID").unwrap(), "12");
        assert!(field(release, "NONE").is_err());
    }
}
