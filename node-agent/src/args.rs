//! The agent's flags, with their defaults and environment variables.

use crate::access::{Extras, HookPlaces, ImexChannel};
use crate::api_server::ClientArgs;
use crate::kubelet_api::DEVICE_PLUGIN_DIR;
use crate::node::XidList;
use clap::Parser;
use clap::builder::BoolishValueParser;
use kerf_core::names::NodeName;
use kerf_runtime::args::{AdminArgs, LogArgs};
use kerf_runtime::duration::positive;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What the agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Action {
    /// Serves the node.
    Serve,
    /// Leaves the node for good.
    Leave,
}

/// Cuts a node's GPUs into the slices that the extender orders, and hands them to the kubelet.
#[derive(Debug, Clone, Parser)]
#[command(name = "kerf-node-agent", version = kerf_runtime::VERSION)]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub struct Args {
    /// `serve`, or `leave`: undo what the agent has set on the node, keep held slices, and end. For an uninstall, once
    /// the agent itself is gone.
    #[arg(value_enum, default_value = "serve")]
    pub action: Action,
    /// The node's name.
    #[arg(long, env = "NODE_NAME", value_parser = |name: &str| Ok::<_, std::convert::Infallible>(NodeName::new(name)))]
    pub node: NodeName,
    /// Where the extender's replicas listen to agents, as `HOST:PORT`; may be given several times. Each address of a host is a replica.
    /// Required for `serve`.
    #[arg(
        long,
        value_name = "HOST:PORT",
        required_unless_present = "action",
        required_if_eq("action", "serve")
    )]
    pub extender: Vec<String>,
    /// The extender's namespace. Its replicas' certificates have the name `kerf-extender.<namespace>.svc`, and are by the authority of
    /// the ConfigMap `kerf-extender-ca` there.
    #[arg(long, default_value = "kerf-system")]
    pub extender_namespace: String,
    /// The file of the token (audience `kerf-extender`) by which the extender authenticates the agent.
    #[arg(long, default_value = "/var/run/secrets/kerf-extender/token")]
    pub extender_token: PathBuf,
    /// How long a request may live in the API server after its sender has given it up: above kube-apiserver's --request-timeout (1m), and
    /// the same as the extender's. So long, and 10 s more, a pod whose Binding got no answer keeps its slices.
    #[arg(long, default_value = "70s", value_parser = positive)]
    pub request_lifetime: Duration,
    /// How often the GpuNode's status is written at most, but for its conditions: seconds with `s`, or `ms`, or `m`.
    #[arg(long, default_value = "5s", value_parser = positive)]
    pub status_interval: Duration,
    /// NVML: a path, or a name that is searched in `--driver-root`, and by the loader if that folder lacks it.
    #[arg(long, default_value = "libnvidia-ml.so.1")]
    pub nvml: OsString,
    /// The kubelet's root folder (`--root-dir`), with `pod-resources/` in it.
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// The folder of the device plugins' sockets. It is the same for every kubelet, whatever its root folder is.
    #[arg(long, default_value = DEVICE_PLUGIN_DIR)]
    pub device_plugin_dir: PathBuf,
    /// How often everything is read again, even without a notification: seconds with `s`, or `ms`, or `m`.
    #[arg(long, default_value = "30s", value_parser = positive)]
    pub resync: Duration,
    /// The agent's own folder, where it records what the node has.
    #[arg(long, default_value = "/var/lib/kerf")]
    pub state_dir: PathBuf,
    /// The folder of CDI specifications; empty for none.
    #[arg(long, default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// The host's `/dev`, as the agent sees it.
    #[arg(long, default_value = "/dev")]
    pub dev_dir: PathBuf,
    /// The root of the file system in which the driver is installed, as the agent sees it.
    #[arg(long, default_value = "/")]
    pub driver_root: PathBuf,
    /// Where that root is on the host.
    #[arg(long, default_value = "/")]
    pub host_driver_root: PathBuf,
    /// The program of the CDI hook that adds the driver's libraries to a container's library cache. It is copied to
    /// `<state-dir>/bin`, from where the container runtime starts it on the host; empty for no hook.
    #[arg(long, default_value = "/usr/bin/kerf-cdi-hook")]
    pub cdi_hook: PathBuf,
    /// Give containers with a GPU `/dev/gdrdrv`, for GDRCopy, where the node has it.
    #[arg(long, env = "GDRCOPY_ENABLED", value_parser = BoolishValueParser::new())]
    pub gdrcopy_enabled: bool,
    /// Give containers with a GPU `/dev/nvidia-fs*`, for GPUDirect Storage, where the node has it, with `/etc/cufile.json` and
    /// `/run/udev`.
    #[arg(long, env = "GDS_ENABLED", value_parser = BoolishValueParser::new())]
    pub gds_enabled: bool,
    /// Give containers with a GPU `/dev/infiniband`, for RDMA, where the node has it.
    #[arg(long, env = "MOFED_ENABLED", value_parser = BoolishValueParser::new())]
    pub mofed_enabled: bool,
    /// Give containers with a GPU this IMEX channel where the node has it. As with NVIDIA's device plugin, 0 is the only one.
    #[arg(long, env = "IMEX_CHANNEL_IDS", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(..1))]
    pub imex_channel_ids: Vec<u16>,
    /// Offer no device while the node lacks an IMEX channel of `--imex-channel-ids`.
    #[arg(long, env = "IMEX_REQUIRED", value_parser = BoolishValueParser::new())]
    pub imex_required: bool,
    /// Neither check nor create device files: for simulated GPUs.
    #[arg(long)]
    pub no_device_access: bool,
    /// The folder of the MPS daemons, the same on the host.
    #[arg(long, default_value = "/run/kerf/mps")]
    pub mps_dir: PathBuf,
    /// `nvidia-cuda-mps-control`: a path, or a name that is looked up in `PATH`.
    #[arg(long, default_value = "nvidia-cuda-mps-control")]
    pub mps_control: PathBuf,
    /// The cgroup (v2) that MPS daemons are put into, so that they outlive the agent's container.
    #[arg(long)]
    pub mps_cgroup: Option<PathBuf>,
    /// MPS daemons share the agent's `/dev/shm` instead of having one each: where no mount namespace can be made.
    #[arg(long)]
    pub mps_shared_shm: bool,
    /// `nvidia-smi`, which sets the length of time slices where policy asks for it.
    #[arg(long, default_value = "nvidia-smi")]
    pub nvidia_smi: PathBuf,
    /// Do not change NVIDIA's labels (`nvidia.com/gpu.product` and the like), which the agent otherwise sets as GPU feature
    /// discovery would. On nodes where NFD sets them the agent never changes them.
    #[arg(long)]
    pub no_gfd_labels: bool,
    /// Never pause GPU Operator's DCGM, dcgm-exporter, GPU feature discovery and NVSM by the Node's labels, also where they hold a GPU
    /// that is to be cut or whose MIG mode is to be switched.
    #[arg(long)]
    pub no_pause_dcgm: bool,
    /// The host's `/proc`.
    #[arg(long, default_value = "/proc")]
    pub proc_dir: PathBuf,
    /// The host's `/sys`, by which the agent distinguishes loads of the driver and locates each GPU in the machine.
    #[arg(long, default_value = "/sys")]
    pub sys_dir: PathBuf,
    /// The host's cgroup hierarchy (v2), as the agent sees it.
    #[arg(long, default_value = "/sys/fs/cgroup")]
    pub cgroup_dir: PathBuf,
    /// How long a call to NVML may take before its GPU counts as unresponsive, or the node as unserved if the call concerns all
    /// GPUs. A GPU that has answered before has at most 10 s, but for a switch of its MIG mode.
    #[arg(long, default_value = "30s", value_parser = positive)]
    pub call_timeout: Duration,
    /// How long a GPU must have been quiet after an error before it is used again.
    #[arg(long, default_value = "5m", value_parser = positive)]
    pub recover_after: Duration,
    /// XIDs that do not make a GPU unhealthy, with commas between them, or `all`: what `DP_DISABLE_HEALTHCHECKS` means to NVIDIA's
    /// device plugin. Those of applications (13, 31, 43, 45, 68, 109) and those that only report (63, 92, 94) never do.
    #[arg(long, env = "DP_DISABLE_HEALTHCHECKS", default_value = "")]
    pub disable_healthchecks: XidList,
    /// XIDs that make a GPU unhealthy in any case, with commas between them, or `all`: what `DP_ENABLE_HEALTHCHECKS` means to NVIDIA's
    /// device plugin.
    #[arg(long, env = "DP_ENABLE_HEALTHCHECKS", default_value = "")]
    pub enable_healthchecks: XidList,
    /// How long the sockets of NVIDIA's device plugin must have been gone before this node's GPUs are given out: they go for
    /// seconds when the kubelet restarts, and for longer when the plugin's pod is replaced.
    #[arg(long, default_value = "1m", value_parser = positive)]
    pub uncontested_after: Duration,
    /// How long an agent that leaves keeps the kubelet from writing kerf's names into the node's status again: it remembers a
    /// plugin for five minutes.
    #[arg(long, default_value = "6m", value_parser = positive)]
    pub settle: Duration,
    /// How it logs.
    #[command(flatten)]
    pub log: LogArgs,
    /// How it finds the API server.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Where it answers an operator.
    #[command(flatten)]
    pub admin: AdminArgs,
}

