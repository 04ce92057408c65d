//! The state file that several processes share: locking, caching, atomic writes, reboots and other events from outside.
//!
//! Every read takes a shared lock and every change an exclusive one on `<state>.lock`. A file's content is cached until
//! its identity changes, so a repeated read costs three stats and no parsing. Locks are never held while a call is
//! delayed or hangs.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};

use crate::code::{NvmlCode, Outcome};
use crate::config::MockConfig;
use crate::control::MockControl;
use crate::control_watch::ControlWatch;
use crate::files::{self, FileError};
use crate::state::MockState;

/// The paths of the files, from the environment.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub config: Option<PathBuf>,
    pub state: PathBuf,
    pub control: Option<PathBuf>,
    /// The folder that replaces `/proc`.
    pub proc: Option<PathBuf>,
}

/// Distinguishes one version of a file from another.
type Stamp = (u64, u64, u64, i64, i64);

fn stamp(path: &Path) -> Result<Option<Stamp>, FileError> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(Some((meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError::Read { path: path.to_owned(), source }),
    }
}

/// The last good content of one file.
struct Cached<T> {
    stamp: Option<Stamp>,
    value: Option<Arc<T>>,
}

impl<T> Cached<T> {
    const EMPTY: Cached<T> = Cached { stamp: None, value: None };
}

impl<T: serde::de::DeserializeOwned> Cached<T> {
    /// Reads the file if it changed since the last time. On an error `value` stays as it was.
    fn refresh(&mut self, path: &Path) -> Result<(), FileError> {
        let now = stamp(path)?;
        if now.is_none() {
            (self.stamp, self.value) = (None, None);
        } else if now != self.stamp {
            self.value = files::read(path)?.map(Arc::new);
            self.stamp = now;
        }
        Ok(())
    }
}

struct Files {
    config: Cached<MockConfig>,
    control: Cached<MockControl>,
    state: Cached<MockState>,
}

/// State and control as one call sees them.
#[derive(Clone)]
pub(crate) struct View {
    pub state: Arc<MockState>,
    pub control: Arc<MockControl>,
}

pub(crate) struct Store {
    paths: Paths,
    lock: File,
    files: Mutex<Files>,
}

/// An flock that is released at the end of its scope.
struct Locked<'a>(&'a File);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // This cannot fail on an open descriptor, and the lock ends with the process anyway.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

impl Store {
    /// Opens the lock file, and creates the state if there is none.
    pub(crate) fn open(paths: Paths) -> Result<Store, FileError> {
        let lock = files::lock_file(&paths.state)?;
        let files = Files { config: Cached::EMPTY, control: Cached::EMPTY, state: Cached::EMPTY };
        let store = Store { paths, lock, files: Mutex::new(files) };
        store.look()?;
        if let Some(proc) = &store.paths.proc {
            let mut files = store.files.lock().unwrap_or_else(PoisonError::into_inner);
            let _exclusive = store.lock(FlockOperation::LockExclusive)?;
            files.settle(&store.paths)?.state.write_proc(proc)?;
        }
        Ok(store)
    }

    fn lock(&self, how: FlockOperation) -> Result<Locked<'_>, FileError> {
        flock(&self.lock, how)
            .map_err(|error| FileError::Write { path: self.paths.state.clone(), source: error.into() })?;
        Ok(Locked(&self.lock))
    }

    /// The current state and control. The caller gets errors of the files as `NVML_ERROR_UNKNOWN`.
    pub(crate) fn view(&self) -> Outcome<View> {
        self.look().map_err(|_| NvmlCode::UNKNOWN)
    }

    /// A watch of the control file, if there may be one and the kernel has a watch left.
    pub(crate) fn watch_control(&self) -> Option<ControlWatch> {
        ControlWatch::new(self.paths.control.as_ref()?).ok()
    }

    fn look(&self) -> Result<View, FileError> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let _shared = self.lock(FlockOperation::LockShared)?;
            files.refresh(&self.paths)?;
        }
        // Usually the shared lock was enough, so that readers of several processes do not block each other.
        if let Some(view) = files.settled() {
            return Ok(view);
        }
        let _exclusive = self.lock(FlockOperation::LockExclusive)?;
        files.settle(&self.paths)
    }

    /// Applies a change and writes the state, or writes nothing if `change` fails.
    pub(crate) fn update<T>(
        &self,
        change: impl FnOnce(&mut MockState, &MockControl) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let _exclusive = self.lock(FlockOperation::LockExclusive).map_err(|_| NvmlCode::UNKNOWN)?;
        let view = files.settle(&self.paths).map_err(|_| NvmlCode::UNKNOWN)?;
        let mut state = MockState::clone(&view.state);
        let result = change(&mut state, &view.control)?;
        if state != *view.state {
            files.save(&self.paths, state).map_err(|_| NvmlCode::UNKNOWN)?;
        }
        Ok(result)
    }
}

impl Files {
    fn refresh(&mut self, paths: &Paths) -> Result<(), FileError> {
        // A config or control file that is just being written by hand is read once it is whole again.
        if let Some(path) = &paths.config {
            let _ = self.config.refresh(path);
        }
        if let Some(path) = &paths.control {
            let _ = self.control.refresh(path);
        }
        self.state.refresh(&paths.state)
    }

    /// The current boot by the files.
    fn boot_id(&self) -> Option<&str> {
        let control = self.control.value.as_deref().and_then(|control| control.boot.as_deref());
        control.or_else(|| self.config.value.as_deref().map(|config| config.boot_id.as_str()))
    }

    /// The view, if the state exists, belongs to the current boot and includes all events so far.
    fn settled(&self) -> Option<View> {
        let state = self.state.value.clone()?;
        let control = self.control.value.clone().unwrap_or_default();
        let rebooted = self.boot_id().is_some_and(|boot| boot != state.boot_id);
        (!rebooted && !state.is_behind(&control)).then_some(View { state, control })
    }

    /// Creates the state if it is missing, reboots it if the boot id changed, and applies the events. Needs the
    /// exclusive lock.
    fn settle(&mut self, paths: &Paths) -> Result<View, FileError> {
        self.refresh(paths)?;
        if let Some(view) = self.settled() {
            return Ok(view);
        }
        let mut state = match &self.state.value {
            Some(state) => MockState::clone(state),
            None => MockState::first_boot(&first_config(paths)?)?,
        };
        match self.boot_id() {
            Some(boot) if boot != state.boot_id && self.state.value.is_some() => {
                state.reboot(boot);
            }
            Some(boot) => boot.clone_into(&mut state.boot_id),
            None => {}
        }
        if let Some(control) = &self.control.value {
            state.catch_up(control);
        }
        self.save(paths, state)?;
        self.settled().ok_or_else(|| FileError::Read {
            path: paths.state.clone(),
            source: ErrorKind::InvalidData.into(),
        })
    }

    fn save(&mut self, paths: &Paths, state: MockState) -> Result<(), FileError> {
        files::write(&paths.state, &state)?;
        if let Some(proc) = &paths.proc
            && self.state.value.as_ref().is_none_or(|before| before.gpus != state.gpus)
        {
            state.write_proc(proc)?;
        }
        self.state = Cached { stamp: stamp(&paths.state)?, value: Some(Arc::new(state)) };
        Ok(())
    }
}

/// The configuration for a new state. Its errors are reported, unlike later ones.
fn first_config(paths: &Paths) -> Result<MockConfig, FileError> {
    match &paths.config {
        Some(path) => MockConfig::load(path),
        None => Err(FileError::Read { path: paths.state.clone(), source: ErrorKind::NotFound.into() }),
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
