//! `nvidia_smi_stand_in -i UUID -c DEFAULT|EXCLUSIVE_PROCESS` has the options of `nvidia-smi` that NVIDIA's
//! mps-control-daemon uses. It sets the GPU's compute mode through `libnvidia-ml.so.1`, as the real one does.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::process::ExitCode;

use anyhow::bail;
use kerf_core::names::GpuUuid;
use kerf_nvml::{ComputeMode, GpuBackend as _, NvmlBackend};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ["-i", gpu, "-c", mode] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        bail!("only -i UUID -c MODE is known here, not {arguments:?}");
    };
    let mode = match mode {
        "DEFAULT" => ComputeMode::Default,
        "EXCLUSIVE_PROCESS" => ComputeMode::ExclusiveProcess,
        other => bail!("the compute mode {other} is not known here"),
    };
    let mut gpus = NvmlBackend::open(OsStr::new("libnvidia-ml.so.1"))?;
    Ok(gpus.set_compute_mode(&GpuUuid::from(gpu), mode)?)
}
