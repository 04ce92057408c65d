//! Packs folders as archives, with the system's tar and xz.

use std::env::consts;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

/// The largest bundle. A machine that is lent limits each upload, and the checkout must fit into it, too.
const SIZE_LIMIT: u64 = 50 << 20;

/// The strongest compression of xz, over all programs at once, because they share code. The filter is for machine
/// code's addresses.
fn compression() -> String {
    let filter = if consts::ARCH == "x86_64" { "--x86 " } else { "" };
    format!("xz {filter}--lzma2=preset=9,dict=128MiB")
}

pub fn pack(folder: &Path, bundle: &Path) -> anyhow::Result<u64> {
    archive(folder, bundle, Some(&compression()))?;
    let size = fs::metadata(bundle).with_context(|| format!("failed to read {}", bundle.display()))?.len();
    ensure!(
        size <= SIZE_LIMIT,
        "{} has {:.1} MiB, more than {}: move programs to the other bundle",
        bundle.display(),
        mebibytes(size),
        SIZE_LIMIT >> 20
    );
    Ok(size)
}

#[expect(clippy::cast_precision_loss, reason = "one digit behind the point is shown")]
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Writes the content of a folder as a reproducible archive. Times and owners are left out and the order is fixed, so
/// that the same content gives the same bytes.
pub fn archive(folder: &Path, archive: &Path, compression: Option<&str>) -> anyhow::Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(compression.map(|program| format!("--use-compress-program={program}")));
    tar.arg("--create").arg("--file").arg(archive).arg("--directory").arg(folder).args(entries(folder)?);
    run(&mut tar)
}

fn entries(folder: &Path) -> anyhow::Result<Vec<std::ffi::OsString>> {
    let entries = fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    // The archive's order must not depend on the file system, because the same content must give the same bytes.
    names.sort();
    Ok(names)
}

pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{name} is missing, which packing takes (Debian: apt-get install tar xz-utils binutils)")
        }
        Err(error) => Err(error).with_context(|| format!("failed to run {name}")),
        Ok(status) => {
            ensure!(status.success(), "{name} failed ({status}); is xz installed (Debian: xz-utils)?");
            Ok(())
        }
    }
}
