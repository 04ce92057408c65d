//! A static node: one whose GPUs NVIDIA's own programs serve, unchanged, on the simulated NVML and the stand-in kubelet.
//!
//! [`StaticNode`] plays what stands around them on a real node: the ConfigMap's volume, node feature discovery, the `DaemonSet`
//! that follows a label, and restarts. The programs are of k8s-device-plugin v0.19.3, started as its chart starts them
//! (`pod`), each in a container of its own (`root`; `container_root`), since the paths of the kubelet's sockets and of MPS
//! are compiled into them. That takes root or user namespaces, and nothing else of the machine.
//!
//! A program that ends ends the test with its log, unless the test said that it may.
//!
//! # What is seen from outside
//!
//! | what happens | plugin | allocatable | labels |
//! |---|---|---|---|
//! | another layout by label | reloads at once (SIGHUP) | right at the next status tick | follow with discovery's reload |
//! | a pod of NVIDIA's starts | on the **default** layout, then told of the node's | the default's for a moment | likewise |
//! | no key `default`, no default configured | does not start, with a label neither | stays | stay |
//! | a key that does not exist | runs on, until config-manager is started again and chooses the default | the default's | the default's |
//! | a layout changes under its key | is not told | stays | stay until discovery is told |
//! | a layout that it refuses | ends with code 1, again and again | 0; capacity stays five minutes | stay; discovery ends too if it cannot read the layout |
//! | instances that do not fit `single` | ends with code 1 | 0 | product `<model>-MIG-INVALID`, count, replicas and memory 0 |
//! | a good layout after those | takes it when it is started again, 10 s to 5 minutes later | right then | follow |
//! | MPS is chosen | waits 30 s for its daemon | 0 for half a minute | `mps.capable` at once, on which the daemon's pod waits |
//! | MPS on GPUs in MIG mode | | | stay; discovery ends with code 1 |
//! | a name that is offered no more | | the name stays with 0 | |
//! | `1g.10gb+me` | offers it as `mig-1g.10gb` (k8s-device-plugin#1807) | counts both | tell them apart |
//! | strategy `none` on GPUs in MIG mode | offers them whole | one each | `gpu.replicas` 0 |
//! | `MIG_STRATEGY` is set (GPU Operator sets it) | takes it, not the layout's | | likewise |
//!
//! A plugin that reloads can be left with 0 devices until it registers again: when the kubelet hears of the end of its old stream
//! after its new registration (k8s-device-plugin#1645). The stand-in kubelet has that rule too; it was not met here, since the
//! plugin takes longer to begin than its stream to end.

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

/// The node label that names a layout, NVIDIA's default for config-manager's `--node-label`.
pub const CONFIG_LABEL: &str = "nvidia.com/device-plugin.config";
