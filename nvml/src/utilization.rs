//! Measures how busy GPUs, their processes and their MIG instances are. Only metrics use it, so a value that the driver
//! does not report is left out.
//!
//! A GPU without MIG mode reports it by process (`nvmlDeviceGetProcessUtilization`). An H100 under driver 580.159.04
//! returns one sample a process, of its last sample period, in about 2 ms, and none for a process that did nothing. In
//! MIG mode this call fails. There GPM reports it by GPU instance, as a difference of two samples, on Hopper and later.

use crate::ffi::GpmHandle;
use crate::instances::device;
use crate::{Gpu, GpuInstance, NvmlBackend, Utilization};
use kerf_core::names::GpuUuid;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use nvml_wrapper::{Device, Nvml};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The shortest time between two measurements, because samples of a shorter time are meaningless.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Meter {
    measured: Option<Instant>,
    last: Utilization,
    /// The time of the newest process sample, in the driver's microseconds. The next query asks from there on, so that
    /// no sample counts twice.
    newest: u64,
    samples: BTreeMap<u32, GpmHandle>,
}

impl NvmlBackend {
    pub(crate) fn measure(&mut self, gpus: &[Gpu]) -> BTreeMap<GpuUuid, Utilization> {
        let gone = self.meters.extract_if(.., |uuid, _| gpus.iter().all(|gpu| gpu.uuid != *uuid));
        for (_, meter) in gone {
            meter.free(&self.nvml);
        }
        let mut all = BTreeMap::new();
        for gpu in gpus.iter().filter(|gpu| gpu.fault.is_none()) {
            let meter = self.meters.entry(gpu.uuid.clone()).or_default();
            if meter.measured.is_none_or(|at| at.elapsed() >= MEASURE_INTERVAL)
                && let Ok(device) = device(&self.nvml, [gpu.index], &gpu.uuid)
            {
                meter.measure(&self.nvml, &device, gpu);
            }
            all.insert(gpu.uuid.clone(), meter.last.clone());
        }
        all
    }
}

impl Meter {
    fn measure(&mut self, nvml: &Nvml, device: &Device<'_>, gpu: &Gpu) {
        self.measured = Some(Instant::now());
        let is_mig = gpu.mig.is_on();
        self.last = Utilization {
            gpu: device.utilization_rates().ok().filter(|_| !is_mig).map(|rates| rates.gpu.min(100)),
            processes: if is_mig { None } else { self.processes(device) },
            instances: self.instances(nvml, device, &gpu.instances),
        };
    }

    fn processes(&mut self, device: &Device<'_>) -> Option<BTreeMap<u32, u32>> {
        match device.process_utilization_stats(self.newest) {
            Ok(samples) => {
                self.newest = samples.iter().map(|sample| sample.timestamp).fold(self.newest, u64::max);
                Some(percent_by_process(&samples))
            }
            // NVML has this error for a GPU on which no process has run since then.
            Err(NvmlError::NotFound) => Some(BTreeMap::new()),
            Err(error) => {
                tracing::debug!(%error, "nvmlDeviceGetProcessUtilization failed");
                None
            }
        }
    }

    /// Takes a sample of each instance, and compares it with the previous one, because GPM counts only differences.
    fn instances(
        &mut self,
        nvml: &Nvml,
        device: &Device<'_>,
        instances: &[GpuInstance],
    ) -> BTreeMap<u32, u32> {
        let mut before = std::mem::take(&mut self.samples);
        let mut busy = BTreeMap::new();
        for gi in instances.iter().map(|instance| instance.gi) {
            let now = match device.gpm_mig_sample(gi) {
                Ok(now) => now,
                Err(error) => {
                    tracing::debug!(gi, %error, "nvmlGpmMigSampleGet failed");
                    continue;
                }
            };
            if let Some(before) = before.remove(&gi) {
                let before = before.into_sample(nvml);
                let metrics = gpm_metrics_get(nvml, &before, &now, &[GpmMetricId::GraphicsUtil]);
                match metrics
                    .and_then(|metrics| metrics.into_iter().next().unwrap_or(Err(NvmlError::NotFound)))
                {
                    Ok(metrics) => drop(busy.insert(gi, whole_percent(metrics.value))),
                    Err(error) => tracing::debug!(gi, %error, "nvmlGpmMetricsGet failed"),
                }
            }
            self.samples.insert(gi, GpmHandle::from_sample(now));
        }
        free(before, nvml);
        busy
    }

    /// Returns the samples to the driver, because only it can free them.
    pub(crate) fn free(self, nvml: &Nvml) {
        free(self.samples, nvml);
    }
}

fn free(samples: BTreeMap<u32, GpmHandle>, nvml: &Nvml) {
    for sample in samples.into_values() {
        drop(sample.into_sample(nvml));
    }
}

/// The mean of each process's samples. Samples above 100 are skipped, because a driver may write nonsense for a process
/// that has just ended.
fn percent_by_process(samples: &[ProcessUtilizationSample]) -> BTreeMap<u32, u32> {
    let mut sums: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.sm_util <= 100) {
        let (sum, count) = sums.entry(sample.pid).or_default();
        *sum += sample.sm_util;
        *count += 1;
    }
    sums.into_iter().map(|(pid, (sum, count))| (pid, sum / count)).collect()
}

fn whole_percent(value: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped; NaN becomes zero")]
    let percent = value.clamp(0.0, 100.0).round() as u32;
    percent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_mean_of_its_possible_samples() {
        let sample = |pid, sm_util| ProcessUtilizationSample {
            pid,
            timestamp: 1,
            sm_util,
            mem_util: 0,
            enc_util: 0,
            dec_util: 0,
        };
        let samples = [sample(1, 20), sample(1, 40), sample(2, 4_000_000_000), sample(1, 101)];
        assert_eq!(percent_by_process(&samples), BTreeMap::from([(1, 30)]));
    }

    #[test]
    fn percentages_are_whole_and_between_0_and_100() {
        assert_eq!([-1.0, 0.4, 49.6, 1e9, f64::NAN].map(whole_percent), [0, 0, 50, 100, 0]);
    }
}
