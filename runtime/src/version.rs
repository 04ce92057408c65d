//! The version that programs print.

/// The version of the workspace. Builds for images and releases set `KERF_VERSION`, which also has the commit. Other
/// builds do not, so that a commit does not recompile everything.
pub const VERSION: &str = match option_env!("KERF_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
