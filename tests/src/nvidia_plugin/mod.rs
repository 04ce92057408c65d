//! A static node: NVIDIA's own programs serve its GPUs, unchanged, on the simulated NVML and the stand-in
//! kubelet.
//!
//! [`StaticNode`] replaces their surroundings on a real node: the ConfigMap's volume, node feature discovery,
//! the `DaemonSet` that follows a label, and restarts. The programs are those of k8s-device-plugin v0.19.3,
//! started as its chart starts them (`pod`). Each runs in its own container (`root`; `container_root`),
//! because the paths of the kubelet's sockets and of MPS are compiled into them. That takes root or user
//! namespaces, but no other privilege.
//!
//! If a program ends, the test fails with its log, unless the test has allowed that.
//!
//! # Observed behaviour
//!
//! | event | plugin | allocatable | labels |
//! |---|---|---|---|
//! | another layout by label | reloads at once (SIGHUP) | correct at the next status tick | follow with discovery's reload |
//! | a pod of NVIDIA's starts | on the **default** layout, then gets the node's; seldom on the node's at once (config-manager reads the label before its first sync or after it) | the default's for a moment | likewise |
//! | no key `default`, no default configured | does not start, even with a label | stays | stay |
//! | a missing key | runs on, until config-manager restarts and chooses the default | the default's | the default's |
//! | a layout changes under its key | gets no signal | stays | stay until discovery gets a signal |
//! | a layout that it rejects | exits with code 1, repeatedly | 0; capacity stays 5 min | stay; discovery exits too if it cannot parse it |
//! | instances that do not fit `single` | exits with code 1 | 0 | product `<model>-MIG-INVALID`, count, replicas and memory 0 |
//! | a valid layout after those | applies it at its restart, 10 s to 5 minutes later | correct then | follow |
//! | MPS is chosen | waits 30 s for its daemon | 0 for half a minute | `mps.capable` at once, which starts the daemon's pod |
//! | MPS on GPUs in MIG mode | | | stay; discovery exits with code 1 |
//! | a name that is no longer offered | | the name stays with 0 | |
//! | `1g.10gb+me` | offers it as `mig-1g.10gb` (k8s-device-plugin#1807) | counts both | distinguish them |
//! | strategy `none` on GPUs in MIG mode | offers them whole | one each | `gpu.replicas` 0 |
//! | `MIG_STRATEGY` is set (GPU Operator sets it) | uses it instead of the layout's | | likewise |
//!
//! A plugin that reloads can stay at 0 devices until it registers again, if the kubelet sees the end of its
//! old stream after its new registration (k8s-device-plugin#1645). The stand-in kubelet has that rule too. It
//! did not occur here, because the plugin takes longer to start than its stream to end.

mod account;
mod caretaker;
mod container;
mod layouts;
mod node;
mod pod;
mod root;
mod spec;

pub use container::Exit;
pub use node::StaticNode;
pub use pod::NvidiaPod;
pub use spec::StaticNodeSpec;

/// The node label that names a layout: NVIDIA's default for config-manager's `--node-label`.
pub const CONFIG_LABEL: &str = "nvidia.com/device-plugin.config";

/// The label that the chart's `DaemonSet` of the MPS daemon selects.
pub const MPS_CAPABLE_LABEL: &str = "nvidia.com/mps.capable";
