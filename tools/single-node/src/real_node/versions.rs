//! The versions of a node's programs, as they print them.

use std::path::Path;
use std::process::Command;

use kerf_tests::binaries;

/// Program and version, one per line. A program that fails is listed with that.
#[must_use]
pub fn versions() -> Vec<String> {
    let mut versions: Vec<String> = ["containerd", "runc", "kubelet"]
        .map(|name| match binaries::node_tool(name) {
            Ok(program) => said(&program, &["--version"]).unwrap_or_else(|| format!("{name}: no answer")),
            Err(error) => error.to_string(),
        })
        .into();
    versions.push(said(Path::new("uname"), &["-sr"]).unwrap_or_default());
    let query = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"];
    let gpus = said(Path::new("nvidia-smi"), &query);
    versions.push(gpus.map_or("no nvidia-smi".to_owned(), |gpus| format!("GPUs: {gpus}")));
    versions
}

/// A program's output with its lines joined; `None` if it fails.
fn said(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|o| o.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.lines().map(str::trim).collect::<Vec<_>>().join("; "))
}
