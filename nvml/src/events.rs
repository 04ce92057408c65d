//! Errors of GPUs, as the driver tells of them.

use crate::ffi::{self, EventSet};
use crate::{GpuError, open};
use kerf_core::names::GpuUuid;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::time::Duration;

/// An error of a GPU's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuEvent {
    /// The GPU; `None` where neither the watch nor the driver knows the handle that the driver gave.
    pub gpu: Option<GpuUuid>,
    /// What happened.
    pub what: GpuTrouble,
    /// The GPU instance that was hit, if not all of the GPU was.
    pub gi: Option<u32>,
    /// The compute instance that was hit, if not all of the GPU instance was.
    pub ci: Option<u32>,
}

/// A kind of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GpuTrouble {
    /// A critical XID, by its number in NVIDIA's list of XIDs. (Of several before a wait, NVML tells the last.)
    Xid(u64),
    /// A memory error that could not be corrected.
    DoubleBitEcc,
}

/// Waits for errors of the GPUs that are there when it is opened. A GPU whose MIG mode changed or that was lost may have
/// another handle: open it anew then. While it is open NVML stays initialised, so after an error that
/// [`needs_reopening`](GpuError::needs_reopening), here or elsewhere, drop it first.
pub struct EventWatch {
    nvml: Nvml,
    set: EventSet,
    /// GPUs by their handles.
    gpus: BTreeMap<usize, GpuUuid>,
    /// The indexes of GPUs that did not answer.
    left_out: BTreeSet<u32>,
    /// How many NVML counted.
    count: u32,
}

impl EventWatch {
    /// Loads NVML from `library` and registers every GPU that has events. One that does not answer is left
    /// out until [`Self::register_left_out`].
    pub fn open(library: &OsStr) -> Result<Self, GpuError> {
        let nvml = open(library)?;
        let set = ffi::create_event_set(&nvml).map_err(GpuError::call("nvmlEventSetCreate"))?;
        let mut watch = Self { nvml, set, gpus: BTreeMap::new(), left_out: BTreeSet::new(), count: 0 };
        watch.count = watch.nvml.device_count().map_err(GpuError::call("nvmlDeviceGetCount_v2"))?;
        for index in 0..watch.count {
            if let Err(error) = watch.add(index)? {
                tracing::warn!(index, %error, "the GPU's error events are not watched");
                watch.left_out.insert(index);
            }
        }
        Ok(watch)
    }

    /// Registers those of the GPUs that were left out that answer by now.
    pub fn register_left_out(&mut self) -> Result<(), GpuError> {
        for index in self.left_out.clone() {
            if self.add(index)?.is_ok() {
                tracing::info!(index, "the GPU's error events are watched");
                self.left_out.remove(&index);
            }
        }
        Ok(())
    }

    /// Registers a GPU. The inner error is its own; after the outer one nothing of NVML's answers.
    fn add(&mut self, index: u32) -> Result<Result<(), GpuError>, GpuError> {
        match self.register(index) {
            Ok(Some((handle, gpu))) => drop(self.gpus.insert(handle, gpu)),
            Ok(None) => tracing::info!(index, "the GPU tells of no errors by events"),
            Err(error) if error.needs_reopening() => return Err(error),
            Err(error) => return Ok(Err(error)),
        }
        Ok(Ok(()))
    }

    fn register(&self, index: u32) -> Result<Option<(usize, GpuUuid)>, GpuError> {
        let device =
            self.nvml.device_by_index(index).map_err(GpuError::call("nvmlDeviceGetHandleByIndex_v2"))?;
        let supported = match device.supported_event_types() {
            Err(NvmlError::NotSupported) => EventTypes::empty(),
            types => types.map_err(GpuError::call("nvmlDeviceGetSupportedEventTypes"))?,
        };
        let kinds = supported & (EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR);
        if kinds.is_empty() {
            return Ok(None);
        }
        ffi::register_events(&device, kinds.bits(), &self.set)
            .map_err(GpuError::call("nvmlDeviceRegisterEvents"))?;
        Ok(Some((ffi::handle_number(&device), uuid(&device)?)))
    }

    /// How many GPUs NVML counted, watched or not. More may be seen once it is opened anew.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many GPUs are watched.
    #[must_use]
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Waits for the next error, at most `timeout`; `None` when there was none. NVML may also give up before, so callers
    /// that loop on errors pause between.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<GpuEvent>, GpuError> {
        const CALL: &str = "nvmlEventSetWait_v2";
        let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let event = match ffi::wait_for_event(&self.nvml, &self.set, millis) {
            Err(NvmlError::Timeout) => return Ok(None),
            event => event.map_err(GpuError::call(CALL))?,
        };
        let what = match EventTypes::from_bits_truncate(event.kind) {
            kind if kind.contains(EventTypes::CRITICAL_XID_ERROR) => GpuTrouble::Xid(event.data),
            kind if kind.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) => GpuTrouble::DoubleBitEcc,
            _ => return Ok(None),
        };
        let gpu = self.gpu_with(event.device);
        Ok(Some(GpuEvent { gpu, what, gi: event.gi, ci: event.ci }))
    }

    /// The GPU with this handle. A GPU may have got another one since it was registered.
    fn gpu_with(&self, handle: usize) -> Option<GpuUuid> {
        self.gpus.get(&handle).cloned().or_else(|| {
            let uuid = ffi::uuid_of_handle(&self.nvml, handle);
            uuid.map(GpuUuid::new)
                .map_err(GpuError::call("nvmlDeviceGetUUID"))
                .inspect_err(|error| {
                    tracing::error!(%error, "an error event has a handle of no GPU");
                })
                .ok()
        })
    }
}

impl Drop for EventWatch {
    fn drop(&mut self) {
        // Whatever it answers, the set is not used again.
        drop(ffi::free_event_set(&self.nvml, &mut self.set));
    }
}

fn uuid(device: &Device<'_>) -> Result<GpuUuid, GpuError> {
    Ok(GpuUuid::new(device.uuid().map_err(GpuError::call("nvmlDeviceGetUUID"))?))
}
