//! A pod as the extender reads it: its identity, its node, whether it has ended, and what it asks for. Nothing else of
//! a Pod is read or kept.

use crate::destinations::Destinations;
use crate::objects::ask::Ask;
use crate::objects::compute::Compute;
use crate::objects::metadata;
use crate::objects::template::Template;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kerf_core::contract::{AssignedSlice, AssignmentDocument};
use kerf_core::keys;
use kerf_core::kind::KindLabel;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Refusal;
use kerf_core::quota::Charge;
use kerf_core::request::{
    AffinityView, NodeSelection, PodFacts, PodRequests, RequestingContainer, Role, SelectingFields,
};
use kerf_core::static_node::requested_devices;
use kerf_runtime::plugin_pod::{PluginPodStatus, has_slices};
use kube::Resource;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The parts of a Pod that a watch reads.
#[derive(Debug, Clone, Default, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub struct SlicedPod {
    #[serde(default, deserialize_with = "metadata::read")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Option<PodSpecView>,
    #[serde(default)]
    pub status: Option<PluginPodStatus>,
}

/// The parts of a Pod's spec that are read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpecView {
    /// The node that the pod is bound to.
    #[serde(default)]
    pub node_name: Option<String>,
    #[serde(default)]
    pub priority_class_name: Option<String>,
    #[serde(default)]
    pub service_account_name: Option<String>,
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    #[serde(default)]
    pub affinity: Option<AffinityView>,
    #[serde(default)]
    pub tolerations: Option<Vec<Toleration>>,
    /// Gates that keep the scheduler from the pod until they are removed.
    #[serde(default)]
    pub scheduling_gates: Vec<IgnoredAny>,
    /// What its runtime uses of the node beside its containers.
    #[serde(default)]
    pub overhead: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub init_containers: Vec<RequestingContainer>,
    #[serde(default)]
    pub containers: Vec<RequestingContainer>,
}

/// The kind and the creation time by which metrics count a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// The kind of the pod's first slice, as far as it is known.
    pub kind: KindLabel,
    pub created: Option<Timestamp>,
}

impl Counted {
    /// The pod's age; `None` if its creation time is not known.
    #[must_use]
    pub fn age(self, now: Timestamp) -> Option<Duration> {
        Some(Duration::try_from(now.duration_since(self.created?)).unwrap_or_default())
    }
}

/// A pod as the index stores it.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct KnownPod {
    pub uid: PodUid,
    pub key: PodKey,
    pub node: Option<NodeName>,
    /// All its containers have ended for good: `Succeeded` or `Failed`.
    pub ended: bool,
    /// It has slices that one of kerf's agents made.
    pub has_slices: bool,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// It has `schedulingGates`, so that the scheduler does not place it yet.
    pub gated: bool,
    /// What its slices are charged, by the assignment that its Binding wrote into it. `None` before that, and if it has
    /// no slices.
    pub assigned: Option<Charge>,
    /// When the pod was created. The API server stores whole seconds. A pod that a watch shows as it comes is taken to
    /// be created at that moment, within the second that is stored.
    pub created: Option<Timestamp>,
    pub template: Arc<Template>,
}

impl KnownPod {
    /// A pod of this template that is neither bound nor ended, and has no slices.
    #[must_use]
    pub fn new(uid: PodUid, key: PodKey, template: Template) -> Self {
        Self {
            uid,
            key,
            node: None,
            ended: false,
            has_slices: false,
            deleting: false,
            gated: false,
            assigned: None,
            created: None,
            template: Arc::new(template),
        }
    }

