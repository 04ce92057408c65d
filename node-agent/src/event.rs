//! What the agent's loop hears.

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

/// What happens.
#[derive(Debug)]
pub enum Event {
    /// The epoch of the leader that is connected, if one is.
    Leader(Option<u64>),
    /// A leader's order, and where its answer goes.
    Order(Order, oneshot::Sender<Answer>),
    /// What the look-up of a pod has found that was asked for at this time.
    LookedUp(PodUid, Instant, Found),
    /// The policy in the GpuNode.
    Policy(Result<NodePolicy, String>),
    /// The first GpuNode that was seen.
    Predecessor(Box<Predecessor>),
    /// The kubelet's account of holders.
    Holders(Result<Holders, String>),
    /// What the kubelet may hand out.
    Allocatable(Allocatable),
    /// A container is being given devices.
    Allocated(ResourceName, Vec<DeviceId>),
    /// A pod of this node is gone or finished.
    PodLeft(PodKey, PodUid),
    /// A pod of this node was deleted while its containers may have run.
    PodCutOff(PodKey, PodUid),
    /// The pods of this node that ask for kerf's names.
    Pods(NodePods),
    /// A pod of this node that the kubelet did not take on for want of devices.
    Rejected(PodKey, PodUid),
    /// Names are registered, or why not: by the number of their server.
    Registered(usize, Result<(), String>),
    /// What the MPS daemons do.
    Daemons(Daemons),
    /// The clients of a GPU's MPS server have lost their work, and how.
    ServerLost(GpuUuid, String),
    /// The limits that are on the memory of pods.
    Limits(Limits),
    /// Which devices can be opened, and how.
    Reachable(BTreeMap<DeviceId, Result<AccessGrant, String>>),
    /// An error of a GPU's.
    Trouble(GpuEvent),
    /// Who else manages the node's GPUs.
    Others(Vec<String>),
    /// The driver's upgrade, and how that is known; `None` once it is over.
    Upgrade(Option<String>),
    /// The labels of programs that GPU Operator deploys on the node and that hold GPU instances.
    Deployed(BTreeSet<String>),
    /// Those that may still have to be put back, and the number of the pause that was carried out.
    Paused(BTreeSet<String>, u64),
}

/// Where events are sent.
#[derive(Debug, Clone)]
pub struct Events(mpsc::UnboundedSender<Event>);

impl Events {
    /// The two ends. Unbounded: every sender waits for an answer of its own before it has more to say.
    #[must_use]
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Sends. Once the loop has ended nobody listens, and that is no matter.
    pub fn send(&self, event: Event) {
        drop(self.0.send(event));
    }
}
