//! Calls of GPM, which measures from two samples how busy a GPU instance is. Of all metrics the mock has the two that
//! show whether anything ran.
//!
//! Structures and codes are those of nvml.h; they were not checked against a driver with MIG. A sample has no content
//! here: the result is what the control file says when the samples are compared.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvml_wrapper_sys::bindings::{
    nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL as GRAPHICS_UTIL,
    nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL as SM_UTIL, nvmlGpmMetricsGet_t,
};

use super::pointer::Out;
use crate::code::{NvmlCode, Outcome};
use crate::handle::{DeviceHandle, GpmSampleHandle};

/// The oldest compute capability that has GPM: Hopper's.
const HOPPER: (i32, i32) = (9, 0);

/// The samples of this process by their number, with the GPU and the GPU instance of each.
#[derive(Default)]
struct Samples {
    last: u32,
    taken: BTreeMap<u32, Option<(u32, u32)>>,
}

static SAMPLES: Mutex<Samples> = Mutex::new(Samples { last: 0, taken: BTreeMap::new() });

fn samples() -> MutexGuard<'static, Samples> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(sample: GpmSampleHandle) -> Outcome<u32> {
    sample.parts().map(|(_, number)| number)
}

/// The GPU and the GPU instance of a sample.
fn source(sample: GpmSampleHandle) -> Outcome<(u32, u32)> {
    samples().taken.get(&number(sample)?).copied().flatten().ok_or(NvmlCode::INVALID_ARGUMENT)
}

exports! {
    fn nvmlGpmSampleAlloc(sample: Out<GpmSampleHandle>) call => {
        call.view(None, |_| Ok(()))?;
        let mut samples = samples();
        samples.last += 1;
        let number = samples.last;
        samples.taken.insert(number, None);
        sample.put(GpmSampleHandle::new(0, number))
    }

    fn nvmlGpmSampleFree(sample: GpmSampleHandle) call => {
        call.view(None, |_| Ok(()))?;
        samples().taken.remove(&number(sample)?).map(drop).ok_or(NvmlCode::INVALID_ARGUMENT)
    }

    fn nvmlGpmMigSampleGet(device: DeviceHandle, gi: c_uint, sample: GpmSampleHandle) call => {
        let gpu = call.gpu(device, NvmlCode::INVALID_ARGUMENT, |subject| {
            if !subject.gpu.mig.current || subject.gpu.model.facts().compute_capability < HOPPER {
                return Err(NvmlCode::NOT_SUPPORTED);
            }
            let exists = subject.gpu.instances.iter().any(|instance| instance.id == gi);
            if exists { Ok(subject.gpu.index) } else { Err(NvmlCode::NOT_FOUND) }
        })?;
        let mut samples = samples();
        let taken = samples.taken.get_mut(&number(sample)?).ok_or(NvmlCode::INVALID_ARGUMENT)?;
        *taken = Some((gpu, gi));
        Ok(())
    }

    fn nvmlGpmMetricsGet(metrics: Out<nvmlGpmMetricsGet_t>) call => {
        let mut get = metrics.get()?;
        let handles = [get.sample1, get.sample2].map(GpmSampleHandle::from_pointer);
        let (gpu, gi) = source(handles[0])?;
        if source(handles[1])? != (gpu, gi) {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let busy = call.view(Some(gpu), |view| {
            let here = view.control.processes.iter().filter(|process| process.gpu == gpu && process.gi == Some(gi));
            Ok(here.map(|process| process.sm_util).sum::<u32>().min(100))
        })?;
        let count = usize::try_from(get.numMetrics).unwrap_or(usize::MAX);
        for metric in get.metrics.iter_mut().take(count) {
            let is_known = [GRAPHICS_UTIL, SM_UTIL].contains(&metric.metricId);
            metric.nvmlReturn = if is_known { NvmlCode::SUCCESS.0 } else { NvmlCode::NOT_SUPPORTED.0 };
            metric.value = f64::from(busy);
        }
        metrics.put(get)
    }
}
