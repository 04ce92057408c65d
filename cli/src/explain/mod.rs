//! `kerf explain POD`: why a pod is on its node, or why it is pending, from what kerf's programs and the scheduler have
//! recorded. It guesses nothing. The scheduler records its nodes' answers as numbers only, so kerf computes what each
//! node offers anew and says so.

mod account;
mod records;

use crate::connection::{Connection, candidates};
use crate::input::InputError;
use crate::output::{self, Format};
use account::Accounts;
use clap::Args as ClapArgs;
use clap_complete::ArgValueCandidates;
use records::{Records, Wanted};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  # A pod of the current namespace
  kerf explain trainer

  # Pods of another one, as programs read them
  kerf explain -n team pod/a pod/b -o json

  # All pods with a label, wherever they are
  kerf explain -A -l app=detector

  # What somebody else has recorded
  kubectl get pods,events,gpunodes,nodes -o yaml > records.yaml
  kerf explain -f records.yaml";

/// Which pods, and where their records are.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The pods: `NAME`, `pod/NAME`, or `pod NAME`.
    #[arg(
        value_name = "POD",
        required_unless_present_any = ["filename", "selector", "all_namespaces"],
        conflicts_with_all = ["filename", "selector", "all_namespaces"],
        add = ArgValueCandidates::new(candidates::pods)
    )]
    what: Vec<String>,
    /// The pods' namespace. The default is the context's.
    #[arg(short, long, add = ArgValueCandidates::new(candidates::namespaces))]
    namespace: Option<String>,
    /// Pods of all namespaces; without labels those that kerf has admitted.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Pods with these labels, like `app=a,tier!=test`.
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Read the records from a file and not from the API server, `-` for standard input: Pods, and where it has them
    /// their Events, `GpuNodes` and Nodes, as `kubectl get -o yaml` writes them.
    #[arg(short, long, alias = "file", value_name = "FILE", conflicts_with_all = ["namespace", "selector", "all_namespaces"])]
    filename: Option<PathBuf>,
    /// The form.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_default_value = true,
        value_parser = Format::parser(&[]))]
    output: Format,
    #[command(flatten)]
    connection: Connection,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let records = if let Some(file) = &args.filename {
        Records::read(file)?
    } else {
        let names = names(&args.what)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = args.connection.client().await?;
            let here = || args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
            let wanted = if names.is_empty() {
                let namespace = (!args.all_namespaces).then(here);
                Wanted::Selected { namespace, selector: args.selector.clone() }
            } else {
                Wanted::Named { namespace: here(), names }
            };
            Records::fetch(client, wanted).await
        })?
    };
    output::print(&Accounts::new(&records), args.output)
}

fn names(what: &[String]) -> Result<Vec<String>, InputError> {
    let is_pod = |kind: &str| matches!(kind, "pod" | "pods" | "po");
    let words = match what {
        [kind, names @ ..] if is_pod(kind) && !names.is_empty() => names,
        names => names,
    };
    let name = |word: &String| match word.split_once('/').unwrap_or(("pod", word)) {
        (kind, name) if is_pod(kind) && !name.is_empty() => Ok(name.to_owned()),
        (kind, _) if is_pod(kind) => Err(InputError::Bad("write the name of a pod".to_owned())),
        (kind, _) => {
            Err(InputError::Bad(format!("kind {kind}: only pods can be explained; write the name of a pod")))
        }
    };
    words.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_named_as_for_kubectl() {
        let named = |what: &[&str]| {
            let what: Vec<String> = what.iter().map(|word| (*word).to_owned()).collect();
            names(&what).map_err(|error| error.to_string())
        };
        for what in [&["web"][..], &["pod", "web"], &["po", "web"], &["pods/web"]] {
            assert_eq!(named(what), Ok(vec!["web".to_owned()]), "{what:?}");
        }
        assert_eq!(named(&["pod/a", "b"]), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert!(named(&["deploy/web"]).is_err_and(|error| error.contains("only pods can be explained")));
        assert!(named(&["pod/"]).is_err());
    }
}
