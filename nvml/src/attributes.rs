//! Reads the attributes of MIG devices by `nvmlDeviceGetAttributes_v2`. Only labels use them, so a driver that does not
//! report them is no error.

use kerf_core::gfd_labels::Attributes;
use kerf_core::names::DeviceId;
use kerf_core::units::MemoryMib;
use nvml_wrapper::Device;

pub(crate) fn read(handle: &Device<'_>, device: &DeviceId) -> Option<Attributes> {
    let read = handle.attributes();
    if let Err(error) = &read {
        tracing::debug!(%device, %error, "nvmlDeviceGetAttributes_v2 failed");
    }
    let read = read.ok()?;
    Some(Attributes {
        memory: MemoryMib(read.memory_size_mb),
        multiprocessors: read.multiprocessor_count,
        gpu_slices: read.gpu_instance_slice_count,
        compute_slices: read.compute_instance_slice_count,
        copy: read.shared_copy_engine_count,
        decoder: read.shared_decoder_count,
        encoder: read.shared_encoder_count,
        jpeg: read.shared_jpeg_count,
        ofa: read.shared_ofa_count,
    })
}
