//! The container's files, opened so that neither a link, nor a mount, nor a race leads out of its root.

use crate::Done;
use crate::cache;
use crate::error::{HookError, Skipped};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, openat, openat2, renameat, unlinkat,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

/// The largest cache that is read, so that a container cannot exhaust the host's memory. The cache of an image with all
/// of Debian's libraries has a tenth of it.
const LIMIT: u64 = 16 << 20;

const CACHE: &str = "ld.so.cache";
const DRAFT: &str = ".ld.so.cache.kerf";

/// Links of the image's own are followed inside it, because `/etc` of some images is one. No step leaves for another
/// mount, because a pod's volumes are not the image's, and a folder of the host's may be among them.
const INSIDE: ResolveFlags =
    ResolveFlags::IN_ROOT.union(ResolveFlags::NO_XDEV).union(ResolveFlags::NO_MAGICLINKS);

pub fn add_to_cache(root: &Path, libraries: &[String]) -> Result<Done, HookError> {
    let failed =
        |step| move |error: Errno| HookError::File { step, root: root.to_owned(), source: error.into() };
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(rustix::fs::CWD, root, folder, Mode::empty()).map_err(failed("open the root"))?;
    let etc = match openat2(&top, "etc", folder, Mode::empty(), INSIDE) {
        Ok(etc) => etc,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Done::Skipped(Skipped::NoEtc)),
        Err(Errno::XDEV) => return Ok(Done::Skipped(Skipped::Volume)),
        Err(Errno::NOSYS) => return Ok(Done::Skipped(Skipped::OldKernel)),
        Err(error) => return Err(failed("open /etc")(error)),
    };
    let there = match read(&top) {
        Ok(there) => there,
        Err(Read::Skip(why)) => return Ok(Done::Skipped(why)),
        Err(Read::Failed(error)) => return Err(failed("read /etc/ld.so.cache")(error)),
    };
    let made = match cache::add(there.as_deref(), libraries) {
        Ok(Some(made)) => made,
        Ok(None) => return Ok(Done::Complete),
        Err(unknown) => return Ok(Done::Skipped(unknown.into())),
    };
    match replace(&etc, &made) {
        Ok(()) => Ok(Done::Written),
        Err(Errno::ROFS) => Ok(Done::Skipped(Skipped::ReadOnly)),
        // The file is skipped, because the kernel does not replace a file on which something is mounted.
        Err(Errno::BUSY) => Ok(Done::Skipped(Skipped::Volume)),
        Err(error) => Err(failed("write /etc/ld.so.cache")(error)),
    }
}

enum Read {
    Skip(Skipped),
    Failed(Errno),
}

fn read(top: &OwnedFd) -> Result<Option<Vec<u8>>, Read> {
    // Without `NONBLOCK` a pipe in the cache's place would block the hook.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat2(top, Path::new("etc").join(CACHE), flags, Mode::empty(), INSIDE) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::XDEV) => return Err(Read::Skip(Skipped::Volume)),
        Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Err(Read::Skip(Skipped::Odd)),
        Err(error) => return Err(Read::Failed(error)),
    };
    let is_file =
        FileType::from_raw_mode(fstat(&file).map_err(Read::Failed)?.st_mode) == FileType::RegularFile;
    let mut content = Vec::new();
    if is_file {
        let read = File::from(file).take(LIMIT + 1).read_to_end(&mut content);
        read.map_err(|error| Read::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    }
    let is_small = u64::try_from(content.len()).is_ok_and(|length| length <= LIMIT);
    if is_file && is_small { Ok(Some(content)) } else { Err(Read::Skip(Skipped::Odd)) }
}

