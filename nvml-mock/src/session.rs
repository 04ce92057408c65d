//! Connects an exported function to the state: initialisation by reference count, and calls. gate.rs has the faults
//! that strike a call.

use std::env;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::code::{NvmlCode, Outcome};
use crate::control::MockControl;
use crate::control_watch::ControlWatch;
use crate::files::{CONFIG_ENV, CONTROL_ENV, PROC_ENV, STATE_ENV};
use crate::handle::{Device, DeviceHandle};
use crate::state::{ComputeInstance, GpuInstance, GpuState, MockState};
use crate::store::{Paths, Store, View};

/// The open store, and how many calls of `nvmlInit` keep it open.
struct Session {
    store: Arc<Store>,
    references: u32,
}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

fn paths_from_env() -> Option<Paths> {
    let path = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    Some(Paths {
        state: path(STATE_ENV)?,
        config: path(CONFIG_ENV),
        control: path(CONTROL_ENV),
        proc: path(PROC_ENV),
    })
}

/// Carries out `nvmlInit`. Without the environment there is no driver. If the files are unusable, stderr says why.
pub(crate) fn init(function: &'static str) -> Outcome<()> {
    let store = open()?;
    let call = Call { function, store: Arc::clone(&store) };
    call.view(None, |_| {
        let mut session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
        let references = session.as_ref().map_or(0, |session| session.references) + 1;
        *session = Some(Session { store, references });
        Ok(())
    })
}

/// The store of the session, or a new one.
fn open() -> Outcome<Arc<Store>> {
    if let Some(session) = SESSION.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        return Ok(Arc::clone(&session.store));
    }
    let paths = paths_from_env().ok_or(NvmlCode::DRIVER_NOT_LOADED)?;
    let store = Store::open(paths).map_err(|error| {
        eprintln!("kerf-nvml-mock: {error}");
        NvmlCode::UNKNOWN
    })?;
    Ok(Arc::new(store))
}

/// Carries out `nvmlShutdown` for one reference.
pub(crate) fn shutdown(call: &Call) -> Outcome<()> {
    call.view(None, |_| {
        let mut session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
        let open = session.as_mut().ok_or(NvmlCode::UNINITIALIZED)?;
        open.references -= 1;
        if open.references == 0 {
            *session = None;
        }
        Ok(())
    })
}

/// One call of one exported function.
pub(crate) struct Call {
    pub(crate) function: &'static str,
    pub(crate) store: Arc<Store>,
}

impl Call {
    /// Starts a call of `function`, if the library is initialised.
    pub(crate) fn for_function(function: &'static str) -> Outcome<Call> {
        let session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
        let session = session.as_ref().ok_or(NvmlCode::UNINITIALIZED)?;
        Ok(Call { function, store: Arc::clone(&session.store) })
    }

    /// Answers from the current state. `gpu` is the GPU that the call names, for faults.
    pub(crate) fn view<T>(&self, gpu: Option<u32>, answer: impl FnOnce(&View) -> Outcome<T>) -> Outcome<T> {
        let gate = self.enter(gpu)?;
        let outcome = self.store.view().and_then(|view| answer(&view));
        self.leave(gate, outcome)
    }

    /// Answers about the GPU that `find` returns. Its faults also strike calls that name it by something else than a
    /// handle.
    pub(crate) fn search<T>(&self, find: impl Fn(&MockState) -> Option<(u32, T)>) -> Outcome<T> {
        let gpu = find(&self.store.view()?.state).map(|(gpu, _)| gpu);
        self.view(gpu, |view| find(&view.state).map(|(_, found)| found).ok_or(NvmlCode::NOT_FOUND))
    }

    /// Answers about a GPU by a name that NVML compares with each GPU's. If any GPU has fallen off the bus the search
    /// fails, whichever GPU it is for (`nvmlDeviceGetHandleByUUID` and `BySerial` in nvml.h).
    pub(crate) fn search_all<T>(&self, find: impl Fn(&MockState) -> Option<(u32, T)>) -> Outcome<T> {
        if self.store.view()?.control.has_lost_gpu() {
            return self.view(None, |_| Err(NvmlCode::GPU_IS_LOST));
        }
        self.search(find)
    }

    pub(crate) fn change<T>(
        &self,
        gpu: u32,
        change: impl FnOnce(&mut MockState, &MockControl) -> Outcome<T>,
    ) -> Outcome<T> {
        let gate = self.enter(Some(gpu))?;
        let outcome = self.store.update(change);
        self.leave(gate, outcome)
    }

    /// Answers for a GPU or a MIG device.
    pub(crate) fn device<T>(
        &self,
        handle: DeviceHandle,
        answer: impl FnOnce(&Subject<'_>) -> Outcome<T>,
    ) -> Outcome<T> {
        let device = handle.device()?;
        self.view(Some(device.gpu()), |view| answer(&subject(view, device)?))
    }

    /// Answers for a GPU. A MIG device gets the code `not_a_gpu`.
    pub(crate) fn gpu<T>(
        &self,
        handle: DeviceHandle,
        not_a_gpu: NvmlCode,
        answer: impl FnOnce(&Subject<'_>) -> Outcome<T>,
    ) -> Outcome<T> {
        self.device(handle, |subject| if subject.mig.is_some() { Err(not_a_gpu) } else { answer(subject) })
    }

    /// State and control without the gate, for waits that poll.
    pub(crate) fn peek(&self) -> Outcome<View> {
        self.store.view()
    }

    /// A watch of the control file, if the kernel has one left.
    pub(crate) fn watch_control(&self) -> Option<ControlWatch> {
        self.store.watch_control()
    }
}

/// The GPU of a device handle, and its MIG device if it is one's handle.
pub(crate) struct Subject<'a> {
    pub state: &'a MockState,
    pub control: &'a MockControl,
    pub gpu: &'a GpuState,
    pub mig: Option<(&'a GpuInstance, &'a ComputeInstance)>,
}

fn subject(view: &View, device: Device) -> Outcome<Subject<'_>> {
    let gpu = view.state.gpus.get(device.gpu() as usize).ok_or(NvmlCode::INVALID_ARGUMENT)?;
    let mig = match device {
        Device::Gpu { .. } => None,
        Device::Mig { serial, .. } => Some(gpu.compute(serial).ok_or(NvmlCode::NOT_FOUND)?),
    };
    Ok(Subject { state: &view.state, control: &view.control, gpu, mig })
}
