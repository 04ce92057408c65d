//! Calls about the driver's versions and the names of processes.

use std::ffi::{c_int, c_uint};

use super::pointer::{Out, TextOut};
use crate::code::{NvmlCode, Outcome};
use crate::session::Call;

fn cuda_version(call: &Call, version: Out<c_int>) -> Outcome<()> {
    version.put(call.view(None, |view| Ok(view.state.cuda_version))?)
}

exports! {
    fn nvmlSystemGetDriverVersion(version: TextOut, length: c_uint) call => {
        let text = call.view(None, |view| Ok(view.state.driver_version.clone()))?;
        version.put(length, &text)
    }

    // The library's version is the CUDA major version and the driver's (13.580.159.04 on an H200).
    fn nvmlSystemGetNVMLVersion(version: TextOut, length: c_uint) call => {
        let text = call.view(None, |view| {
            Ok(format!("{}.{}", view.state.cuda_version / 1000, view.state.driver_version))
        })?;
        version.put(length, &text)
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) call => { cuda_version(call, version) }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) call => { cuda_version(call, version) }

    fn nvmlSystemGetProcessName(pid: c_uint, name: TextOut, length: c_uint) call => {
        call.view(None, |_| Ok(()))?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NvmlCode::NOT_FOUND)?;
        let program = command.split(|&byte| byte == 0).next().unwrap_or_default();
        name.put(length, &String::from_utf8_lossy(program))
    }
}
