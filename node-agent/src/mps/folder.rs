//! A target's folder `<root>/<target>/{daemon,pipe,log}`, with the agent's notes about the daemon beside them.
//!
//! The daemon's pipe directory is `daemon`, which only root can enter. A process that can write to the named pipe `log`
//! in it can stop the daemon with two bytes that are no record (driver 580: the pipe fills up behind them, and the
//! daemon waits for room). Clients get `pipe`, with a hard link to the one socket that they need.

use crate::gpu::ComputeMode;
use kerf_core::names::GpuUuid;
use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The file with the GPU's earlier compute mode.
const MODE_NAME: &str = "compute-mode";

/// How large a daemon's log may grow before its lines move to `daemon.log.1`. A word takes four lines, 280 bytes.
const LOG_BYTES: u64 = 1 << 20;

/// How many bytes of a log's end are read for its last line.
const TAIL_BYTES: u64 = 4096;

/// Exists if the kernel has SELinux enabled.
const SELINUX: &str = "/sys/fs/selinux";

/// The label that NVIDIA's MPS daemon gives its pipe directory (k8s-device-plugin,
/// `cmd/mps-control-daemon/mps/daemon.go`): any container may use it.
const LABEL: &str = "system_u:object_r:container_file_t:s0";
const LABEL_ATTRIBUTE: &str = "security.selinux";

/// The socket for clients, in the daemon's pipe directory and in theirs.
const SOCKET: &str = "control";

/// The directory with the socket of a target's daemon, for its clients' `CUDA_MPS_PIPE_DIRECTORY`. A read-only mount
/// suffices.
#[must_use]
pub fn pipe_dir(root: &Path, target: &str) -> PathBuf {
    root.join(target).join("pipe")
}

/// The daemon's own pipe directory, for `CUDA_MPS_PIPE_DIRECTORY` of the control program.
#[must_use]
pub fn daemon_dir(root: &Path, target: &str) -> PathBuf {
    root.join(target).join("daemon")
}