    /// The same pod with a changed template.
    #[cfg(test)]
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Template)) -> Self {
        change(Arc::make_mut(&mut self.template));
        self
    }

    #[must_use]
    pub fn counted(&self) -> Counted {
        Counted { kind: self.template.kind, created: self.created }
    }

    /// The same pod, seen by a watch at this moment, with a more exact creation time.
    #[must_use]
    pub fn seen(mut self, now: Timestamp) -> Self {
        const NOTED_TO: SignedDuration = SignedDuration::from_secs(1);
        let within = |noted: Timestamp| now.clamp(noted, noted.saturating_add(NOTED_TO).unwrap_or(noted));
        self.created = self.created.map(within);
        self
    }

    /// Its request, read from the request document.
    pub fn ask(&self) -> Result<Ask, Refusal> {
        Ok(Ask::read(self.template.request.as_deref())?.of(self.template.facts.clone()))
    }

    /// Whether the scheduler may place it: it is alive, has no node, and has no gates.
    #[must_use]
    pub fn can_be_scheduled(&self) -> bool {
        self.node.is_none() && !self.ended && !self.deleting && !self.gated
    }
}

impl PodSpecView {
    fn requests(&self) -> PodRequests<'_> {
        PodRequests { init_containers: &self.init_containers, containers: &self.containers }
    }
}

impl From<SlicedPod> for KnownPod {
    fn from(pod: SlicedPod) -> Self {
        let SlicedPod { metadata, spec, status } = pod;
        let spec = spec.unwrap_or_default();
        let requests = spec.requests();
        let devices = requested_devices(requests);
        let asks_for_nothing = requests.asks_for_nothing();
        let compute = compute(requests, spec.overhead.as_ref());
        let node = spec.node_name.filter(|name| !name.is_empty());
        let is_pending = node.is_none();
        let mut annotations = metadata.annotations.unwrap_or_default();
        let request = annotations.remove(keys::REQUEST);
        let ask = request.as_deref().and_then(|text| Ask::read(Some(text)).ok());
        let chosen = ask.as_ref().and_then(|ask| ask.document.chosen.as_ref());
        let policy = chosen.map(|chosen| Arc::from(chosen.policy.as_str()));
        let assigned = annotations.get(keys::ASSIGNMENT).filter(|_| !is_pending);
        let assigned = assigned.and_then(|text| charge(text, ask.as_ref()));
        let kind = ask.as_ref().map(|ask| ask.document.kind_label()).unwrap_or_default();
        let fields = SelectingFields {
            labels: metadata.labels.unwrap_or_default(),
            priority_class_name: spec.priority_class_name,
            service_account_name: spec.service_account_name,
        };
        let models = ask.map(|ask| ask.document.gpus.models.clone()).unwrap_or_default();
        let namespace = metadata.namespace.unwrap_or_default();
        let facts = PodFacts::new(namespace.as_str(), fields, models);
        let has_slices = has_slices(&annotations);
        let owners = metadata.owner_references.unwrap_or_default();
        let allowed = annotations.get(keys::MOVABLE).is_some_and(|value| value == "true");
        let movable = allowed && owners.iter().any(restarts_elsewhere);
        let destinations = || Destinations {
            chosen: NodeSelection::from_template(&spec.node_selector, spec.affinity.as_ref()),
            tolerated: spec.tolerations.unwrap_or_default(),
        };
        let destinations = (movable || is_pending).then(|| Arc::new(destinations()));
        let template = Template {
            compute,
            devices: Arc::new(devices),
            asks_for_nothing: asks_for_nothing && request.is_none(),
            pending_to: destinations.clone().filter(|_| is_pending),
            movable_to: destinations.filter(|_| movable),
            request: request.map(Arc::from),
            policy,
            kind,
            facts: Arc::new(facts),
        };
        Self {
            uid: PodUid::new(metadata.uid.unwrap_or_default()),
            key: PodKey::new(namespace, metadata.name.unwrap_or_default()),
            node: node.map(NodeName::new),
            ended: status.is_some_and(|status| status.has_ended()),
            has_slices,
            deleting: metadata.deletion_timestamp.is_some(),
            gated: !spec.scheduling_gates.is_empty(),
            assigned,
            created: metadata.creation_timestamp.map(|created| created.0),
            template: Arc::new(template),
        }
    }
}

