//! The extender's leader for one node. It creates pods, reserves slices for them in the agent's ledger, and
//! binds pods whose slices are ready. The matrix chooses the places of slices, not packing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{GpuNodeStatus, NodePolicy, Shape, SliceState, WantedSlice};
use kerf_core::ledger::{Answer, OrderKind, Owner, Proposal, Rejection};
use kerf_core::names::{GpuUuid, PodKey, PodUid, SliceId};
use kerf_core::packing::{Placed, Source};
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

use super::sight::{FOR_NODE, SeenPods};
use crate::cluster::unscheduled_pod;
use crate::stand_in_leader::StandInLeader;

/// The attempt number of a pod's only Binding.
const ATTEMPT: u64 = 1;

/// A pod of the churn.
struct Tenant {
    uid: PodUid,
    place: Placed,
    stage: Stage,
    /// Whether the pod shall be deleted. That happens once it is bound or has lost its place, because the
    /// agent learns of the end of an unbound pod only by a look-up.
    leaving: bool,
    deleted: bool,
}

/// The progress of a pod.
enum Stage {
    /// The order to reserve its place is open.
    Reserving(Asked),
    Reserved,
    /// The order to mark the coming Binding is open.
    Marking(Asked),
    Bound,
    /// Its place was rejected or withdrawn.
    Lost,
}

/// An order without an answer yet. The agent may be down or hang.
type Asked = JoinHandle<anyhow::Result<Answer>>;

pub(super) struct Leader {
    node: String,
    agent: Arc<StandInLeader>,
    gpu_nodes: Api<GpuNode>,
    pods: Api<Pod>,
    /// The node's desired policy; `written` is the one that was written last.
    pub(super) policy: NodePolicy,
    written: NodePolicy,
    tenants: BTreeMap<String, Tenant>,
    pods_made: u64,
    /// Slices that had holders when failures were last judged.
    held: BTreeSet<SliceId>,
    /// Wrong reports of the agent.
    pub(super) wrongs: Vec<String>,
    /// How many pods the kubelet rejected.
    pub(super) refused: usize,
}

impl Leader {
    pub(super) fn new(client: &Client, node: &str, agent: Arc<StandInLeader>, policy: NodePolicy) -> Self {
        Self {
            node: node.to_owned(),
            agent,
            gpu_nodes: Api::all(client.clone()),
            pods: Api::default_namespaced(client.clone()),
            policy,
            written: NodePolicy::default(),
            tenants: BTreeMap::new(),
            pods_made: 0,
            held: BTreeSet::new(),
            wrongs: Vec::new(),
            refused: 0,
        }
    }

    /// The status that the agent reported over its stream.
    pub(super) fn status(&self) -> GpuNodeStatus {
        self.agent.state().status
    }

    /// The slices of the agent's ledger.
    pub(super) fn desired(&self) -> Vec<WantedSlice> {
        self.agent.state().desired().slices
    }

    /// The shapes on a GPU that are reserved, or whose reservation is under way.
    pub(super) fn reserved_on(&self, gpu: &str) -> Vec<Shape> {
        let desired = self.desired();
        let asked = self.tenants.values().filter(|tenant| matches!(tenant.stage, Stage::Reserving(_)));
        let asked =
            asked.filter(|tenant| reserved(&desired, &tenant.uid).is_none()).map(|tenant| &tenant.place);
        let asked = asked.filter(|place| place.gpu.as_str() == gpu).map(|place| place.shape);
        let reserved = desired.iter().filter(|s| s.gpu.as_str() == gpu && s.reservation.is_some());
        reserved.map(|slice| slice.shape).chain(asked).collect()
    }

    /// Slices without a holder, a reservation, or an open order for one.
    pub(super) fn idle(&self) -> Vec<WantedSlice> {
        let (status, mut idle) = (self.status(), self.desired());
        let asked = self.tenants.values().filter(|tenant| matches!(tenant.stage, Stage::Reserving(_)));
        let asked: BTreeSet<&SliceId> = asked.flat_map(|tenant| ids(&tenant.place.source)).collect();
        let is_held = |id: &SliceId| status.slice(id).is_some_and(|slice| slice.holder.is_some());
        idle.retain(|s| s.reservation.is_none() && !is_held(&s.id) && !asked.contains(&s.id));
        idle
    }

