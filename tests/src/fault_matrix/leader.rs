//! The extender's leader for one node: it writes GpuNode.spec by the real ledger's functions, makes pods and binds those
//! whose slices are ready. Where a slice goes is chosen by the matrix, not by packing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, Reservation, Shape, SliceState, WantedSlice};
use kerf_core::ledger;
use kerf_core::names::{GpuUuid, PodUid, SliceId};
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::sight::{FOR_NODE, SeenPods};

/// The only leader there ever is.
const EPOCH: u64 = 1;

/// A pod of the churn.
#[derive(Debug, Clone)]
pub(super) struct Tenant {
    pub(super) uid: PodUid,
    bound: bool,
    deleted: bool,
}

/// The leader.
pub(super) struct Leader {
    node: String,
    gpu_nodes: Api<GpuNode>,
    pods: Api<Pod>,
    pub(super) spec: GpuNodeSpec,
    written: GpuNodeSpec,
    tenants: BTreeMap<String, Tenant>,
    pods_made: u64,
    /// Slices that had holders when the leader looked last.
    held: BTreeSet<SliceId>,
    /// What the agent should not have said.
    pub(super) wrongs: Vec<String>,
    /// How many pods the kubelet refused.
    pub(super) refused: usize,
}

impl Leader {
    pub(super) fn of(client: &Client, node: &str) -> Self {
        Self {
            node: node.to_owned(),
            gpu_nodes: Api::all(client.clone()),
            pods: Api::default_namespaced(client.clone()),
            spec: GpuNodeSpec::default(),
            written: GpuNodeSpec::default(),
            tenants: BTreeMap::new(),
            pods_made: 0,
            held: BTreeSet::new(),
            wrongs: Vec::new(),
            refused: 0,
        }
    }

    /// Wants a slice that nobody is promised.
    pub(super) fn want(&mut self, gpu: &GpuUuid, shape: Shape) {
        self.push(gpu, shape, None);
    }

    fn push(&mut self, gpu: &GpuUuid, shape: Shape, reservation: Option<Reservation>) {
        self.spec.next_slice += 1;
        let id = SliceId::new(format!("s{}", self.spec.next_slice));
        self.spec.slices.push(WantedSlice { id, gpu: gpu.clone(), shape, reservation });
    }

    /// Makes a pod that gets such a slice. Gives its UID.
    pub(super) async fn rent(&mut self, gpu: &GpuUuid, shape: Shape, name: &str) -> anyhow::Result<PodUid> {
        let reservation = self.make_pod(name).await?;
        let uid = reservation.uid.clone();
        self.push(gpu, shape, Some(reservation));
        Ok(uid)
    }

    /// Makes a pod that gets an idle slice.
    pub(super) async fn rent_idle(&mut self, id: &SliceId, name: &str) -> anyhow::Result<()> {
        let reservation = self.make_pod(name).await?;
        let at = self.spec.slices.iter().position(|s| s.id == *id).context("the idle slice is gone")?;
        // Reserved last: the order of the list is the order of the promises.
        let slice = self.spec.slices.remove(at);
        self.spec.slices.push(WantedSlice { reservation: Some(reservation), ..slice });
        Ok(())
    }

