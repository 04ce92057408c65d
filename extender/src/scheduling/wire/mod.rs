//! The scheduler extender's JSON (kube-scheduler `extender/v1`), as far as it is read and written. The Go types have no
//! tags, so their field names are the keys; absent pointers come as `null`.

mod preempt;

pub use preempt::PreemptArgs;

use crate::objects::ask::Ask;
use crate::scheduling::filter::{Candidate, Filtered};
use k8s_openapi::api::core::v1::Toleration;
use kerf_core::keys;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Refusal;
use kerf_core::request::{PodFacts, PodRequests, RequestingContainer, SelectingFields};
use kerf_core::static_node::{Devices, requested_devices};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The body of `filter` and `prioritize` requests.
#[derive(Debug, Deserialize)]
pub struct ExtenderArgs<'a> {
    #[serde(rename = "Pod", borrow)]
    pod: WirePod<'a>,
    /// The nodes' names. Absent if the scheduler is not configured as `nodeCacheCapable`.
    #[serde(rename = "NodeNames", borrow, default)]
    node_names: Option<Vec<Text<'a>>>,
}

/// A text that is borrowed from the request if it has no escapes. (serde borrows a `Cow` only in a field.)
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Debug, Deserialize)]
struct WirePod<'a> {
    #[serde(borrow)]
    metadata: WireMetadata<'a>,
    #[serde(borrow, default)]
    spec: Option<WireSpec<'a>>,
    #[serde(borrow, default)]
    status: Option<WireStatus<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus<'a> {
    #[serde(borrow, default)]
    nominated_node_name: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec<'a> {
    #[serde(borrow, default)]
    priority_class_name: Option<Text<'a>>,
    #[serde(borrow, default)]
    service_account_name: Option<Text<'a>>,
    #[serde(default)]
    tolerations: Option<Vec<Toleration>>,
    #[serde(default)]
    init_containers: Option<Vec<RequestingContainer>>,
    #[serde(default)]
    containers: Option<Vec<RequestingContainer>>,
}

#[derive(Debug, Deserialize)]
struct WireMetadata<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    namespace: Text<'a>,
    #[serde(borrow)]
    uid: Text<'a>,
    #[serde(borrow, default)]
    annotations: Option<WireAnnotations<'a>>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

/// Reads only the request document, so that other annotations are not stored.
#[derive(Debug)]
struct WireAnnotations<'a> {
    request: Option<Text<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for WireAnnotations<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AnnotationsVisitor)
    }
}

struct AnnotationsVisitor;

impl<'de> Visitor<'de> for AnnotationsVisitor {
    type Value = WireAnnotations<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut request = None;
        while let Some(key) = map.next_key::<Text<'de>>()? {
            if key.0 == keys::REQUEST {
                request = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(WireAnnotations { request })
    }
}

impl<'a> ExtenderArgs<'a> {
    /// The pod with its request, as the filter needs it.
    #[must_use]
    pub fn candidate(&self) -> Candidate {
        self.pod.candidate()
    }

    /// Whether the pod asks for nothing that kerf serves. The scheduler sends such a pod if it has a name with the
    /// amount 0.
    #[must_use]
    pub fn asks_for_nothing(&self) -> bool {
        self.pod.asks_for_nothing()
    }

    /// The offered nodes; `None` if the scheduler sends whole Nodes.
    #[must_use]
    pub fn node_names(&'a self) -> Option<Vec<&'a str>> {
        self.node_names.as_ref().map(|names| names.iter().map(|name| &*name.0).collect())
    }
}

impl WirePod<'_> {
    fn candidate(&self) -> Candidate {
        let metadata = &self.metadata;
        let request = metadata.annotations.as_ref().and_then(|a| a.request.as_ref());
        let nominated = self.status.as_ref().and_then(|status| status.nominated_node_name.as_ref());
        Candidate {
            uid: PodUid::new(&*metadata.uid.0),
            key: PodKey::new(&*metadata.namespace.0, &*metadata.name.0),
            ask: Ask::read(request.map(|text| &*text.0)).map(|ask| self.with_facts(ask)),
            devices: if request.is_some() { Devices::new() } else { self.devices() },
            tolerations: self.spec.as_ref().and_then(|spec| spec.tolerations.clone()).unwrap_or_default(),
            nominated: nominated.filter(|name| !name.0.is_empty()).map(|name| NodeName::new(&*name.0)),
        }
    }

    fn asks_for_nothing(&self) -> bool {
        let request = self.metadata.annotations.as_ref().and_then(|a| a.request.as_ref());
        request.is_none() && self.requests().asks_for_nothing()
    }

    /// The devices that the pod asks of NVIDIA's plugin. A pod that also has a neutral name asks kerf only: a static
    /// node would start it without that slice.
    fn devices(&self) -> Devices {
        let requests = self.requests();
        if requests.asks_by_neutral_name() { Devices::new() } else { requested_devices(requests) }
    }

    fn requests(&self) -> PodRequests<'_> {
        let spec = self.spec.as_ref();
        let init_containers = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
        let containers = spec.and_then(|spec| spec.containers.as_deref()).unwrap_or_default();
        PodRequests { init_containers, containers }
    }

    fn with_facts(&self, ask: Ask) -> Ask {
        let WirePod { metadata, spec, .. } = self;
        let text = |text: &Option<Text<'_>>| text.as_ref().map(|text| text.0.clone().into_owned());
        let fields = SelectingFields {
            labels: metadata.labels.clone().unwrap_or_default(),
            priority_class_name: spec.as_ref().and_then(|spec| text(&spec.priority_class_name)),
            service_account_name: spec.as_ref().and_then(|spec| text(&spec.service_account_name)),
        };
        let facts = PodFacts::new(&*metadata.namespace.0, fields, ask.document.gpus.models.clone());
        ask.of(Arc::new(facts))
    }
}

/// The body of `bind` requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindArgs {
    pub pod_name: String,
    pub pod_namespace: String,
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    pub node: String,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct FilterResult<'a> {
    node_names: Vec<&'a str>,
    /// Nodes where the scheduler's own preemption might help. It is always empty, because the preemption does not see
    /// slices. For nodes that its own filters refuse the scheduler calls `preempt`.
    failed_nodes: BTreeMap<&'a str, &'a str>,
    failed_and_unresolvable_nodes: BTreeMap<&'a str, String>,
    error: String,
}

impl<'a> From<Filtered<'a>> for FilterResult<'a> {
    /// The reasons are sent only if no node is left, because the scheduler ignores them otherwise.
    fn from(Filtered { fitting, refused, .. }: Filtered<'a>) -> Self {
        let text = |(name, refusal): (&'a str, Refusal)| (name, refusal.to_string());
        let refused = if fitting.is_empty() { refused } else { Vec::new() };
        Self {
            node_names: fitting,
            failed_and_unresolvable_nodes: refused.into_iter().map(text).collect(),
            ..Self::default()
        }
    }
}

impl<'a> FilterResult<'a> {
    /// All offered nodes serve the pod.
    #[must_use]
    pub fn all(offered: Vec<&'a str>) -> Self {
        Self { node_names: offered, ..Self::default() }
    }
}

impl FilterResult<'_> {
    /// The answer that ends the scheduling attempt with an error.
    #[must_use]
    pub fn error(text: impl Into<String>) -> Self {
        Self { error: text.into(), ..Self::default() }
    }
}

/// One entry of the answer to `prioritize`.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority<'a> {
    pub host: &'a str,
    /// The score; higher is better.
    pub score: i64,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindResult {
    /// Why the pod was not bound; empty if it was.
    pub error: String,
}

#[cfg(test)]
mod tests;
