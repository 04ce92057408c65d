//! Files that a dynamic program's image takes from the building machine: the loader, glibc's libraries and their
//! licences. They are this machine's, because the programs were linked with these very libraries. The machine must be
//! Debian or a derivative.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

#[derive(Debug, PartialEq, Eq)]
pub struct Machine {
    pub arch: &'static str,
    pub oci: &'static str,
    pub multiarch: &'static str,
    pub loader: &'static str,
}

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

/// The libraries and their packages. Rust's programs need libc, libm and libgcc. The others are here because NVML,
/// `nvidia-smi` and the driver's MPS programs need them (seen in driver 580: `readelf -d`; symbols up to `GLIBC_2.9`).
pub const LIBRARIES: [(&str, &str); 6] = [
    ("libc.so.6", "libc6"),
    ("libm.so.6", "libc6"),
    ("libdl.so.2", "libc6"),
    ("libpthread.so.0", "libc6"),
    ("librt.so.1", "libc6"),
    ("libgcc_s.so.1", "libgcc-s1"),
];

/// The packages with their licences as SPDX expressions.
const PACKAGES: [(&str, &str); 2] =
    [("libc6", "LGPL-2.1-or-later"), ("libgcc-s1", "GPL-3.0-or-later WITH GCC-exception-3.1")];

/// The licence texts to which Debian's copyright files refer.
const LICENCES: [&str; 3] = ["GPL-2", "GPL-3", "LGPL-2.1"];

const ELSEWHERE: &str = "on another system build in a container of Debian";

#[derive(Debug)]
pub struct Copied {
    pub path: String,
    pub content: Vec<u8>,
}

#[derive(Debug)]
pub struct Package {
    pub name: &'static str,
    pub version: String,
    pub licence: &'static str,
    pub status: String,
}

#[derive(Debug)]
pub struct System {
    pub libraries: Vec<Copied>,
    /// Licences and package data. They have the paths of distroless images, because vulnerability scanners search
    /// there.
    pub documents: Vec<Copied>,
    pub packages: Vec<Package>,
    pub distribution: (String, String),
}

impl Machine {
    pub fn this() -> anyhow::Result<&'static Self> {
        let arch = std::env::consts::ARCH;
        let found = MACHINES.iter().find(|machine| machine.arch == arch);
        found.with_context(|| format!("images are built for x86_64 and aarch64, and this machine is {arch}"))
    }
}

impl System {
    pub fn read(machine: &Machine) -> anyhow::Result<Self> {
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

/// Copies a file. `/lib` is a link to `/usr/lib` on Debian and in the image, so the file must be below the link's
/// target.
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
    fn every_library_is_of_a_package_with_a_licence() {
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