    async fn make_pod(&mut self, resource: &str) -> anyhow::Result<Reservation> {
        self.pods_made += 1;
        let name = format!("{}-p{}", self.node, self.pods_made);
        let pod = json!({
            "metadata": {"name": name, "labels": {FOR_NODE: self.node}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "schedulerName": "nobody",
                "containers": [{"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}],
            },
        });
        let made = self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let uid = PodUid::new(made.metadata.uid.context("the pod has no UID")?);
        self.tenants.insert(name.clone(), Tenant { uid: uid.clone(), bound: false, deleted: false });
        Ok(Reservation {
            uid,
            namespace: "default".to_owned(),
            pod: name,
            container: "main".to_owned(),
            resource: resource.parse()?,
            alone: false,
            epoch: EPOCH,
        })
    }

    /// The pods that are not on their way out.
    pub(super) fn tenants(&self) -> impl Iterator<Item = &String> {
        self.tenants.iter().filter(|(_, tenant)| !tenant.deleted).map(|(name, _)| name)
    }

    /// Whether the pod is on its way out.
    pub(super) fn is_leaving(&self, name: &str) -> bool {
        self.tenants.get(name).is_some_and(|tenant| tenant.deleted)
    }

    /// The pod that a wanted slice is promised to.
    pub(super) fn tenant_of(slice: &WantedSlice) -> Option<&str> {
        slice.reservation.as_ref().map(|r| r.pod.as_str())
    }

    /// Deletes a pod; its slices are given back once it is gone.
    pub(super) async fn evict(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(tenant) = self.tenants.get_mut(name).filter(|tenant| !tenant.deleted) else { return Ok(()) };
        tenant.deleted = true;
        match self.pods.delete(name, &DeleteParams::default().grace_period(0)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }

    /// What the extender does whenever something has changed: binds, gives back, follows, drops, writes.
    pub(super) async fn upkeep(&mut self, status: &GpuNodeStatus, pods: &SeenPods) -> anyhow::Result<()> {
        self.take_back(pods).await?;
        self.drop_failed(status, pods).await?;
        let tenants = &self.tenants;
        let is_bound = |uid: &PodUid| tenants.values().any(|tenant| tenant.bound && tenant.uid == *uid);
        if let Some(next) = ledger::follow_holders(&self.spec, status, is_bound) {
            self.spec = next;
        }
        self.bind(status).await?;
        self.write().await
    }

    async fn take_back(&mut self, pods: &SeenPods) -> anyhow::Result<()> {
        for (name, tenant) in self.tenants.clone() {
            match pods.get(&name) {
                Some(pod) if pod.phase == "Failed" && !tenant.deleted => {
                    self.refused += 1;
                    self.evict(&name).await?;
                }
                None if tenant.deleted => {
                    self.tenants.remove(&name);
                    self.spec = ledger::release(&self.spec, &tenant.uid).unwrap_or_else(|| self.spec.clone());
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn drop_failed(&mut self, status: &GpuNodeStatus, pods: &SeenPods) -> anyhow::Result<()> {
        let failed = status.slices.iter().filter(|s| s.state == SliceState::Failed);
        for slice in failed {
            let mut wanted = self.spec.slices.iter().filter(|w| slice.id.as_ref() == Some(&w.id));
            let Some(wanted) = wanted.next() else { continue };
            let (text, pod) = (format!("{} ({})", wanted.id, wanted.shape), Self::tenant_of(wanted));
            if slice.message.as_ref().is_none_or(String::is_empty) {
                self.wrongs.push(format!("{text} has failed without a reason"));
            }
            if self.held.contains(&wanted.id) {
                let why = slice.message.clone().unwrap_or_default();
                self.wrongs.push(format!("{text} was held, and is said to have failed: {why}"));
            }
            // One that runs has got its slice in the last moment, and keeps it.
            let pod = pod.filter(|pod| pods.get(*pod).is_none_or(|pod| pod.phase != "Running"));
            if let Some(pod) = pod.map(str::to_owned) {
                self.evict(&pod).await?;
            }
        }
        let held = status.slices.iter().filter(|s| s.holder.is_some());
        self.held = held.filter_map(|s| s.id.clone()).collect();
        if let Some(next) = ledger::drop_failed(&self.spec, status) {
            self.spec = next;
        }
        Ok(())
    }

    async fn bind(&mut self, status: &GpuNodeStatus) -> anyhow::Result<()> {
        if !status.is_ready() {
            return Ok(());
        }
        let is_ready = |uid: &PodUid| status.slices.iter().any(|s| s.ready_for.as_ref() == Some(uid));
        for (name, tenant) in &mut self.tenants {
            if tenant.bound || tenant.deleted || !is_ready(&tenant.uid) {
                continue;
            }
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                "target": {"kind": "Node", "name": self.node},
            });
            let params = PostParams::default();
            let _: serde_json::Value =
                self.pods.create_subresource("binding", name, &params, &binding).await?;
            tenant.bound = true;
        }
        Ok(())
    }

    async fn write(&mut self) -> anyhow::Result<()> {
        if self.spec == self.written {
            return Ok(());
        }
        self.spec = ledger::successor(&self.written, self.spec.clone(), EPOCH);
        let patch = Patch::Merge(json!({"spec": self.spec}));
        self.gpu_nodes.patch(&self.node, &PatchParams::default(), &patch).await?;
        self.written = self.spec.clone();
        Ok(())
    }

    /// The pods that do not run yet or are not gone yet.
    pub(super) fn unsettled(&self, pods: &SeenPods) -> Vec<String> {
        let phase = |name: &String| pods.get(name).map_or("unseen", |pod| pod.phase.as_str()).to_owned();
        let open = self.tenants.iter().filter(|(name, tenant)| tenant.deleted || phase(name) != "Running");
        open.map(|(name, tenant)| {
            let going = if tenant.deleted { ", being deleted" } else { "" };
            format!("pod {name} is {}{going}", phase(name))
        })
        .collect()
    }
}
