//! The command-line flags of the extender.

use clap::{ArgAction, Parser};
use kerf_runtime::args::{AdminArgs, ClientArgs, LogArgs, NamespacedName};
use kerf_runtime::duration::timeout;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// kerf's scheduler extender: filters, ranks and binds pods to slices of GPUs.
#[derive(Debug, Clone, Parser)]
#[command(name = "kerf-extender", version = kerf_runtime::VERSION)]
pub struct ExtenderArgs {
    /// Address on which kube-scheduler is served, over mutual TLS. Port 0 takes a free one.
    #[arg(long, default_value = "[::]:9444")]
    pub address: SocketAddr,
    /// File into which the address is written once it is served.
    #[arg(long)]
    pub address_file: Option<PathBuf>,
    /// Secret with the server's certificate and kube-scheduler's client certificate; made if absent.
    #[arg(long, default_value = "kerf-system/kerf-extender-tls")]
    pub tls_secret: NamespacedName,
    /// DNS name or IP address by which kube-scheduler calls the extender. May be given several times.
    #[arg(long, default_value = "kerf-extender.kerf-system.svc")]
    pub tls_name: Vec<String>,
    /// Lease by which replicas elect their leader.
    #[arg(long, default_value = "kerf-system/kerf-extender")]
    pub lease: NamespacedName,
    /// This replica's name in the Lease. Default: the host's name, which is the pod's, and the process id.
    #[arg(long)]
    pub identity: Option<String>,
    /// This replica's pod, as namespace/name. While the replica leads, it labels the pod, and the Service selects pods
    /// with this label. Without this flag it labels none.
    #[arg(long)]
    pub pod: Option<NamespacedName>,
    /// How long the Lease stays valid when its leader vanishes.
    #[arg(long, default_value = "10s", value_parser = timeout)]
    pub lease_duration: Duration,
    /// How long a bind may wait for its slices; under the scheduler's httpTimeout. The reservation outlives it.
    #[arg(long, default_value = "4s", value_parser = timeout)]
    pub bind_timeout: Duration,
    /// How long a reservation stays after its pod's last bind, if the pod is not bound.
    #[arg(long, default_value = "60s", value_parser = timeout)]
    pub reservation_lifetime: Duration,
    /// How long a request may live in the API server after its sender has given it up: above kube-apiserver's
    /// --request-timeout (1m). For this time a new leader binds no pod to a static node, unless its predecessor ended
    /// in order.
    #[arg(long, default_value = "70s", value_parser = timeout)]
    pub request_lifetime: Duration,
    /// Policy file, or a folder of them, for quotas and for what nodes may cut. Changes are followed, except those of
    /// `packing`, which is read only at the start.
    #[arg(long)]
    pub policy: Option<PathBuf>,
    /// Features that need rights of their own.
    #[command(flatten)]
    pub rights: RightsArgs,
    /// How it configures NVIDIA's device plugin.
    #[command(flatten)]
    pub plugin: PluginArgs,
    /// The service for agents.
    #[command(flatten)]
    pub agents: AgentsArgs,
    /// How it logs.
    #[command(flatten)]
    pub log: LogArgs,
    /// How it finds the API server.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Health checks and metrics.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Features beyond placing pods. Each needs rights of its own. If a flag is given twice, the last one holds.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct RightsArgs {
    /// Whether movable pods are evicted to make room for bigger ones.
    #[arg(long, default_value_t = true, action = ArgAction::Set, overrides_with = "moves")]
    pub moves: bool,
    /// Deprecated and ignored: no pending pod is deleted any more. The next version removes the flag.
    #[arg(long, hide = true, action = ArgAction::Set, overrides_with = "recreate")]
    pub recreate: Option<bool>,
    /// Whether nodes that NVIDIA's device plugin serves get the layouts of policies with spec.plugin.
    #[arg(long, default_value_t = true, action = ArgAction::Set, overrides_with = "layouts")]
    pub layouts: bool,
}

/// The service for agents, which keep their node's ledger.
#[derive(Debug, Clone, clap::Args)]
pub struct AgentsArgs {
    /// Address on which nodes' agents are served, over TLS with the certificate of --tls-secret. Without it no agent is
    /// served. Port 0 takes a free one.
    #[arg(long)]
    pub agents_address: Option<SocketAddr>,
    /// File into which that address is written once it is served.
    #[arg(long)]
    pub agents_address_file: Option<PathBuf>,
    /// Service account of the agents. A connection with a token of any other is refused.
    #[arg(long, default_value = "kerf-system/kerf-node-agent")]
    pub agent_account: NamespacedName,
    /// Serve agents without TLS and tokens. For benchmarks: --agents-address must be of loopback.
    #[arg(long, hide = true)]
    pub agents_unauthenticated: bool,
}