impl Args {
    #[must_use]
    pub fn extras(&self) -> Extras {
        let imex = match (self.imex_channel_ids.is_empty(), self.imex_required) {
            (true, _) => ImexChannel::Off,
            (false, false) => ImexChannel::IfPresent,
            (false, true) => ImexChannel::Required,
        };
        Extras { gdrcopy: self.gdrcopy_enabled, gds: self.gds_enabled, mofed: self.mofed_enabled, imex }
    }

    /// The CDI hook's program and its folder on the host; `None` if `--cdi-hook` is empty.
    #[must_use]
    pub fn hook(&self) -> Option<HookPlaces> {
        let program = Some(&self.cdi_hook).filter(|program| !program.as_os_str().is_empty())?.clone();
        Some(HookPlaces { program, folder: self.state_dir.join("bin") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_node_and_the_extender_are_required() {
        let args = Args::try_parse_from(["kerf-node-agent", "--node", "n1", "--extender=e:9445"]).unwrap();
        assert_eq!(args.node.as_str(), "n1");
        assert_eq!(args.action, Action::Serve);
        let leave = Args::try_parse_from(["kerf-node-agent", "leave", "--node", "n1"]).unwrap();
        assert_eq!(leave.action, Action::Leave);
        for serve in [&["--node", "n1"][..], &["serve", "--node", "n1"]] {
            let error = Args::try_parse_from([&["kerf-node-agent"], serve].concat()).unwrap_err();
            assert!(error.to_string().contains("--extender <HOST:PORT>"), "{error}");
        }
        assert_eq!(args.kubelet_dir.join("pod-resources"), PathBuf::from("/var/lib/kubelet/pod-resources"));
    }

    #[test]
    fn a_wrong_list_of_xids_is_an_error_that_names_its_flag() {
        let args = |list| {
            Args::try_parse_from([
                "kerf-node-agent",
                "--node=n1",
                "--extender=e:1",
                "--disable-healthchecks",
                list,
            ])
        };
        assert_eq!(args("").unwrap().disable_healthchecks, XidList::default());
        let error = args("48;79").unwrap_err().to_string();
        assert!(error.contains("--disable-healthchecks") && error.contains("write numbers"), "{error}");
    }

    #[test]
    fn flags_for_extras_have_the_names_of_nvidias_plugin() {
        let extras = |flags: &[&str]| {
            let args =
                Args::try_parse_from([&["kerf-node-agent", "--node=n1", "--extender=e:1"], flags].concat());
            args.map(|args| args.extras()).map_err(|error| error.to_string())
        };
        assert_eq!(extras(&[]), Ok(Extras::default()));
        let all = [
            "--gdrcopy-enabled",
            "--gds-enabled",
            "--mofed-enabled",
            "--imex-channel-ids=0",
            "--imex-required",
        ];
        let wanted = Extras { gdrcopy: true, gds: true, mofed: true, imex: ImexChannel::Required };
        assert_eq!(extras(&all), Ok(wanted));
        assert_eq!(extras(&all[3..4]).unwrap().imex, ImexChannel::IfPresent);
        let refused = extras(&["--imex-channel-ids=1"]).unwrap_err();
        assert!(refused.contains("--imex-channel-ids"), "{refused}");
    }

    #[test]
    fn the_folder_of_plugin_sockets_does_not_follow_the_kubelets_root() {
        let given =
            ["kerf-node-agent", "--node=n1", "--extender=e:1", "--kubelet-dir", "/var/lib/k0s/kubelet"];
        let args = Args::try_parse_from(given).unwrap();
        assert_eq!(args.device_plugin_dir, PathBuf::from(DEVICE_PLUGIN_DIR));
    }
}
