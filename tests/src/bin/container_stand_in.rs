//! `container_stand_in <document>`: becomes the container's program that the document ([`ContainerRoot`], JSON) tells of, in
//! the file system that it tells of. `container_stand_in <document> <process> <command>...`: becomes the command in the file
//! system of that container, whose process it is told. A separate executable, because a process with threads cannot make namespaces for one.
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::process::ExitCode;

use anyhow::Context as _;
use kerf_tests::container_root::{ContainerRoot, become_container, run_beside};

/// Never returns success: that would mean the program was not become.
fn main() -> ExitCode {
    let Err(error) = become_program();
    // Into the container's log, in one line.
    eprintln!("container_stand_in: {error:#}");
    ExitCode::from(128)
}

fn become_program() -> anyhow::Result<Infallible> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let document = arguments.first().context("the first argument is missing: the container's document")?;
    let text = std::fs::read(document).with_context(|| format!("failed to read {document}"))?;
    let root: ContainerRoot =
        serde_json::from_slice(&text).with_context(|| format!("{document} is no container's document"))?;
    Err(match arguments.get(1) {
        None => become_container(&root).into(),
        Some(process) => {
            let process = process.parse().with_context(|| format!("{process} is no process id"))?;
            run_beside(process, &root, &arguments[2..]).into()
        }
    })
}
