//! `kerf version`: the versions of this program, of kerf's programs in the cluster, and of Kubernetes.

use crate::check::{Observed, Seen, list, versions};
use crate::columns::{Columns, or_dash};
use crate::connection::{Connection, KerfNamespace};
use crate::output::{self, Format, Report};
use clap::Args as ClapArgs;
use k8s_openapi::api::core::v1::Pod;
use kerf_runtime::VERSION;
use kube::Api;
use serde::Serialize;
use std::fmt::Write as _;
use versions::Running;

const EXAMPLES: &str = "\
Examples:
  # All versions
  kerf version

  # This program's
  kerf version --client

  # As programs read them
  kerf version -o json";

/// What is printed, and of which cluster.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only this program's version; no cluster is asked.
    #[arg(long)]
    client: bool,
    /// The form.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_default_value = true,
        value_parser = Format::parser(&[]))]
    output: Format,
    #[command(flatten)]
    kerf: KerfNamespace,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Serialize)]
struct Versions {
    client: Program,
    #[serde(skip_serializing_if = "Option::is_none")]
    kubernetes: Option<Program>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<Server>,
}

#[derive(Debug, Serialize)]
struct Program {
    version: String,
}

#[derive(Debug, Serialize)]
struct Server {
    namespace: String,
    programs: Vec<Running>,
    skew: Vec<Skew>,
}

#[derive(Debug, Serialize)]
struct Skew {
    what: String,
    remedy: String,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut versions =
        Versions { client: Program { version: VERSION.to_owned() }, kubernetes: None, server: None };
    // The error is kept, so that the versions that are known are printed before it.
    let asked = if args.client { Ok(()) } else { runtime.block_on(ask(args, &mut versions)) };
    output::print(&versions, args.output)?;
    for Skew { what, remedy } in versions.server.iter().flat_map(|server| &server.skew) {
        eprintln!("warning: {what}; {remedy}");
    }
    asked
}

async fn ask(args: &Args, versions: &mut Versions) -> anyhow::Result<()> {
    let connected = args.connection.connect().await?;
    versions.kubernetes = Some(Program { version: connected.version.clone() });
    let namespace = args.kerf.name.clone();
    let pods = list(&Api::<Pod>::namespaced(connected.client, &namespace)).await;
    if let Seen::Unknown(why) = &pods {
        anyhow::bail!("kerf's programs are not known: {why}");
    }
    let seen = Observed { version: connected.version, pods, ..Observed::default() };
    let skew = versions::judge(&seen).into_iter().filter_map(|finding| {
        let remedy = finding.remedy()?.to_owned();
        Some(Skew { what: finding.what, remedy })
    });
    versions.server = Some(Server { namespace, programs: versions::running(&seen), skew: skew.collect() });
    Ok(())
}

impl Report for Versions {
    fn text(&self, _format: Format) -> String {
        let mut text = format!("Client: {}\n", self.client.version);
        if let Some(kubernetes) = &self.kubernetes {
            let _infallible = writeln!(text, "Kubernetes: {}", kubernetes.version);
        }
        if let Some(Server { namespace, programs, .. }) = &self.server {
            let mut columns = Columns::new(["PROGRAM", "VERSION", "PODS"]);
            for Running { program, version, pods } in programs {
                columns.row([(*program).to_owned(), or_dash(version.as_ref()), pods.to_string()]);
            }
            let none =
                format!("kerf is not installed in {namespace}; --kerf-namespace names another namespace");
            text = text + "\n" + &columns.write(&none);
        }
        text
    }
}
