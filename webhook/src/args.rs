//! The command-line flags of the webhook.

use clap::{Parser, ValueEnum};
use jiff::SignedDuration;
use kerf_runtime::args::{AdminArgs, ClientArgs, LogArgs, NamespacedName};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Turns requests for GPU memory into resources, at admission.
#[derive(Debug, Clone, Parser)]
#[command(name = "kerf-webhook", version = kerf_runtime::VERSION)]
pub struct Args {
    /// Address of the admission webhook, in HTTPS. Port 0 takes a free one.
    #[arg(long, default_value = "[::]:9443")]
    pub address: SocketAddr,
    /// A file that is written with the address once connections are accepted.
    #[arg(long)]
    pub address_file: Option<PathBuf>,
    /// The policy file. It is read again when it changes; the last good content stays in force.
    #[arg(long)]
    pub policy: PathBuf,
    /// Certificates.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Whether the webhook keeps the match conditions of its `MutatingWebhookConfiguration` (--configuration) as the
    /// policies in force need them.
    #[arg(long, value_enum, default_value_t)]
    pub match_conditions: MatchConditions,
    /// Whether a pod that several kinds of slice may serve gets a neutral name, `kerf.dev/gpu-<N>gb`, for which the
    /// extender chooses the kind.
    #[arg(long, value_enum, default_value_t)]
    pub neutral_names: NeutralNames,

    /// How long the webhook goes on serving after SIGTERM while it is not ready, for clients that have not noticed yet.
    #[arg(long, default_value = "5s")]
    pub grace: SignedDuration,
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

/// Who updates the match conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum MatchConditions {
    /// The webhook: it widens them at once, and narrows them when they have been wider than needed for two minutes.
    #[default]
    Auto,
    /// The owner of the configuration, such as a controller that puts manifests back.
    Off,
}

/// Whether pods get neutral names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum NeutralNames {
    /// Once an agent has reported that its kubelet has registered them, or while there is no agent.
    #[default]
    Auto,
    /// Never: the first kind of the policy's order is chosen when the pod is created. For clusters whose own scheduler
    /// does not send such pods to the extender yet.
    Off,
}

/// Where the certificate comes from.
#[derive(Debug, Clone, clap::Args)]
pub struct TlsArgs {
    /// A folder with `tls.crt`, `tls.key` and `ca.crt` that another keeps in order, for example a mounted Secret of
    /// cert-manager's. No certificate is made then, and the caBundle is left to who keeps the folder.
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// The `MutatingWebhookConfiguration` whose caBundle is set.
    #[arg(long, default_value = "kerf")]
    pub configuration: String,
    /// The Secret that the certificates are kept in, as namespace/name. It is made if it is not there.
    #[arg(long, default_value = "kerf-system/kerf-webhook-tls")]
    pub tls_secret: NamespacedName,
    /// A DNS name or IP address that the API server calls the webhook by. Repeatable.
    #[arg(long = "tls-name", value_name = "NAME", default_value = "kerf-webhook.kerf-system.svc")]
    pub tls_names: Vec<String>,
    /// How long a certificate lives. It is renewed after two thirds of it.
    #[arg(long, value_name = "AGE", default_value = "24h")]
    pub tls_leaf_age: SignedDuration,
    /// How long an authority lives, three times a certificate's life or more. It is replaced after two thirds of it,
    /// and trusted to its end. 90 days.
    #[arg(long, value_name = "AGE", default_value = "2160h")]
    pub tls_ca_age: SignedDuration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_the_only_flag_that_must_be_given() {
        let args = Args::try_parse_from(["kerf-webhook", "--policy", "policy.yaml"]).unwrap();
        let secret = NamespacedName { namespace: "kerf-system".into(), name: "kerf-webhook-tls".into() };
        assert_eq!((args.tls.tls_secret, args.tls.configuration.as_str()), (secret, "kerf"));
        assert_eq!(args.tls.tls_names, ["kerf-webhook.kerf-system.svc"]);
        assert!(Args::try_parse_from(["kerf-webhook"]).is_err());
    }

    #[test]
    fn ages_have_a_unit_and_fit_each_other() {
        let flags = ["kerf-webhook", "--policy", "p"];
        let args = Args::try_parse_from(flags).unwrap();
        assert!(kerf_runtime::tls::Lifetimes::new(args.tls.tls_leaf_age, args.tls.tls_ca_age).is_ok());
        assert_eq!(args.grace, SignedDuration::from_secs(5));
        let with = |age| Args::try_parse_from(flags.into_iter().chain(["--tls-leaf-age", age]));
        assert_eq!(with("90m").unwrap().tls.tls_leaf_age, SignedDuration::from_mins(90));
        assert!(with("24").is_err());
    }

    #[test]
    fn names_that_are_given_replace_the_default() {
        let flags = ["kerf-webhook", "--policy", "p", "--tls-name", "localhost", "--tls-name", "127.0.0.1"];
        assert_eq!(Args::try_parse_from(flags).unwrap().tls.tls_names, ["localhost", "127.0.0.1"]);
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
