//! What programs print as their version.

/// The workspace's version. Builds for images and releases set `KERF_VERSION`, in which the commit is told too; others do not,
/// so that a commit compiles nothing anew.
pub const VERSION: &str = match option_env!("KERF_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