/// What a pod with this assignment is charged for its slices; `None` if it has none.
fn charge(assignment: &str, ask: Option<&Ask>) -> Option<Charge> {
    let assignment: AssignmentDocument = serde_json::from_str(assignment).ok()?;
    let containers = ask.map(|ask| ask.document.containers.as_slice()).unwrap_or_default();
    let slice = |slice: &AssignedSlice| {
        let container = containers.iter().find(|container| container.name == slice.container);
        let by_shape = Charge { memory_gb: slice.shape.size().0.into(), slices: 1 };
        container.map_or(by_shape, |container| Charge::for_slice(container.resource, slice.shape))
    };
    (!assignment.slices.is_empty()).then(|| assignment.slices.iter().map(slice).sum())
}

/// What a pod asks of the node, by kube-scheduler's rule (`component-helpers/resource/helpers.go`, `PodRequests`). An
/// init container runs beside the sidecars before it, the other containers beside all sidecars.
fn compute(requests: PodRequests<'_>, overhead: Option<&BTreeMap<String, String>>) -> Compute {
    let (mut staying, mut most) = (Compute::default(), Compute::default());
    for (container, role) in requests.in_order() {
        let together = staying.plus(Compute::from_amounts(|name| container.request(name)));
        if role != Role::Init {
            staying = together;
        }
        most = most.max(together);
    }
    most.plus(Compute::from_amounts(|name| Some(overhead?.get(name)?.as_str())))
}

