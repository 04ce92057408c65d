//! `kerf explain pod NAME`: why a pod is where it is, or why it waits, by what kerf's programs and the scheduler have
//! recorded. It decides nothing and guesses nothing.

mod account;
mod records;

use anyhow::bail;
use clap::Args as ClapArgs;
use kerf_runtime::args::ClientArgs;
use records::Records;
use std::io::Write;
use std::path::PathBuf;

/// Which pod, and where its records are.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// `pod NAME`.
    #[arg(num_args = 2, value_names = ["KIND", "NAME"], required_unless_present = "file", conflicts_with = "file")]
    what: Vec<String>,
    /// The pod's namespace.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Read the records from a file and not from the API server: the Pod, and where it has them its Events and `GpuNodes`, as
    /// `kubectl get -o yaml` writes them.
    #[arg(short, long)]
    file: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
}

/// Prints the account.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let records = match (&args.file, args.what.as_slice()) {
        (Some(file), _) => Records::read(file)?,
        (None, [kind, name]) if matches!(kind.as_str(), "pod" | "pods" | "po") => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(Records::fetch(&args.client, &args.namespace, name))?
        }
        (None, [kind, _]) => bail!("kind {kind}: only pods can be explained; write pod NAME"),
        (None, _) => bail!("write pod NAME, or -f FILE"),
    };
    std::io::stdout().lock().write_all(account::account(&records).as_bytes())?;
    Ok(())
}
