//! `kerf explain POD`: why a pod is where it is, or why it waits, by what kerf's programs and the scheduler have recorded. It
//! guesses nothing. What each node has for a pod that waits is recorded by the scheduler in numbers only, so it is decided anew,
//! which is said.

mod account;
mod again;
mod records;

use crate::check::connect;
use anyhow::bail;
use clap::Args as ClapArgs;
use kerf_runtime::args::ContextArgs;
use records::Records;
use std::io::Write;
use std::path::PathBuf;

/// Which pod, and where its records are.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The pod: `NAME`, `pod NAME` or `pod/NAME`.
    #[arg(num_args = 1..=2, value_names = ["KIND", "NAME"], required_unless_present = "file", conflicts_with = "file")]
    what: Vec<String>,
    /// The pod's namespace; without it the kubeconfig's, or `default`.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Read the records from a file and not from the API server: the Pod, and where it has them its Events and `GpuNodes`, as
    /// `kubectl get -o yaml` writes them.
    #[arg(short, long)]
    file: Option<PathBuf>,
    #[command(flatten)]
    client: ContextArgs,
}

/// Prints the account.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let records = if let Some(file) = &args.file {
        Records::read(file)?
    } else {
        let name = pod_name(&args.what)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = connect::reach(&args.client).await?;
            let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
            Records::fetch(client, &namespace, name).await
        })?
    };
    std::io::stdout().lock().write_all(account::account(&records).as_bytes())?;
    Ok(())
}

/// The pod that is meant.
fn pod_name(what: &[String]) -> anyhow::Result<&str> {
    let (kind, name) = match what {
        [name] => name.split_once('/').unwrap_or(("pod", name)),
        [kind, name] => (kind.as_str(), name.as_str()),
        _ => bail!("write the name of a pod, or -f FILE"),
    };
    match kind {
        "pod" | "pods" | "po" if !name.is_empty() => Ok(name),
        "pod" | "pods" | "po" => bail!("write the name of a pod"),
        _ => bail!("kind {kind}: only pods can be explained; write the name of a pod"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_as_kubectl_takes_it() {
        let name = |what: &[&str]| {
            let what: Vec<String> = what.iter().map(|word| (*word).to_owned()).collect();
            pod_name(&what).map(str::to_owned).map_err(|error| error.to_string())
        };
        for what in [&["web"][..], &["pod", "web"], &["po", "web"], &["pods/web"]] {
            assert_eq!(name(what), Ok("web".to_owned()), "{what:?}");
        }
        for what in [&["deploy/web"][..], &["node", "web"]] {
            assert!(name(what).is_err_and(|error| error.contains("only pods can be explained")), "{what:?}");
        }
        assert!(name(&["pod/"]).is_err());
    }
}