/// Replaces the cache by a rename, so that it is complete or unchanged. A file at the draft's name is removed and not
/// followed, because an earlier run may have left it, or the image may have a link there.
fn replace(etc: &OwnedFd, content: &[u8]) -> Result<(), Errno> {
    let etc = etc.as_fd();
    match unlinkat(etc, DRAFT, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let mut draft = File::from(openat(etc, DRAFT, flags, mode)?);
    let written = draft
        .write_all(content)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        // The umask has removed bits of the mode, but every user of the container must be able to read the cache.
        .and_then(|()| fchmod(&draft, mode))
        .and_then(|()| renameat(etc, DRAFT, etc, CACHE));
    if written.is_err() {
        // A failure here is ignored, because the next run removes the draft.
        unlinkat(etc, DRAFT, AtFlags::empty()).ok();
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use tempfile::TempDir;

    const LIBRARY: &str = "/usr/lib64/libcuda.so.1";

    fn container() -> (TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("rootfs");
        fs::create_dir_all(root.join("etc")).unwrap();
        (folder, root)
    }

    fn run(root: &Path) -> Done {
        add_to_cache(root, &[LIBRARY.to_owned()]).unwrap()
    }

    #[test]
    fn a_cache_is_written_once_and_everybody_may_read_it() {
        let (_folder, root) = container();
        let cache = root.join("etc/ld.so.cache");
        fs::write(root.join("etc").join(DRAFT), "left by a killed hook").unwrap();
        assert_eq!(run(&root), Done::Written);
        assert_eq!(fs::metadata(&cache).unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(run(&root), Done::Complete);
        assert_eq!(fs::read_dir(root.join("etc")).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn links_of_the_image_never_leave_its_root() {
        let (folder, root) = container();
        let host = folder.path().join("host");
        fs::create_dir(&host).unwrap();
        fs::write(host.join("secret"), "host").unwrap();
        let etc = root.join("etc");
        let cases: [(&str, &dyn Fn()); 4] = [
            ("the cache", &|| symlink("../../host/secret", etc.join(CACHE)).unwrap()),
            ("the cache, absolutely", &|| symlink(host.join("secret"), etc.join(CACHE)).unwrap()),
            ("the draft", &|| symlink(host.join("secret"), etc.join(DRAFT)).unwrap()),
            ("a magic link", &|| symlink("/proc/1/root/etc/passwd", etc.join(CACHE)).unwrap()),
        ];
        for (case, make) in cases {
            fs::remove_dir_all(&etc).unwrap();
            fs::create_dir(&etc).unwrap();
            make();
            assert_eq!(run(&root), Done::Written, "{case}");
            assert!(fs::symlink_metadata(etc.join(CACHE)).unwrap().is_file(), "{case}: the link is replaced");
            assert_eq!(fs::read_to_string(host.join("secret")).unwrap(), "host", "{case}");
        }
        fs::remove_dir_all(&etc).unwrap();
        symlink("../host", &etc).unwrap();
        assert_eq!(run(&root), Done::Skipped(Skipped::NoEtc), "/host is looked for in the root");
        fs::remove_file(&etc).unwrap();
        symlink("/conf", &etc).unwrap();
        fs::create_dir(root.join("conf")).unwrap();
        assert_eq!(run(&root), Done::Written);
        assert!(root.join("conf/ld.so.cache").exists(), "a link inside the root is followed there");
        assert_eq!(fs::read_dir(&host).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_no_cache_is_not_changed() {
        let (_folder, root) = container();
        let cache = root.join("etc/ld.so.cache");
        fs::write(&cache, "text").unwrap();
        assert!(matches!(run(&root), Done::Skipped(Skipped::Unknown(_))));
        assert_eq!(fs::read_to_string(&cache).unwrap(), "text");
        File::options().write(true).open(&cache).unwrap().set_len(LIMIT + 1).unwrap();
        assert_eq!(run(&root), Done::Skipped(Skipped::Odd));
        fs::remove_file(&cache).unwrap();
        let fifo = FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &cache, fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        assert_eq!(run(&root), Done::Skipped(Skipped::Odd), "it does not wait for a writer");
        fs::remove_file(&cache).unwrap();
        fs::create_dir(&cache).unwrap();
        assert_eq!(run(&root), Done::Skipped(Skipped::Odd));
    }

    #[test]
    fn an_image_without_etc_is_skipped_and_a_missing_root_is_an_error() {
        let (_folder, root) = container();
        fs::remove_dir(root.join("etc")).unwrap();
        assert_eq!(run(&root), Done::Skipped(Skipped::NoEtc));
        let gone = add_to_cache(&root.join("gone"), &[LIBRARY.to_owned()]);
        assert!(matches!(gone, Err(HookError::File { step: "open the root", .. })));
    }
}
