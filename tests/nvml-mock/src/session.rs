//! What stands between an exported function and the state: initialisation by reference count, and for each call
//! its hang, its delay and its fault, in this order.

use std::env;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::code::{NvmlCode, Outcome};
use crate::control::MockControl;
use crate::files::{CONFIG_ENV, CONTROL_ENV, STATE_ENV};
use crate::handle::{Device, DeviceHandle};
use crate::state::{ComputeInstance, GpuInstance, GpuState, MockState};
use crate::store::{Paths, Store, View};

/// How often a hanging call looks whether it may go on.
const HANG_POLL: Duration = Duration::from_millis(10);

/// The open store and how many `nvmlInit` stand against it.
struct Session {
    store: Arc<Store>,
    references: u32,
}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

fn paths_from_env() -> Option<Paths> {
    let path = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    Some(Paths { state: path(STATE_ENV)?, config: path(CONFIG_ENV), control: path(CONTROL_ENV) })
}

/// `nvmlInit`. Without the environment there is no driver; with files that cannot be used, stderr says why.
pub(crate) fn init(function: &'static str) -> Outcome<()> {
    let store = open()?;
    Call { function, store: Arc::clone(&store) }.gate(None)?.pass(())?;
    let mut session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
    let references = session.as_ref().map_or(0, |session| session.references) + 1;
    *session = Some(Session { store, references });
    Ok(())
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

/// `nvmlShutdown`.
pub(crate) fn shutdown() -> Outcome<()> {
    let mut session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
    let open = session.as_mut().ok_or(NvmlCode::UNINITIALIZED)?;
    open.references -= 1;
    if open.references == 0 {
        *session = None;
    }
    Ok(())
}

/// One call of one exported function.
pub(crate) struct Call {
    function: &'static str,
    store: Arc<Store>,
}

/// The way into the driver, past hangs, delays and faults.
enum Gate {
    Open,
    /// The call takes effect and its answer is lost.
    FailAfter(NvmlCode),
}

impl Gate {
    fn pass<T>(self, value: T) -> Outcome<T> {
        match self {
            Gate::Open => Ok(value),
            Gate::FailAfter(code) => Err(code),
        }
    }
}

impl Call {
    /// A call of `function`, if the library is initialised.
    pub(crate) fn of(function: &'static str) -> Outcome<Call> {
        let session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
        let session = session.as_ref().ok_or(NvmlCode::UNINITIALIZED)?;
        Ok(Call { function, store: Arc::clone(&session.store) })
    }

    fn gate(&self, gpu: Option<u32>) -> Outcome<Gate> {
        let mut view = self.store.view()?;
        while view.control.hangs(self.function) {
            std::thread::sleep(HANG_POLL);
            view = self.store.view()?;
        }
        let delay = view.control.delay_of(self.function);
        if !delay.is_zero() {
            std::thread::sleep(delay);
            view = self.store.view()?;
        }
        let struck = &view.state.faults_struck;
        let Some(fault) = view.control.fault_for(self.function, gpu, struck) else { return Ok(Gate::Open) };
        if fault.times.is_none() {
            return if fault.after_effect { Ok(Gate::FailAfter(fault.code)) } else { Err(fault.code) };
        }
        self.store.update(|state, control| Ok(count_down(state, control, self.function, gpu)))?.map_or(
            Ok(Gate::Open),
            |(code, after_effect)| if after_effect { Ok(Gate::FailAfter(code)) } else { Err(code) },
        )
    }

    /// Answers from the state as it is. `gpu` is the one that the call names, for faults.
    pub(crate) fn view<T>(&self, gpu: Option<u32>, answer: impl FnOnce(&View) -> Outcome<T>) -> Outcome<T> {
        let gate = self.gate(gpu)?;
        let value = answer(&self.store.view()?)?;
        gate.pass(value)
    }

    /// Changes the state of a GPU.
    pub(crate) fn change<T>(
        &self,
        gpu: u32,
        change: impl FnOnce(&mut MockState, &MockControl) -> Outcome<T>,
    ) -> Outcome<T> {
        let gate = self.gate(Some(gpu))?;
        let value = self.store.update(change)?;
        gate.pass(value)
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

    /// Answers for a GPU; a MIG device is not one, which NVML calls `not_a_gpu`.
    pub(crate) fn gpu<T>(
        &self,
        handle: DeviceHandle,
        not_a_gpu: NvmlCode,
        answer: impl FnOnce(&Subject<'_>) -> Outcome<T>,
    ) -> Outcome<T> {
        self.device(handle, |subject| if subject.mig.is_some() { Err(not_a_gpu) } else { answer(subject) })
    }

    /// State and control without gate, for waits that poll.
    pub(crate) fn peek(&self) -> Outcome<View> {
        self.store.view()
    }
}

/// Counts a counted fault; `None` if another process used it up meanwhile. Forgets faults that were taken away.
fn count_down(
    state: &mut MockState,
    control: &MockControl,
    function: &str,
    gpu: Option<u32>,
) -> Option<(NvmlCode, bool)> {
    state.faults_struck.retain(|key, _| control.faults.iter().any(|fault| fault.key() == *key));
    let fault = control.fault_for(function, gpu, &state.faults_struck)?;
    *state.faults_struck.entry(fault.key()).or_insert(0) += 1;
    Some((fault.code, fault.after_effect))
}

/// The GPU that a device handle names, and its MIG device if it names one.
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
