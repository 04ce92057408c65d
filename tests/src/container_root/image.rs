//! The files of every image: this machine's programs and libraries, read-only, and empty folders for the
//! rest.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use nix::mount::MsFlags;

use super::enter::{EnterError, bind, io_error};

/// Folders with programs and libraries.
const READ_ONLY: [&str; 8] = ["bin", "lib", "lib32", "lib64", "libx32", "nix", "sbin", "usr"];

/// File systems of the kernel.
const KERNEL: [&str; 3] = ["dev", "proc", "sys"];

/// Files of `/etc` that programs and libraries need.
const CONFIGURATION: [&str; 9] = [
    "alternatives",
    "ca-certificates",
    "group",
    "ld.so.cache",
    "localtime",
    "passwd",
    "pki",
    "resolv.conf",
    "ssl",
];

/// Programs read `/etc/hosts` before DNS, because it replaces the cluster's DNS.
const NAME_SWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

/// A name resolves to all its addresses, as a headless Service does in the cluster's DNS.
const ALL_ADDRESSES: &str = "multi on\n";

/// Creates the image's tree in an empty folder.
pub(super) fn make(root: &Path) -> Result<(), EnterError> {
    for name in READ_ONLY {
        of_machine(root, name, true)?;
    }
    for name in KERNEL {
        of_machine(root, name, false)?;
    }
    for name in ["etc", "home", "mnt", "opt/image/bin", "root", "run", "tmp", "var/lib", "var/log", "var/tmp"]
    {
        let folder = root.join(name);
        fs::create_dir_all(&folder).map_err(io_error(&folder))?;
    }
    for open in ["tmp", "var/tmp"] {
        let folder = root.join(open);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).map_err(io_error(&folder))?;
    }
    let run = root.join("var/run");
    symlink("../run", &run).map_err(io_error(&run))?;
    for name in CONFIGURATION {
        of_machine(root, &format!("etc/{name}"), true)?;
    }
    for (name, text) in [("nsswitch.conf", NAME_SWITCH), ("host.conf", ALL_ADDRESSES)] {
        let path = root.join("etc").join(name);
        fs::write(&path, text).map_err(io_error(&path))?;
    }
    Ok(())
}

/// Adds this machine's file or folder of that name, if it exists.
fn of_machine(root: &Path, name: &str, read_only: bool) -> Result<(), EnterError> {
    let (source, target) = (Path::new("/").join(name), root.join(name));
    let kind = match fs::symlink_metadata(&source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(io_error(&source))?.file_type(),
    };
    // Links in `/etc` are resolved, because their targets (such as systemd's resolv.conf in /run) are not in
    // the image.
    if kind.is_symlink() && !name.starts_with("etc/") {
        let link = fs::read_link(&source).map_err(io_error(&source))?;
        return symlink(link, &target).map_err(io_error(&target));
    }
    let Ok(source) = fs::canonicalize(&source) else { return Ok(()) };
    let flags = if read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
    bind(&source, &target, flags)
}
