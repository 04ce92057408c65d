//! `cargo xtask images`: writes container images of kerf's programs as OCI archives, without a container engine.
//!
//! [`catalog`] is the single table of the images, [`build`] builds the programs, [`content`] lists an image's files,
//! [`sbom`] their origin, and [`archive`] writes them. The same input gives the same bytes.
#![forbid(unsafe_code)]

mod archive;
mod build;
mod catalog;
mod content;
mod crates;
mod layer;
mod linkage;
mod release;
mod sbom;
mod system;
mod tree;
mod write;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let Err(error) = write::Args::parse().run() else { return ExitCode::SUCCESS };
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
