//! The events that the agent's loop handles.

use crate::access::AccessGrant;
use crate::gpu::GpuEvent;
use crate::gpu::limits::Limits;
use crate::node::{Allocatable, Daemons, Holders, NodePods, Predecessor};
use kerf_core::contract::NodePolicy;
use kerf_core::ledger::{Answer, Found, Order};
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid};
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

#[derive(Debug)]
pub enum Event {
    /// The epoch of the connected leader; `None` if no leader is connected.
    Leader(Option<u64>),
    /// A leader's order, and the channel for its answer.
    Order(Order, oneshot::Sender<Answer>),
    /// The result of a pod look-up that was requested at this time.
    LookedUp(PodUid, Instant, Found),
    /// The policy in the node's GpuNode, or why it cannot be read.
    Policy(Result<NodePolicy, String>),
    /// What the first GpuNode that was seen says of an earlier agent.
    Predecessor(Box<Predecessor>),
    /// Holders of devices, as the kubelet lists them.
    Holders(Result<Holders, String>),
    /// Devices that the kubelet may allocate.
    Allocatable(Allocatable),
    /// The kubelet is allocating these devices to a container.
    Allocated(ResourceName, Vec<DeviceId>),
    PodLeft(PodKey, PodUid),
    /// A pod of this node was deleted while its containers may still run.
    PodCutOff(PodKey, PodUid),
    /// The pods of this node that request names of kerf.
    Pods(NodePods),
    /// The kubelet rejected a pod of this node because it had no device for it.
    Rejected(PodKey, PodUid),
    /// Whether a server, identified by its number, has registered its names.
    Registered(usize, Result<(), String>),
    Daemons(Daemons),
    /// The clients of a GPU's MPS server lost their work; the text says how.
    ServerLost(GpuUuid, String),
    /// Memory limits that are set on pods' cgroups.
    Limits(Limits),
    /// Which devices can be opened, and how; otherwise why not.
    Reachable(BTreeMap<DeviceId, Result<AccessGrant, String>>),
    Trouble(GpuEvent),
    /// Conflicting managers of the node's GPUs, as texts.
    Conflicting(Vec<String>),
    /// A driver upgrade and the evidence for it; `None` once it is over.
    Upgrade(Option<String>),
    /// Labels of the GPU Operator's programs on the node that hold GPU instances.
    Deployed(BTreeSet<String>),
    /// Labels that may still have to be restored, and the number of the pause that was carried out.
    Paused(BTreeSet<String>, u64),
}

#[derive(Debug, Clone)]
pub struct Events(mpsc::UnboundedSender<Event>);

impl Events {
    /// Creates the channel. It is unbounded, because every sender waits for its own answer before it sends more.
    #[must_use]
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Sends an event; once the loop has ended it is dropped, because nothing needs it any more.
    pub fn send(&self, event: Event) {
        drop(self.0.send(event));
    }
}
