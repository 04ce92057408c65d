//! Calls about event sets. The mock's events are critical XIDs and memory errors, which the control file lists.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::nvmlEventData_t;

use super::pointer::Out;
use crate::code::{NvmlCode, Outcome};
use crate::control::MockControl;
use crate::control_watch;
use crate::handle::{DeviceHandle, EventSetHandle};
use crate::happening::EccKind;
use crate::session::Call;

const SINGLE_BIT_ECC: c_ulonglong = 1;
const DOUBLE_BIT_ECC: c_ulonglong = 2;
const XID_CRITICAL: c_ulonglong = 8;
/// The event types that an H200 under driver 580 supports.
const SUPPORTED: c_ulonglong = 0xFF9F;
/// NVML's value for a GPU or compute instance that an event does not name.
const NO_INSTANCE: c_uint = u32::MAX;

/// An event that event sets receive.
struct Event {
    key: String,
    gpu: u32,
    /// The event's type as a single bit.
    kind: c_ulonglong,
    /// The XID; 0 for other events.
    data: c_ulonglong,
    gi: Option<u32>,
    ci: Option<u32>,
}

/// All events so far, in the order of the control file: XIDs, then memory errors.
fn events(control: &MockControl) -> impl Iterator<Item = Event> {
    let xids = control.xids.iter().map(|xid| Event {
        key: format!("xid/{}", xid.id),
        gpu: xid.gpu,
        kind: XID_CRITICAL,
        data: xid.xid,
        gi: xid.gi,
        ci: xid.ci,
    });
    let errors = control.ecc_errors.iter().map(|errors| Event {
        key: errors.key(),
        gpu: errors.gpu,
        kind: match errors.kind {
            EccKind::Corrected => SINGLE_BIT_ECC,
            EccKind::Uncorrected => DOUBLE_BIT_ECC,
        },
        data: 0,
        gi: errors.gi,
        ci: errors.ci,
    });
    xids.chain(errors)
}

/// The GPUs that a set is registered for, with the event types, and the events that it has delivered.
#[derive(Default)]
struct EventSet {
    gpus: BTreeMap<u32, c_ulonglong>,
    seen: BTreeSet<String>,
}

impl EventSet {
    fn awaits(&self, event: &Event) -> bool {
        self.gpus.get(&event.gpu).is_some_and(|types| types & event.kind != 0) && !self.seen.contains(&event.key)
    }
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

fn with_set<T>(handle: EventSetHandle, change: impl FnOnce(&mut EventSet) -> T) -> Outcome<T> {
    let (_, id) = handle.parts()?;
    sets().open.get_mut(&id).map(change).ok_or(NvmlCode::INVALID_ARGUMENT)
}

/// The next event for the set.
fn next(control: &MockControl, handle: EventSetHandle) -> Outcome<Option<nvmlEventData_t>> {
    with_set(handle, |set| {
        let event = events(control).find(|event| set.awaits(event))?;
        let handle = if control.renewed_handles { DeviceHandle::renewed } else { DeviceHandle::gpu };
        let data = nvmlEventData_t {
            device: handle(event.gpu).as_pointer(),
            eventType: event.kind,
            eventData: event.data,
            gpuInstanceId: event.gi.unwrap_or(NO_INSTANCE),
            computeInstanceId: event.ci.unwrap_or(NO_INSTANCE),
        };
        set.seen.insert(event.key);
        Some(data)
    })
}

/// Waits for an event. A lost GPU ends the waits of all sets that it is in, once they have delivered its last events.
fn wait(call: &Call, set: EventSetHandle, data: Out<nvmlEventData_t>, timeout_ms: c_uint) -> Outcome<()> {
    data.check()?;
    call.view(None, |_| Ok(()))?;
    let end = Instant::now() + Duration::from_millis(timeout_ms.into());
    let watch = call.watch_control();
    loop {
        let control = call.peek()?.control;
        if let Some(event) = next(&control, set)? {
            return data.put(event);
        }
        let gpus = with_set(set, |set| set.gpus.keys().copied().collect())?;
        if let Some(code) = call.lost(&control, &gpus) {
            return Err(code);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NvmlCode::TIMEOUT);
        }
        control_watch::sleep(watch.as_ref(), left);
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

    // Events from before the registration are not delivered.
    fn nvmlDeviceRegisterEvents(device: DeviceHandle, types: c_ulonglong, set: EventSetHandle) call => {
        if types & !SUPPORTED != 0 {
            return Err(NvmlCode::NOT_SUPPORTED);
        }
        let (gpu, past) = call.gpu(device, NvmlCode::NOT_SUPPORTED, |subject| {
            let index = subject.gpu.index;
            let past = events(subject.control).filter(|event| event.gpu == index && types & event.kind != 0);
            Ok((index, past.map(|event| event.key).collect::<Vec<_>>()))
        })?;
        with_set(set, |set| {
            *set.gpus.entry(gpu).or_default() |= types;
            set.seen.extend(past);
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
