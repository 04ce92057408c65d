//! `container_stand_in <document>` becomes the program of the container that the document ([`ContainerRoot`],
//! JSON) describes, in that container's file system. `container_stand_in <document> <process> <command>...`
//! becomes the command in the file system of that container, whose process id it gets. It is a separate
//! executable, because a process with several threads cannot create these namespaces.
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::process::ExitCode;

use anyhow::Context as _;
use kerf_tests::container_root::{ContainerRoot, become_container, run_beside};

/// Never returns success, because success means that another program has replaced this one.
fn main() -> ExitCode {
    let Err(error) = become_program();
    // One line, because a backtrace would push out the lines that matter in the container's log.
    eprintln!("container_stand_in: {error:#}");
    // The kubelet reports 128 as ContainerCannotRun.
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
