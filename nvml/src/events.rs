//! Waits for errors of GPUs that the driver reports as events.

use crate::ffi::{self, EventSet};
use crate::{GpuError, open};
use kerf_core::names::GpuUuid;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuEvent {
    /// The GPU; `None` if neither the watch nor the driver recognises the event's handle.
    pub gpu: Option<GpuUuid>,
    pub what: GpuTrouble,
    /// The GPU instance with the error; `None` if the error is of the whole GPU.
    pub gi: Option<u32>,
    /// The compute instance with the error; `None` if the error is of the whole GPU instance.
    pub ci: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GpuTrouble {
    /// A critical XID, by its number in NVIDIA's list of XIDs. If several come before a wait, NVML reports only the
    /// last.
    Xid(u64),
    /// A memory error that could not be corrected.
    DoubleBitEcc,
}

/// Waits for errors of the GPUs that exist when it is opened. Open a new watch after a GPU changed its MIG mode or was
/// lost, because it may have another handle. NVML stays initialised while the watch is open. So after an error that
/// [`needs_reopening`](GpuError::needs_reopening), here or elsewhere, drop the watch first.
pub struct EventWatch {
    nvml: Nvml,
    set: EventSet,
    gpus: BTreeMap<usize, GpuUuid>,
    left_out: BTreeSet<u32>,
    count: u32,
}

impl EventWatch {
    /// Loads NVML from `library` and registers every GPU that has events. A GPU that does not answer is left out until
    /// [`Self::register_left_out`], because it must not keep the errors of the others from being seen.
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

    /// Registers those of the left-out GPUs that answer by now.
    pub fn register_left_out(&mut self) -> Result<(), GpuError> {
        for index in self.left_out.clone() {
            if self.add(index)?.is_ok() {
                tracing::info!(index, "the GPU's error events are watched");
                self.left_out.remove(&index);
            }
        }
        Ok(())
    }

    /// Registers a GPU. The inner error concerns this GPU alone. After the outer error all of NVML is unusable.
    fn add(&mut self, index: u32) -> Result<Result<(), GpuError>, GpuError> {
        match self.register(index) {
            Ok(Some((handle, gpu))) => drop(self.gpus.insert(handle, gpu)),
            Ok(None) => tracing::info!(index, "the GPU reports no errors by events"),
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

    /// The number of GPUs when the watch was opened. A new watch may see more.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    #[must_use]
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Waits for the next error, at most `timeout`; `None` if there was none. NVML may return early, so callers that
    /// retry on errors must pause in between.
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

    /// The GPU with this handle. NVML is asked about an unknown handle, because a GPU may have got another one since it
    /// was registered.
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
        // The result does not matter, because nothing uses the set again.
        drop(ffi::free_event_set(&self.nvml, &mut self.set));
    }
}

fn uuid(device: &Device<'_>) -> Result<GpuUuid, GpuError> {
    Ok(GpuUuid::new(device.uuid().map_err(GpuError::call("nvmlDeviceGetUUID"))?))
}
