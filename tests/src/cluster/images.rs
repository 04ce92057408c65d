//! The images that kerf's manifests name, made of programs that were built here.

use anyhow::Context as _;
use kerf_nvml_mock::MockFiles;

use crate::binaries;
use crate::kubelet::{Image, Images};
use crate::mps::MpsStandIn;

/// Paths of the simulated NVML and its files in containers that see GPUs.
const LIBRARIES: &str = "/opt/image/lib";
const NVML_FILES: &str = "/opt/image/nvml";

/// The images of kerf, of kube-scheduler, and one that ends by itself. The agent's image sees the node's
/// simulated GPUs and has stand-ins for the driver's programs, which NVIDIA's container runtime would add.
pub fn kerf_images(gpus: &MockFiles) -> anyhow::Result<Images> {
    let mut images = Images::default();
    let webhook = Image::running(binaries::ours("kerf-webhook")?);
    images.add("kerf-webhook", webhook.with_wildcards(&["--address=[::]:9443", "--admin-address=[::]:9090"]));
    let extender = Image::running(binaries::ours("kerf-extender")?);
    images
        .add("kerf-extender", extender.with_wildcards(&["--address=[::]:9444", "--admin-address=[::]:9090"]));
    let agent = Image::running(binaries::ours("kerf-node-agent")?)
        // Simulated GPUs have no device files.
        .with_arguments(&["--no-device-access"])
        .with_wildcards(&["--admin-address=[::]:9090"])
        .with_program("nvidia-cuda-mps-control", MpsStandIn::program()?);
    images.add("kerf-node-agent", with_gpus(agent, gpus)?);
    images.add("kerf-cli", Image::running(binaries::ours("kerf")?));
    let scheduler = Image::running(binaries::tool("kube-scheduler")?);
    images.add("kube-scheduler", scheduler.with_wildcards(&["--bind-address=0.0.0.0"]));
    // NVIDIA's sample computes for a moment and ends, so `true` replaces it.
    images.add("cuda-sample", Image::running("/bin/true"));
    Ok(images)
}

/// Adds the simulated GPUs of these files to an image, under the name by which programs load NVML.
pub fn with_gpus(image: Image, gpus: &MockFiles) -> anyhow::Result<Image> {
    let library =
        kerf_nvml_mock::library_path().context("the simulated NVML is not built: cargo build --workspace")?;
    let folder = gpus.config.parent().context("the files of the simulated NVML have no folder")?;
    let mut image = image
        .with_file(library, &format!("{LIBRARIES}/libnvidia-ml.so.1"))
        .with_file(folder, NVML_FILES)
        .with_variable("LD_LIBRARY_PATH", LIBRARIES);
    for (name, value) in MockFiles::in_folder(NVML_FILES).env() {
        image = image.with_variable(name, value.display().to_string());
    }
    Ok(image)
}