    /// Creates a pod with this slice: an idle one, or a new one in place of idle ones.
    pub(super) async fn rent(
        &mut self,
        gpu: &GpuUuid,
        shape: Shape,
        name: &str,
        source: Source,
    ) -> anyhow::Result<()> {
        let (key, uid) = self.make_pod(name).await?;
        let (container, resource) = ("main".to_owned(), name.parse()?);
        let place = Placed { container, resource, alone: false, gpu: gpu.clone(), shape, source };
        let stage = Stage::Reserving(self.reserve(&uid, &key, &place));
        let tenant = Tenant { uid, place, stage, leaving: false, deleted: false };
        self.tenants.insert(key.name, tenant);
        Ok(())
    }

    fn reserve(&self, uid: &PodUid, key: &PodKey, place: &Placed) -> Asked {
        let owner = Owner { uid: uid.clone(), key: key.clone() };
        self.order(OrderKind::Reserve(Proposal { owner, places: vec![place.clone()] }))
    }

    fn order(&self, order: OrderKind) -> Asked {
        let agent = Arc::clone(&self.agent);
        tokio::spawn(async move { agent.order(order).await })
    }

    async fn make_pod(&mut self, resource: &str) -> anyhow::Result<(PodKey, PodUid)> {
        self.pods_made += 1;
        let name = format!("{}-p{}", self.node, self.pods_made);
        let mut pod = unscheduled_pod(&name, resource);
        pod.metadata.labels = Some([(FOR_NODE.to_owned(), self.node.clone())].into());
        let made = self.pods.create(&PostParams::default(), &pod).await?;
        let uid = PodUid::new(made.metadata.uid.context("the pod has no UID")?);
        Ok((PodKey::new("default", name), uid))
    }

    /// The pods that are not to be deleted.
    pub(super) fn tenants(&self) -> impl Iterator<Item = &String> {
        self.tenants.iter().filter(|(_, tenant)| !tenant.leaving).map(|(name, _)| name)
    }

