//! A stand-in kubelet: what the real one does with extended resources, in process, for tests without containers.
//!
//! It serves the device plugin registration and pod-resources sockets, admits the pods bound to its node by the real
//! rules and in the real order (device manager first, one pod at a time, final when it fails), gives them a status,
//! can run their commands as local processes, whose logs it serves, and writes device counts into the node's status at its
//! tick. It must not be kinder than the kubelet: where the real one has a trap, this one has it too.
//!
//! A pod of an image that the kubelet was told of (`images`) is a pod in full: its containers' file systems with their
//! volumes, variables, probes, an address. Out of scope: network and process namespaces, users, capabilities, cpu and
//! memory, node leases. Of any other pod also volumes, probes and variables that are not literal.
//!
//! [`DeviceManager`] with [`KubeletServers`] is the half that needs no API server.

mod active;
mod admission;
mod api;
mod checkpoint;
mod container;
mod demand;
mod devices;
mod downward;
mod expansion;
mod go_clients;
mod grant;
mod health;
mod images;
mod ledger;
mod lifecycle;
mod log_book;
mod log_server;
mod node;
mod node_resources;
mod observed;
mod options;
mod parts;
mod pick;
mod plugin;
mod pod_files;
mod pod_resources;
mod pods;
mod probes;
mod rate_limit;
mod registration;
mod servers;
mod stand_in;
mod status;
mod variables;
mod volumes;

pub use active::{ActivePod, ActivePods};
pub use admission::{Rejection, fit};
pub use demand::{ContainerDemand, ContainerRole, PodDemand, PodKey, is_extended_resource};
pub(crate) use devices::locked;
pub use devices::{Allocated, DeviceError, DeviceManager};
pub use grant::Grant;
pub use images::{Image, Images};
pub use ledger::{
    AllocationError, Choice, DeviceLedger, DeviceSets, DevicesByResource, LedgerCheckpoint, PodHoldings,
};
pub use log_server::LogServerError;
pub use node_resources::{ResourceCount, ResourceList, node_patch};
pub use observed::{FailedAdmission, Observed};
pub use options::{KubeletOptions, NodeTemplate, PODS_AFTER, PodProcesses, STATUS_PERIOD, VOLUMES_PERIOD};
pub use rate_limit::RateLimit;
pub use servers::{KubeletServers, SocketError, SocketPaths};
pub use stand_in::{KubeletError, StandInKubelet};
pub use volumes::{AtomicFolder, Payload};
