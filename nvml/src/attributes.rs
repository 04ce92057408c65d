//! What MIG devices have, as `nvmlDeviceGetAttributes_v2` tells it. For labels alone: no decision waits for it.

use crate::GpuInstance;
use kerf_core::gfd_labels::Attributes;
use kerf_core::names::DeviceId;
use kerf_core::units::MemoryMib;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;

/// Those of the devices of these GPU instances, but for devices of which the driver does not tell.
pub(crate) fn of_devices(nvml: &Nvml, instances: &[GpuInstance]) -> BTreeMap<DeviceId, Attributes> {
    let devices = instances.iter().flat_map(GpuInstance::devices).map(|(.., device)| device);
    let told = devices.filter_map(|device| match of_device(nvml, device) {
        Ok(attributes) => Some((device.clone(), attributes)),
        Err(error) => {
            tracing::debug!(%device, %error, "nvmlDeviceGetAttributes_v2 failed");
            None
        }
    });
    told.collect()
}

fn of_device(nvml: &Nvml, device: &DeviceId) -> Result<Attributes, NvmlError> {
    let told = nvml.device_by_uuid(device.as_str())?.attributes()?;
    Ok(Attributes {
        memory: MemoryMib(told.memory_size_mb),
        multiprocessors: told.multiprocessor_count,
        gpu_slices: told.gpu_instance_slice_count,
        compute_slices: told.compute_instance_slice_count,
        copy: told.shared_copy_engine_count,
        decoder: told.shared_decoder_count,
        encoder: told.shared_encoder_count,
        jpeg: told.shared_jpeg_count,
        ofa: told.shared_ofa_count,
    })
}
