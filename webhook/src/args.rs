//! The program's flags.

use clap::Parser;
use kerf_runtime::args::{AdminArgs, ClientArgs, LogArgs, NamespacedName};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Turns requests for GPU memory into resources, at admission.
#[derive(Debug, Clone, Parser)]
#[command(name = "kerf-webhook", version)]
pub struct Args {
    /// Address of the admission webhook, in HTTPS. Port 0 takes a free one.
    #[arg(long, default_value = "0.0.0.0:9443")]
    pub address: SocketAddr,
    /// A file that is written with the address once connections are accepted.
    #[arg(long)]
    pub address_file: Option<PathBuf>,
    /// The policy file. It is read again when it changes; the last good content stays in force.
    #[arg(long)]
    pub policy: PathBuf,
    /// The `MutatingWebhookConfiguration` whose caBundle is set.
    #[arg(long, default_value = "kerf")]
    pub configuration: String,
    /// The Secret that the certificates are kept in, as namespace/name. It is made if it is not there.
    #[arg(long, default_value = "kerf-system/kerf-webhook-tls")]
    pub tls_secret: NamespacedName,
    /// A DNS name or IP address that the API server calls the webhook by. Repeatable.
    #[arg(long = "tls-name", value_name = "NAME", default_value = "kerf-webhook.kerf-system.svc")]
    pub tls_names: Vec<String>,
    /// Logs.
    #[command(flatten)]
    pub log: LogArgs,
    /// The API server.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Probes and metrics.
    #[command(flatten)]
    pub admin: AdminArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_the_only_flag_that_must_be_given() {
        let args = Args::try_parse_from(["kerf-webhook", "--policy", "policy.yaml"]).unwrap();
        let secret = NamespacedName { namespace: "kerf-system".into(), name: "kerf-webhook-tls".into() };
        assert_eq!((args.tls_secret, args.configuration.as_str()), (secret, "kerf"));
        assert_eq!(args.tls_names, ["kerf-webhook.kerf-system.svc"]);
        assert!(Args::try_parse_from(["kerf-webhook"]).is_err());
    }

    #[test]
    fn names_that_are_given_replace_the_default() {
        let flags = ["kerf-webhook", "--policy", "p", "--tls-name", "localhost", "--tls-name", "127.0.0.1"];
        assert_eq!(Args::try_parse_from(flags).unwrap().tls_names, ["localhost", "127.0.0.1"]);
    }

    #[test]
    fn a_secret_is_named_with_its_namespace() {
        for text in ["tls", "/tls", "kerf-system/", "a/b/c"] {
            let flags = ["kerf-webhook", "--policy", "p", "--tls-secret", text];
            let error = Args::try_parse_from(flags).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?} is no name in a namespace")), "{error}");
        }
    }
}