/// The targets that have a folder.
pub(crate) fn targets(root: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let folders = entries.filter_map(Result::ok).filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    Ok(folders.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// The compute modes that GPUs had before their daemons, for targets that have a folder.
pub(crate) fn modes_before(root: &Path) -> io::Result<BTreeMap<GpuUuid, ComputeMode>> {
    let mode = |target: String| Some((GpuUuid::new(&target), Folder::new(root, &target).mode_before()?));
    Ok(targets(root)?.into_iter().filter_map(mode).collect())
}

#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
    pipe: PathBuf,
    pub daemon: PathBuf,
    pub log_dir: PathBuf,
}

impl Folder {
    pub fn new(root: &Path, target: &str) -> Self {
        let path = root.join(target);
        let log_dir = path.join("log");
        Self { pipe: pipe_dir(root, target), daemon: daemon_dir(root, target), log_dir, path }
    }

    /// Names the daemon's process. The launcher writes it before it becomes the daemon.
    pub fn pid_file(&self) -> PathBuf {
        self.path.join("daemon.pid")
    }

    /// The daemon's output. A daemon in the foreground logs to its standard error, and not to the log directory.
    fn log(&self) -> PathBuf {
        self.log_dir.join("daemon.log")
    }

    /// Creates missing folders, and sets their modes regardless of the umask. Clients of every user reach their
    /// directory; only root reaches the daemon's and its log.
    pub fn prepare(&self) -> io::Result<()> {
        let folders =
            [(&self.path, 0o755), (&self.pipe, 0o755), (&self.daemon, 0o700), (&self.log_dir, 0o700)];
        for (folder, mode) in folders {
            fs::create_dir_all(folder)?;
            fs::set_permissions(folder, Permissions::from_mode(mode))?;
        }
        if Path::new(SELINUX).exists() {
            // The socket gets its label from the directory, so label that before the daemon starts.
            label(&self.pipe)?;
            label(&self.daemon)?;
        }
        Ok(())
    }

    /// Links the listening daemon's socket into the clients' directory.
    pub fn show_socket(&self) -> io::Result<()> {
        let (own, shown) = (self.daemon.join(SOCKET), self.pipe.join(SOCKET));
        let Ok(listening) = fs::metadata(&own) else { return Ok(()) };
        if fs::metadata(&shown).is_ok_and(|shown| shown.ino() == listening.ino()) {
            return Ok(());
        }
        ignore_missing(fs::remove_file(&shown))?;
        fs::hard_link(own, shown)
    }

    /// The pipe directory of the running daemon, if one runs. A daemon that an agent of an earlier version started uses
    /// the clients' directory.
    pub fn listening(&self) -> Option<&Path> {
        [&self.daemon, &self.pipe]
            .into_iter()
            .find(|folder| folder.join(SOCKET).exists())
            .map(PathBuf::as_path)
    }

    /// The compute mode that the GPU had before its folder was made; `None` without a folder. An agent of an earlier
    /// version noted none, and restored `DEFAULT`.
    pub fn mode_before(&self) -> Option<ComputeMode> {
        let noted = fs::read_to_string(self.path.join(MODE_NAME)).ok();
        let noted = noted.and_then(|text| ComputeMode::from_note(text.trim()));
        noted.or_else(|| self.path.exists().then_some(ComputeMode::Default))
    }

    /// Records the compute mode. Creates the folder if needed.
    pub fn write_mode(&self, mode: ComputeMode) -> io::Result<()> {
        fs::create_dir_all(&self.path)?;
        fs::write(self.path.join(MODE_NAME), mode.as_str())
    }

    /// Removes what an ended daemon left. The directories stay, because containers have the clients' directory mounted.
    pub fn clear(&self) -> io::Result<()> {
        ignore_missing(fs::remove_file(self.pid_file()))?;
        empty(&self.pipe)?;
        empty(&self.daemon)
    }

    pub fn remove(&self) -> io::Result<()> {
        ignore_missing(fs::remove_dir_all(&self.path))
    }

    /// How many daemons were started here.
    pub fn generation(&self) -> u64 {
        let text = fs::read_to_string(self.path.join("generation")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Records that another daemon is being started. The rename makes an interrupted write leave the earlier number.
    pub fn set_generation(&self, generation: u64) -> io::Result<()> {
        let next = self.path.join("generation.next");
        fs::write(&next, format!("{generation}\n"))?;
        fs::rename(next, self.path.join("generation"))
    }

    pub fn open_log(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).mode(0o600).open(self.log())
    }

    /// Keeps the log small. The daemon appends to the open file, so the file is truncated instead of renamed.
    pub fn trim_log(&self) -> io::Result<()> {
        let log = self.log();
        if fs::metadata(&log)?.len() > LOG_BYTES {
            fs::copy(&log, self.log_dir.join("daemon.log.1"))?;
            OpenOptions::new().write(true).open(&log)?.set_len(0)?;
        }
        Ok(())
    }

    /// The last line of the log, if there is one.
    pub fn last_words(&self) -> Option<String> {
        let mut log = File::open(self.log()).ok()?;
        let length = log.metadata().ok()?.len();
        log.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
        let mut tail = Vec::new();
        log.read_to_end(&mut tail).ok()?;
        let text = String::from_utf8_lossy(&tail);
        text.lines().rfind(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
    }
}

/// Labels the folder for confined containers; the daemon's sockets in it inherit the label.
fn label(folder: &Path) -> io::Result<()> {
    match setxattr(folder, LABEL_ATTRIBUTE, LABEL.as_bytes(), XattrFlags::empty()) {
        // The file system has no labels; its mount decides then.
        Err(Errno::NOTSUP) => Ok(()),
        labelled => Ok(labelled?),
    }
}

/// Removes the files of a directory, if it exists.
fn empty(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        ignore_missing(fs::remove_file(entry?.path()))?;
    }
    Ok(())
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn every_user_reaches_the_pipe_and_only_root_writes_there_or_reads_the_log() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::new(root.path(), "GPU-1");
        folder.prepare().unwrap();
        folder.prepare().unwrap();
        assert_eq!(mode(&pipe_dir(root.path(), "GPU-1")), 0o755);
        assert_eq!(mode(&root.path().join("GPU-1/log")), 0o700);
        assert_eq!(mode(&daemon_dir(root.path(), "GPU-1")), 0o700);
        assert_eq!(targets(root.path()).unwrap(), ["GPU-1"]);
        assert_eq!(targets(&root.path().join("none")).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn the_earlier_mode_is_noted_and_removed_with_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let (noted, old) = (Folder::new(root.path(), "GPU-1"), Folder::new(root.path(), "GPU-2"));
        assert_eq!(noted.mode_before(), None);
        noted.write_mode(ComputeMode::Other).unwrap();
        old.prepare().unwrap();
        noted.clear().unwrap();
        let all = [("GPU-1", ComputeMode::Other), ("GPU-2", ComputeMode::Default)];
        let all = all.map(|(target, mode)| (GpuUuid::new(target), mode));
        assert_eq!(modes_before(root.path()).unwrap(), all.into());
        noted.remove().unwrap();
        assert_eq!(noted.mode_before(), None);
    }

    #[test]
    fn a_pipe_gets_the_label_that_containers_may_use() {
        let root = tempfile::tempdir().unwrap();
        match setxattr(root.path(), LABEL_ATTRIBUTE, b"system_u:object_r:tmp_t:s0", XattrFlags::empty()) {
            Ok(()) => {}
            Err(error) => return eprintln!("SKIPPED: no label can be set here ({error}); it takes root"),
        }
        label(root.path()).unwrap();
        let mut is = [0; 64];
        let length = rustix::fs::getxattr(root.path(), LABEL_ATTRIBUTE, &mut is).unwrap();
        assert_eq!(&is[..length], LABEL.as_bytes());
    }

    #[test]
    fn clients_see_the_socket_of_the_daemon_that_listens_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::new(root.path(), "GPU-1");
        folder.prepare().unwrap();
        folder.show_socket().unwrap();
        assert_eq!(folder.listening(), None);
        for _ in 0..2 {
            for name in ["control", "control_privileged", "log"] {
                fs::write(folder.daemon.join(name), "").unwrap();
            }
            folder.show_socket().unwrap();
            folder.show_socket().unwrap();
            let shown: Vec<_> = fs::read_dir(&folder.pipe).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(shown, ["control"]);
            let inode = |folder: &Path| fs::metadata(folder.join("control")).unwrap().ino();
            assert_eq!(inode(&folder.pipe), inode(&folder.daemon));
            assert_eq!(folder.listening(), Some(folder.daemon.as_path()));
            // The next daemon creates a new socket.
            fs::remove_file(folder.daemon.join("control")).unwrap();
        }
        assert_eq!(folder.listening(), Some(folder.pipe.as_path()), "as an earlier version's daemon does");
    }

    #[test]
    fn clearing_keeps_the_mounted_directory_and_the_generation() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::new(root.path(), "GPU-1");
        folder.clear().unwrap();
        folder.prepare().unwrap();
        assert_eq!(folder.generation(), 0);
        folder.set_generation(7).unwrap();
        let inode = fs::metadata(&folder.pipe).unwrap().ino();
        fs::write(folder.daemon.join("control"), "").unwrap();
        folder.show_socket().unwrap();
        fs::write(folder.pid_file(), "1 1").unwrap();
        folder.clear().unwrap();
        assert_eq!(fs::read_dir(&folder.pipe).unwrap().count(), 0);
        assert_eq!(fs::read_dir(&folder.daemon).unwrap().count(), 0);
        assert!(!folder.pid_file().exists());
        assert_eq!(fs::metadata(&folder.pipe).unwrap().ino(), inode);
        assert_eq!(folder.generation(), 7);
        folder.remove().unwrap();
        folder.remove().unwrap();
        assert_eq!(targets(root.path()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_large_log_is_truncated_under_its_writer_and_its_last_line_is_read() {
        use std::io::Write as _;
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::new(root.path(), "GPU-1");
        folder.prepare().unwrap();
        let mut writer = folder.open_log().unwrap();
        assert_eq!(folder.last_words(), None);
        let line = "x".repeat(1023) + "\n";
        for _ in 0..1024 {
            writer.write_all(line.as_bytes()).unwrap();
        }
        folder.trim_log().unwrap();
        assert_eq!(fs::metadata(folder.log()).unwrap().len(), LOG_BYTES);
        writer.write_all(b"last words\n\n").unwrap();
        assert_eq!(folder.last_words().as_deref(), Some("last words"));
        folder.trim_log().unwrap();
        writer.write_all(b"after\n").unwrap();
        assert_eq!(fs::read_to_string(folder.log()).unwrap(), "after\n");
    }
}
