//! `kerf policy`: checks and explains policy files with the webhook's own code, so that its answers are the webhook's.

mod argo;
mod cases;
mod check;
pub(crate) mod decide;
mod explain;
mod files;
pub(crate) mod manifest;
mod template;

use crate::convert;
use crate::output::ObjectFormat;
use clap::{Subcommand, ValueEnum};
use kerf_core::policy::schema;
use std::io::Write;

const SCHEMA: &str = "\
Examples:
  # For an editor
  kerf policy schema gpupolicy > gpupolicy.json";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say whether policy files, and folders of them, are good; exit with 1 if one is not. Files that are no policy
    /// files are skipped and named.
    Check(check::Args),
    /// Say which policy is for a pod, why those before it are not, and what the pod would get.
    Explain(explain::Args),
    /// Decide on the pods of folders and compare with what is expected of each; exit with 1 where it differs.
    ///
    /// A folder has files `*.yaml`, each with one pod, or with one object of any kind with pod templates. What is
    /// expected of it stands under `expect` in another document of the file, or in `<name>.expected.yaml`. A Namespace
    /// beside the pod gives its labels.
    Test(cases::Args),
    /// Print policies for nodes that say what another system's configuration says.
    Convert(convert::Args),
    /// Print the JSON schema of a kind of policy.
    #[command(after_help = SCHEMA)]
    Schema {
        /// The kind of policy file.
        #[arg(value_enum)]
        kind: DocumentKind,
        /// The form.
        #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ObjectFormat::Json)]
        output: ObjectFormat,
    },
}

/// A kind of policy document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DocumentKind {
    /// `GpuPolicy`, for pods.
    Gpupolicy,
    /// `GpuNodePolicy`, for nodes.
    Gpunodepolicy,
}

pub fn run(command: &Command, out: &mut impl Write) -> anyhow::Result<()> {
    match command {
        Command::Check(args) => check::run(args, out),
        Command::Explain(args) => explain::run(args, out),
        Command::Test(args) => cases::run(args, out),
        Command::Convert(args) => convert::run(args, out),
        Command::Schema { kind, output } => {
            let schema = match kind {
                DocumentKind::Gpupolicy => schema::gpu_policy(),
                DocumentKind::Gpunodepolicy => schema::gpu_node_policy(),
            };
            Ok(write!(out, "{}", output.render(&schema)?)?)
        }
    }
}
