//! Calls that work before the library is initialised: init, shutdown, error texts.

use std::ffi::{c_char, c_uint};

use super::{answer, guard};
use crate::code::NvmlCode;
use crate::session;

/// Defines functions that need no initialised library, and lists their names.
macro_rules! before_init {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty { $body:expr })*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> $result {
                $body
            }
        )*

        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

before_init! {
    fn nvmlInit() -> c_uint { guard(|| session::init("nvmlInit")) }
    fn nvmlInit_v2() -> c_uint { guard(|| session::init("nvmlInit_v2")) }
    fn nvmlInitWithFlags(_flags: c_uint) -> c_uint { guard(|| session::init("nvmlInitWithFlags")) }
    fn nvmlShutdown() -> c_uint { answer("nvmlShutdown", session::shutdown) }
    fn nvmlErrorString(code: c_uint) -> *const c_char { NvmlCode(code).text().as_ptr() }
}
