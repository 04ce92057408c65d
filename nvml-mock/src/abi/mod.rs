//! The exported functions of NVML, by group. Each turns C's arguments into a call of `session` and writes the answer;
//! none decides anything. A panic never reaches the caller: it becomes `NVML_ERROR_UNKNOWN`.
//!
//! Only pointer.rs dereferences pointers. `exports!` makes the C function and enters its name in the group's list.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::code::{NvmlCode, Outcome};
use crate::session::Call;

mod layout;
mod pointer;

/// Runs the body of an exported function, and returns NVML's code.
fn guard(body: impl FnOnce() -> Outcome<()>) -> nvmlReturn_t {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(NvmlCode::UNKNOWN));
    outcome.err().unwrap_or(NvmlCode::SUCCESS).0
}

/// Runs the body of a function that needs an initialised library.
fn answer(function: &'static str, body: impl FnOnce(&Call) -> Outcome<()>) -> nvmlReturn_t {
    guard(|| body(&Call::for_function(function)?))
}

/// Defines exported functions: `fn nvmlX(argument: Type) call => { body }`, where the body returns `Outcome<()>`.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $call:ident => $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
                $crate::abi::answer(
                    stringify!($name),
                    |$call: &$crate::session::Call| -> $crate::code::Outcome<()> { $body },
                )
            }
        )*

        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

macro_rules! groups {
    ($($group:ident),* $(,)?) => {
        $(mod $group;)*

        /// Every function that the shared library exports, in alphabetical order.
        #[must_use]
        pub fn exported_functions() -> Vec<&'static str> {
            let mut names: Vec<&'static str> = [$($group::NAMES),*].concat();
            names.sort_unstable();
            names
        }
    };
}

groups! {
    init, system, device, memory, memory_limits, mode, mig_device, gpu_instance, compute_instance, process, telemetry,
    gpm, ecc, event, topology,
}