/// Whether this owner is a controller that recreates the pod, and not for the same node. A Job is excluded, because it
/// counts an evicted pod as failed.
fn restarts_elsewhere(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split('/').next().unwrap_or_default();
    let stays = matches!((group, owner.kind.as_str()), ("batch", "Job") | ("apps", "DaemonSet"));
    owner.controller == Some(true) && !stays
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::packing::fraction::CpuMilli;
    use kerf_core::units::MemoryMib;
    use serde_json::json;

    fn known(pod: serde_json::Value) -> KnownPod {
        serde_json::from_value::<SlicedPod>(pod).unwrap().into()
    }

    #[test]
    fn the_needed_parts_of_a_pod_are_read() {
        let pod = known(json!({
            "metadata": {
                "name": "a", "namespace": "ns", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"team": "red"},
                "annotations": {"kerf.dev/request": "{}", "kerf.dev/movable": "true", "other": "x"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}],
            },
            "spec": {"nodeName": "n1", "serviceAccountName": "robot", "schedulingGates": [{"name": "queue"}], "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}},
                {"name": "b", "resources": {"requests": {"cpu": "500m"}}}, {"name": "c"},
            ]},
            "status": {"phase": "Succeeded"},
        }));
        let fields = SelectingFields {
            labels: [("team".to_owned(), "red".to_owned())].into(),
            service_account_name: Some("robot".to_owned()),
            ..SelectingFields::default()
        };
        let template = Template {
            compute: Compute { cpu: CpuMilli(1500), memory: MemoryMib(2048) },
            movable_to: Some(Arc::default()),
            request: Some("{}".into()),
            facts: Arc::new(PodFacts::new("ns", fields, Vec::new())),
            ..Template::default()
        };
        let expected = KnownPod {
            node: Some("n1".into()),
            ended: true,
            deleting: true,
            gated: true,
            ..KnownPod::new("u".into(), PodKey::new("ns", "a"), template)
        };
        assert_eq!(pod, expected);
    }

    #[test]
    fn a_pod_is_created_within_the_second_that_is_stored() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let noted = "2026-01-01T00:00:10Z";
        let pod = known(json!({"metadata": {"name": "a", "creationTimestamp": noted}}));
        assert_eq!(pod.created, Some(at(noted)), "one that is listed");
        for (seen, created) in [
            ("2026-01-01T00:00:10.25Z", "2026-01-01T00:00:10.25Z"),
            ("2026-01-01T00:00:15Z", "2026-01-01T00:00:11Z"),
            ("2026-01-01T00:00:05Z", noted),
        ] {
            assert_eq!(pod.clone().seen(at(seen)).created, Some(at(created)), "{seen}");
        }
        let counted = pod.counted();
        assert_eq!(counted.age(at("2026-01-01T00:00:12Z")), Some(Duration::from_secs(2)));
        assert_eq!(counted.age(at("2026-01-01T00:00:09Z")), Some(Duration::ZERO), "a clock that is behind");
    }

    #[test]
    fn a_pod_is_counted_by_its_first_slice() {
        let document = kerf_core::testing::request("nvidia.com/mig-1g.10gb", 1).to_json();
        let pod = known(json!({"metadata": {"name": "a", "annotations": {"kerf.dev/request": document}}}));
        assert_eq!(pod.counted().kind, KindLabel::Of(kerf_core::kind::Kind::Mig));
    }

    #[test]
    fn a_bound_pod_is_charged_for_its_slices_by_the_names_in_its_request() {
        let slice = |container: &str, id: &str| AssignedSlice {
            container: container.to_owned(),
            id: id.into(),
            gpu: "GPU-0".into(),
            shape: kerf_core::testing::h100_shape("2g.20gb", 0),
        };
        let assigned = |slices: Vec<AssignedSlice>, node: Option<&str>| {
            let document = AssignmentDocument { version: 1, slices, devices: Vec::new(), passed: Vec::new() };
            let request = kerf_core::testing::request("nvidia.com/mig-1g.10gb", 1).to_json();
            let annotations = json!({keys::REQUEST: request, keys::ASSIGNMENT: document.to_json()});
            known(json!({"metadata": {"annotations": annotations}, "spec": {"nodeName": node}})).assigned
        };
        let charge = |memory_gb, slices| Some(Charge { memory_gb, slices });
        assert_eq!(assigned(vec![slice("main", "a")], Some("n")), charge(10, 1), "what it asked for");
        assert_eq!(assigned(vec![slice("other", "a"), slice("main", "b")], Some("n")), charge(30, 2));
        assert_eq!(assigned(Vec::new(), Some("n")), None, "devices of a static node");
        assert_eq!(assigned(vec![slice("main", "a")], None), None);
    }

    #[test]
    fn a_pods_request_is_counted_as_kube_scheduler_counts_it() {
        let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let sidecar = |cpu: &str| json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        for (init, overhead, cpu) in [
            (json!([]), None, 1000),
            (json!([sidecar("300m")]), None, 1300),
            (json!([container("900m")]), None, 1000),
            (json!([sidecar("300m"), container("900m")]), None, 1300),
            (json!([sidecar("300m"), container("1100m")]), None, 1400),
            (json!([container("1100m"), sidecar("300m")]), None, 1300),
            (json!([container("2")]), Some(json!({"cpu": "250m"})), 2250),
        ] {
            let spec = json!({"initContainers": init, "containers": [container("1")], "overhead": overhead});
            let pod = known(json!({"metadata": {"name": "a"}, "spec": spec}));
            assert_eq!(pod.template.compute.cpu, CpuMilli(cpu), "{init} {overhead:?}");
        }
    }

    #[test]
    fn a_pod_is_movable_if_its_controller_recreates_it_elsewhere() {
        let owners =
            [("apps/v1", "ReplicaSet", true), ("batch/v1", "Job", false), ("apps/v1", "DaemonSet", false)];
        for (api_version, kind, movable) in owners {
            let owner =
                json!({"apiVersion": api_version, "kind": kind, "name": "o", "uid": "o", "controller": true});
            let annotations = json!({"kerf.dev/movable": "true"});
            let metadata = json!({"annotations": annotations, "ownerReferences": [owner]});
            let spec = json!({"nodeSelector": {"pool": "a"}, "tolerations": [{"operator": "Exists"}]});
            let pod = known(json!({"metadata": metadata, "spec": spec}));
            let chooses = |to: &Destinations| !to.chosen.is_all() && to.tolerated.len() == 1;
            assert_eq!(pod.template.movable_to.as_deref().map(chooses), movable.then_some(true), "{kind}");
        }
    }

    #[test]
    fn an_unbound_pod_has_no_node_whether_the_field_is_absent_null_or_empty() {
        for spec in [json!({}), json!({"nodeName": null}), json!({"nodeName": ""}), json!(null)] {
            let pod = known(json!({"metadata": {"name": "a"}, "spec": spec, "status": {"phase": "Running"}}));
            assert_eq!((pod.node, pod.ended), (None, false));
        }
    }
}
