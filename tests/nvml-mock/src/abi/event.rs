//! Event sets. The only event that the mock has is a critical XID, named by the control file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::nvmlEventData_t;

use super::pointer::Out;
use crate::code::{NvmlCode, Outcome};
use crate::handle::{DeviceHandle, EventSetHandle};
use crate::session::Call;

/// `nvmlEventTypeXidCriticalError`.
const XID_CRITICAL: c_ulonglong = 8;
/// What an H200 under driver 580 supports.
const SUPPORTED: c_ulonglong = 0xFF9F;
/// What NVML writes for a GPU or compute instance that an event does not name.
const NO_INSTANCE: c_uint = u32::MAX;
/// How often a wait looks at the control file.
const POLL: Duration = Duration::from_millis(20);

/// GPUs registered for XIDs, and the XIDs that the set has seen.
#[derive(Default)]
struct EventSet {
    gpus: BTreeSet<u32>,
    seen: BTreeSet<String>,
}

#[derive(Default)]
struct EventSets {
    last: u32,
    open: BTreeMap<u32, EventSet>,
}

static SETS: Mutex<EventSets> = Mutex::new(EventSets { last: 0, open: BTreeMap::new() });

fn sets() -> MutexGuard<'static, EventSets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `change` on an open set.
fn with_set<T>(handle: EventSetHandle, change: impl FnOnce(&mut EventSet) -> T) -> Outcome<T> {
    let (_, id) = handle.parts()?;
    sets().open.get_mut(&id).map(change).ok_or(NvmlCode::INVALID_ARGUMENT)
}

/// The first XID that the set is registered for and has not seen.
fn next(call: &Call, handle: EventSetHandle) -> Outcome<Option<nvmlEventData_t>> {
    let view = call.peek()?;
    with_set(handle, |set| {
        let mut xids = view.control.xids.iter();
        let xid = xids.find(|xid| set.gpus.contains(&xid.gpu) && !set.seen.contains(&xid.id))?;
        set.seen.insert(xid.id.clone());
        Some(nvmlEventData_t {
            device: DeviceHandle::gpu(xid.gpu).as_pointer(),
            eventType: XID_CRITICAL,
            eventData: xid.xid,
            gpuInstanceId: xid.gi.unwrap_or(NO_INSTANCE),
            computeInstanceId: xid.ci.unwrap_or(NO_INSTANCE),
        })
    })
}

fn wait(call: &Call, set: EventSetHandle, data: Out<nvmlEventData_t>, timeout_ms: c_uint) -> Outcome<()> {
    data.check()?;
    call.view(None, |_| Ok(()))?;
    let end = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        if let Some(event) = next(call, set)? {
            return data.put(event);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NvmlCode::TIMEOUT);
        }
        std::thread::sleep(left.min(POLL));
    }
}

exports! {
    fn nvmlEventSetCreate(set: Out<EventSetHandle>) call => {
        set.check()?;
        call.view(None, |_| Ok(()))?;
        let mut sets = sets();
        sets.last += 1;
        let id = sets.last;
        sets.open.insert(id, EventSet::default());
        set.put(EventSetHandle::new(0, id))
    }

    fn nvmlDeviceGetSupportedEventTypes(device: DeviceHandle, types: Out<c_ulonglong>) call => {
        types.put(call.gpu(device, NvmlCode::NOT_SUPPORTED, |_| Ok(SUPPORTED))?)
    }

    // XIDs from before the registration are not delivered.
    fn nvmlDeviceRegisterEvents(device: DeviceHandle, types: c_ulonglong, set: EventSetHandle) call => {
        if types & !SUPPORTED != 0 {
            return Err(NvmlCode::NOT_SUPPORTED);
        }
        let (gpu, past) = call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| {
            let past = subject.control.xids.iter().filter(|xid| xid.gpu == subject.gpu.index);
            Ok((subject.gpu.index, past.map(|xid| xid.id.clone()).collect::<Vec<_>>()))
        })?;
        with_set(set, |set| {
            if types & XID_CRITICAL != 0 {
                set.gpus.insert(gpu);
                set.seen.extend(past);
            }
        })
    }

    fn nvmlEventSetWait(set: EventSetHandle, data: Out<nvmlEventData_t>, timeout_ms: c_uint) call => {
        wait(call, set, data, timeout_ms)
    }

    fn nvmlEventSetWait_v2(set: EventSetHandle, data: Out<nvmlEventData_t>, timeout_ms: c_uint) call => {
        wait(call, set, data, timeout_ms)
    }

    fn nvmlEventSetFree(set: EventSetHandle) call => {
        call.view(None, |_| Ok(()))?;
        let (_, id) = set.parts()?;
        sets().open.remove(&id).map(|_| ()).ok_or(NvmlCode::INVALID_ARGUMENT)
    }
}