    /// The pods with a place on this GPU, including those that are being deleted.
    pub(super) fn tenants_of(&self, gpu: &GpuUuid) -> Vec<String> {
        let desired = self.desired();
        let is_here = |tenant: &Tenant| {
            let reserved = reserved(&desired, &tenant.uid);
            reserved.map_or(&tenant.place.gpu, |slice| &slice.gpu) == gpu
        };
        let here = self.tenants.iter().filter(|(_, tenant)| is_here(tenant));
        here.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn is_leaving(&self, name: &str) -> bool {
        self.tenants.get(name).is_some_and(|tenant| tenant.leaving)
    }

    /// The pod that a slice is reserved for.
    pub(super) fn tenant_of(slice: &WantedSlice) -> Option<&str> {
        slice.reservation.as_ref().map(|r| r.pod.as_str())
    }

    /// Marks a pod for deletion, which happens as soon as it may.
    pub(super) fn evict(&mut self, name: &str) {
        if let Some(tenant) = self.tenants.get_mut(name) {
            tenant.leaving = true;
        }
    }

    /// One round of the extender's work: policy, orders, Bindings and deletions.
    pub(super) async fn upkeep(&mut self, pods: &SeenPods) -> anyhow::Result<()> {
        self.write_policy().await?;
        self.judge_failures();
        let desired = self.desired();
        let mut tenants = std::mem::take(&mut self.tenants);
        for (name, tenant) in &mut tenants {
            self.lead(name, tenant, &desired).await?;
            match pods.get(name) {
                Some(pod) if pod.phase == "Failed" && !tenant.leaving => {
                    self.refused += 1;
                    tenant.leaving = true;
                }
                _ => {}
            }
            if tenant.leaving && !tenant.deleted && matches!(tenant.stage, Stage::Bound | Stage::Lost) {
                self.delete(name).await?;
                tenant.deleted = true;
            }
        }
        tenants.retain(|name, tenant| !tenant.deleted || pods.contains_key(name));
        self.tenants = tenants;
        Ok(())
    }

    /// A pod's next step towards its Binding.
    async fn lead(&self, name: &str, tenant: &mut Tenant, desired: &[WantedSlice]) -> anyhow::Result<()> {
        let uid = &tenant.uid;
        match &mut tenant.stage {
            Stage::Reserving(asked) if asked.is_finished() => {
                tenant.stage = match asked.await? {
                    Ok(Ok(_)) => Stage::Reserved,
                    Ok(Err(Rejection::Taken(_))) => Stage::Lost,
                    // The agent is starting, its disk fails, or it is down for long; so the order is
                    // repeated.
                    Ok(Err(_)) | Err(_) => {
                        Stage::Reserving(self.reserve(uid, &PodKey::new("default", name), &tenant.place))
                    }
                };
            }
            Stage::Reserved if self.is_ready(uid) => {
                let mark = OrderKind::Mark { uid: uid.clone(), attempt: ATTEMPT };
                tenant.stage = Stage::Marking(self.order(mark));
            }
            // The slice could not be created, so the agent dropped the reservation.
            Stage::Reserved if reserved(desired, uid).is_none() => {
                tenant.stage = Stage::Lost;
            }
            Stage::Marking(asked) if asked.is_finished() => {
                tenant.stage = match asked.await? {
                    Ok(Ok(_)) => {
                        self.bind(name).await?;
                        let uid = uid.clone();
                        // The answer does not matter, because the agent watches pods itself.
                        drop(self.order(OrderKind::Outcome { uid, attempt: ATTEMPT, bound: true }));
                        Stage::Bound
                    }
                    Ok(Err(Rejection::UnknownReservation)) => Stage::Lost,
                    Ok(Err(_)) | Err(_) => Stage::Reserved,
                };
            }
            _ => {}
        }
        tenant.leaving |= matches!(tenant.stage, Stage::Lost);
        Ok(())
    }

    fn is_ready(&self, uid: &PodUid) -> bool {
        self.status().slices.iter().any(|slice| slice.ready_for.as_ref() == Some(uid))
    }

    async fn bind(&self, name: &str) -> anyhow::Result<()> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"kind": "Node", "name": self.node},
        });
        let params = PostParams::default();
        let _: serde_json::Value = self.pods.create_subresource("binding", name, &params, &binding).await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> anyhow::Result<()> {
        match self.pods.delete(name, &DeleteParams::default().grace_period(0)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }

    /// Checks that failed slices have a reason, and that none of them was held.
    fn judge_failures(&mut self) {
        let status = self.status();
        for slice in status.slices.iter().filter(|slice| slice.state == SliceState::Failed) {
            let Some(id) = &slice.id else { continue };
            let text = format!("{id} ({})", slice.shape);
            if slice.message.as_ref().is_none_or(String::is_empty) {
                self.wrongs.push(format!("{text} has failed without a reason"));
            }
            if self.held.contains(id) {
                let why = slice.message.clone().unwrap_or_default();
                self.wrongs.push(format!("{text} was held, and is said to have failed: {why}"));
            }
        }
        let held = status.slices.into_iter().filter(|slice| slice.holder.is_some());
        self.held = held.filter_map(|slice| slice.id).collect();
    }

    async fn write_policy(&mut self) -> anyhow::Result<()> {
        if self.policy != self.written {
            let patch = Patch::Merge(json!({"spec": {"policy": self.policy}}));
            self.gpu_nodes.patch(&self.node, &PatchParams::default(), &patch).await?;
            self.written = self.policy.clone();
        }
        Ok(())
    }

    /// The pods that do not run yet, are not deleted yet, or have lost their reservation.
    pub(super) fn unsettled(&self, pods: &SeenPods) -> Vec<String> {
        let desired = self.desired();
        let phase = |name: &String| pods.get(name).map_or("unseen", |pod| pod.phase.as_str()).to_owned();
        let open = self.tenants.iter().filter(|(name, tenant)| {
            tenant.leaving || phase(name) != "Running" || reserved(&desired, &tenant.uid).is_none()
        });
        open.map(|(name, tenant)| {
            let going = if tenant.leaving { ", on its way out" } else { "" };
            let lost = if reserved(&desired, &tenant.uid).is_none() { ", without a reservation" } else { "" };
            format!("pod {name} is {}{going}{lost}", phase(name))
        })
        .collect()
    }

    /// Whether a failed slice is kept for a pending pod. That is right if the agent restarted after the
    /// reservation, because it cannot determine whether the pod's Binding was sent.
    pub(super) fn is_kept_in_doubt(&self) -> bool {
        let failed = self.status().slices.into_iter().filter(|slice| slice.state == SliceState::Failed);
        failed.filter_map(|slice| slice.reservation).any(|reservation| reservation.binding)
    }
}

fn reserved<'d>(desired: &'d [WantedSlice], uid: &PodUid) -> Option<&'d WantedSlice> {
    desired.iter().find(|slice| slice.reservation.as_ref().is_some_and(|r| r.uid == *uid))
}

/// The idle slices that a place uses or replaces.
fn ids(source: &Source) -> &[SliceId] {
    match source {
        Source::Idle(id) => std::slice::from_ref(id),
        Source::Cut(replaced) => replaced,
    }
}
