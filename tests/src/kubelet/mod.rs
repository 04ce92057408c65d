//! A stand-in kubelet: it handles extended resources as the real one does, in process, for tests without
//! containers.
//!
//! It serves the device plugin registration and pod-resources sockets. It admits the pods bound to its node
//! by the real rules and in the real order: device manager first, one pod at a time, and a failure is final.
//! It writes their status, can run their commands as local processes and serve their logs, and writes device
//! counts into the node's status at each tick. It must not be kinder than the kubelet: it has the real one's
//! traps too.
//!
//! A pod with a known image (`images`) is emulated in full: its containers' file systems with their volumes,
//! variables, probes, an address. Out of scope are network and process namespaces, users, capabilities, cpu
//! and memory, and node leases. For any other pod, volumes, probes and variables that are not literal are out
//! of scope too.
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
pub use devices::locked;
pub use devices::{Allocated, DeviceError, DeviceManager};
pub use grant::Grant;
pub use images::{Image, Images};
pub use ledger::{
    AllocationError, Choice, DeviceLedger, DeviceSets, DevicesByResource, LedgerCheckpoint, PodHoldings,
};
pub use log_server::LogServerError;
pub use node_resources::{ResourceCount, ResourceList, node_patch};
pub use observed::{FailedAdmission, Observed};
pub use options::{KubeletOptions, NodeTemplate, PodProcesses, STATUS_INTERVAL, VOLUMES_INTERVAL};
pub use rate_limit::RateLimit;
pub use servers::{KubeletServers, SocketError, SocketPaths};
pub use stand_in::{KubeletError, StandInKubelet};
pub use volumes::{AtomicFolder, Payload};