/// The address is not of loopback, so agents may not be served there without tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "--agents-unauthenticated lets any process that reaches --agents-address {0} act as any node: give an address of loopback"
)]
pub struct Unprotected(SocketAddr);

impl AgentsArgs {
    /// Whether agents are served and authenticated by their tokens.
    #[must_use]
    pub fn are_reviewed(&self) -> bool {
        self.agents_address.is_some() && !self.agents_unauthenticated
    }

    /// Checks that a service without tokens is reachable from this machine only.
    pub fn check(&self) -> Result<(), Unprotected> {
        match self.agents_address {
            Some(address) if self.agents_unauthenticated && !address.ip().is_loopback() => {
                Err(Unprotected(address))
            }
            _ => Ok(()),
        }
    }
}

/// Where NVIDIA's device plugin takes its configuration from, on the nodes that it serves.
#[derive(Debug, Clone, clap::Args)]
pub struct PluginArgs {
    /// Namespace of NVIDIA's device plugin: GPU Operator's, or that of the plugin's chart.
    #[arg(long, default_value = "gpu-operator")]
    pub plugin_namespace: String,
    /// ConfigMap in that namespace, into which the policies' layouts are written. With the plugin's chart its value
    /// config.name is this.
    #[arg(long, default_value = "kerf-device-plugin")]
    pub plugin_config_map: String,
    /// How long the plugin has to show a layout before the node gets its former one again.
    #[arg(long, default_value = "3m", value_parser = timeout)]
    pub plugin_timeout: Duration,
    /// How long a kubelet may take to bring a changed ConfigMap to the plugin: its sync period (1m) and half of that.
    /// The extender labels nodes after this time. GPU Operator has the same time to react to a change.
    #[arg(long, default_value = "90s", value_parser = timeout)]
    pub plugin_config_delay: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_index::Limits;

    #[test]
    fn the_defaults_are_those_of_the_manifests() {
        let args = ExtenderArgs::parse_from(["kerf-extender"]);
        assert_eq!(args.bind_timeout, Duration::from_secs(4));
        assert_eq!(args.plugin.plugin_timeout, Duration::from_mins(3));
        let limits = Limits { reservation: args.reservation_lifetime, request: args.request_lifetime };
        assert_eq!(limits, Limits::default());
        assert_eq!(args.pod, None);
        assert_eq!(args.tls_secret.name, "kerf-extender-tls");
        assert_eq!(args.tls_name, ["kerf-extender.kerf-system.svc"]);
    }

    #[test]
    fn agents_without_tokens_are_served_only_on_loopback() {
        let of = |flags: &[&str]| ExtenderArgs::parse_from([&["kerf-extender"], flags].concat()).agents;
        let open = "--agents-unauthenticated";
        for address in ["127.0.0.1:9445", "127.9.9.9:0", "[::1]:9445"] {
            let agents = of(&[open, "--agents-address", address]);
            assert_eq!((agents.check(), agents.are_reviewed()), (Ok(()), false), "{address}");
        }
        for address in ["0.0.0.0:9445", "[::]:9445", "10.0.0.1:9445", "[::ffff:127.0.0.1]:9445"] {
            let agents = of(&["--agents-address", address]);
            assert_eq!((agents.check(), agents.are_reviewed()), (Ok(()), true), "{address}");
            let error = of(&[open, "--agents-address", address]).check().unwrap_err().to_string();
            assert!(error.contains(open) && error.contains(address), "{error}");
        }
        assert_eq!((of(&[open]).check(), of(&[]).are_reviewed()), (Ok(()), false));
    }

    #[test]
    fn the_last_value_of_a_repeated_right_holds() {
        let of = |flags: &[&str]| ExtenderArgs::parse_from([&["kerf-extender"], flags].concat()).rights;
        assert!(of(&[]).layouts && of(&[]).moves);
        assert!(of(&["--layouts=false", "--layouts=true"]).layouts);
        assert!(!of(&["--moves=false"]).moves);
    }

    #[test]
    fn the_flags_of_the_former_versions_manifests_are_accepted() {
        for flags in [&["--recreate=false"][..], &["--recreate=false", "--recreate=true"]] {
            let args = [&["kerf-extender"], flags].concat();
            assert!(ExtenderArgs::try_parse_from(args).is_ok(), "{flags:?}");
        }
    }
}
