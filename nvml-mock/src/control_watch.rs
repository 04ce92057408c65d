//! Waits for the control file to be rewritten without using the CPU, as a driver's wait does.

use std::ffi::{CStr, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

/// Poll interval if the kernel allows this user no more watches.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Watches the control file for changes since its creation.
pub(crate) struct ControlWatch {
    folder: OwnedFd,
    control: PathBuf,
}

impl ControlWatch {
    /// Starts the watch. The file need not exist; its folder must.
    pub(crate) fn new(control: &Path) -> io::Result<ControlWatch> {
        let folder = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let changes =
            WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM | WatchFlags::DELETE;
        inotify::add_watch(&folder, control.parent().unwrap_or(Path::new(".")), changes)?;
        Ok(ControlWatch { folder, control: control.to_owned() })
    }

    /// Sleeps until the file changes, or for this long.
    fn wait(&self, at_most: Duration) -> io::Result<()> {
        let end = Instant::now() + at_most;
        loop {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now()))
                .map_err(|_| io::ErrorKind::InvalidInput)?;
            let ready = poll(&mut [PollFd::new(&self.folder, PollFlags::IN)], Some(&left))?;
            if ready == 0 || self.has_changed()? {
                return Ok(());
            }
        }
    }

    /// Whether one of the folder's changes since the last check is the file's.
    fn has_changed(&self) -> io::Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut changes = Reader::new(&self.folder, &mut buffer);
        let mut found = false;
        loop {
            match changes.next() {
                Ok(change) => {
                    let name = change.file_name().map(CStr::to_bytes);
                    found |= name == self.control.file_name().map(OsStr::as_encoded_bytes);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(found),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Sleeps until the watched file changes or for this long; without a watch only for a moment.
pub(crate) fn sleep(watch: Option<&ControlWatch>, at_most: Duration) {
    let waited = watch.map(|watch| watch.wait(at_most));
    if !matches!(waited, Some(Ok(()))) {
        std::thread::sleep(at_most.min(POLL_INTERVAL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::MockControl;

    #[test]
    fn a_wait_ends_with_the_files_change_and_not_with_its_neighbours() {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("control.json");
        let watch = ControlWatch::new(&control).unwrap();
        std::fs::write(folder.path().join("state.json"), "{}").unwrap();
        assert!(!watch.has_changed().unwrap());
        MockControl::new().write(&control).unwrap();
        let long = Duration::from_hours(1);
        watch.wait(long).unwrap();
        std::fs::remove_file(&control).unwrap();
        watch.wait(long).unwrap();
        assert!(!watch.has_changed().unwrap());
    }

    #[test]
    fn a_wait_without_a_change_ends_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let watch = ControlWatch::new(&folder.path().join("control.json")).unwrap();
        sleep(Some(&watch), Duration::from_millis(30));
        sleep(None, Duration::from_hours(1));
    }
}
