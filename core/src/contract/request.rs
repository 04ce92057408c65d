//! The request document: what a pod asks for, normalised by the webhook. The extender and the agent never read the
//! user's spelling.

use super::Chosen;
use crate::kind::{IsolationClass, Kind, KindLabel};
use crate::mig::Profile;
use crate::request::{AskedLimits, Claim, GpuSelection, Role, held};
use crate::resource::ResourceName;
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use thiserror::Error;

/// The document version that this build writes and reads.
pub const REQUEST_VERSION: u32 = 1;

/// The requests of all containers of a pod, in the annotation `kerf.dev/request`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestDocument {
    /// The document's version, [`REQUEST_VERSION`] in this build.
    pub version: u32,
    /// The isolation class that holds for the pod.
    pub isolation: IsolationClass,
    /// The containers that ask for slices, in the order in which the kubelet serves them: init containers and sidecars,
    /// then app containers.
    pub containers: Vec<ContainerRequest>,
    /// The GPUs that may serve the pod; absent for all GPUs.
    #[serde(default, skip_serializing_if = "GpuSelection::is_all")]
    pub gpus: GpuSelection,
    /// Whether no movable pod may be evicted for this one. Absent for most pods.
    #[serde(rename = "movesNobody", default, skip_serializing_if = "std::ops::Not::not")]
    pub never_evicts: bool,
    /// Whether static nodes can serve the pod, now or later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub static_nodes: bool,
    /// Labels that the pod's node must have by its policy, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, String>,
    /// The limits by which each container asked, before the webhook replaced them. Containers that asked by annotation
    /// are not in it. Absent in documents of earlier versions, which did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<BTreeMap<String, AskedLimits>>,
    /// The kinds that the policy allows on GPUs of a model, by short name. A model that is absent allows every kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kinds_by_model: BTreeMap<String, Vec<Kind>>,
    /// Whether the pod runs in a user namespace of its own, which its node must support. Absent for most pods.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub user_namespace: bool,
    /// How kerf treats the pod because an MPS daemon would obey its processes. Absent for most pods.
    #[serde(default, skip_serializing_if = "is_default")]
    pub root_processes: RootProcesses,
    /// How the names were chosen; absent in documents that were made without a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Chosen>,
}

/// How kerf treats a pod because of processes that are root on the node. An MPS daemon obeys such processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RootProcesses {
    /// The pod has no such process, or gets no MPS share.
    #[default]
    Harmless,
    /// The pod gets no MPS share because of such a process.
    KeptOut,
    /// The pod may get an MPS share in spite of such a process, because the policy allows it.
    Allowed,
}

fn is_default<T: PartialEq + Default>(value: &T) -> bool {
    *value == T::default()
}

/// The request of one container, with its resource name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRequest {
    /// Name of the container in the pod.
    pub name: String,
    /// When the container runs; absent for an app container.
    #[serde(default, skip_serializing_if = "Role::is_app")]
    pub role: Role,
    /// The size that was asked for, in nominal GB.
    pub size_gb: SizeGb,
    /// The profile that the user named, which is then exact; absent for a request by size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The number of slices that the container asks for.
    pub count: u32,
    /// The resource name in the container's limits. It has the kind beside it if only a static node serves this kind
    /// under the name.
    #[serde(flatten, with = "limit")]
    pub resource: ResourceName,
    /// The kinds that may serve a neutral name, the preferred one first; empty for a concrete name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<Kind>,
    /// The real memory that each slice must have, if the request is matched strictly; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryMib>,
    /// The least share of a GPU's compute that each slice must have; absent if none is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<ComputePercent>,
    /// Whether each slice must be on another GPU, because other systems count GPUs and not slices. Absent for most
    /// pods.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub distinct_gpus: bool,
}

impl ContainerRequest {
    /// A request for one slice of this name and size, without a container's name.
    #[must_use]
    pub fn for_slice(resource: ResourceName, size_gb: SizeGb) -> Self {
        Self {
            name: String::new(),
            role: Role::App,
            size_gb,
            profile: None,
            count: 1,
            resource,
            kinds: Vec::new(),
            memory: None,
            compute: None,
            distinct_gpus: false,
        }
    }

    /// A request for one instance of exactly this profile.
    #[must_use]
    pub fn exact(profile: Profile) -> Self {
        Self { profile: Some(profile), ..Self::for_slice(ResourceName::Mig(profile), profile.size()) }
    }

    fn wants(&self) -> Wants {
        let Self { profile, size_gb, memory, compute, .. } = *self;
        Wants { profile, size_gb, memory, compute }
    }

    /// Whether the container needs several GPUs, and not only several slices.
    #[must_use]
    pub fn needs_distinct_gpus(&self) -> bool {
        self.distinct_gpus && self.count > 1
    }

    /// The kind of slice, if only one kind may serve the request; `None` otherwise.
    #[must_use]
    pub fn only_kind(&self) -> Option<Kind> {
        self.resource.kind().or(match self.kinds.as_slice() {
            [kind] => Some(*kind),
            _ => None,
        })
    }

    /// Whether a slice of `kind` may serve the request.
    #[must_use]
    pub fn may_be(&self, kind: Kind) -> bool {
        self.resource.kind().map_or_else(|| self.kinds.contains(&kind), |own| own == kind)
    }
}

/// The requirements of a container on each of its slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wants {
    profile: Option<Profile>,
    size_gb: SizeGb,
    memory: Option<MemoryMib>,
    compute: Option<ComputePercent>,
}

/// Writes a resource name as two fields: the name in the limits, and the kind if the name does not say it.
mod limit {
    use crate::kind::Kind;
    use crate::resource::ResourceName;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[derive(Serialize, Deserialize)]
    struct Limit {
        resource: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<Kind>,
    }

    pub(super) fn serialize<S: Serializer>(name: &ResourceName, to: S) -> Result<S::Ok, S::Error> {
        let kind = name.kind().filter(|_| name.is_plugins());
        Limit { resource: name.to_string(), kind }.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ResourceName, D::Error> {
        let Limit { resource, kind } = Limit::deserialize(from)?;
        match kind {
            Some(kind) => {
                resource.parse().map(|name| ResourceName::Plugin(name, kind)).map_err(D::Error::custom)
            }
            None => resource.parse().map_err(D::Error::custom),
        }
    }
}

/// Why a request document cannot be read.
#[derive(Debug, Error)]
pub enum UnreadableRequest {
    /// The text is not the JSON of a request document.
    #[error(
        "failed to parse the annotation kerf.dev/request: {0}; it is written by kerf's webhook, remove it from the manifest"
    )]
    Parse(#[from] serde_json::Error),
    /// The document has a version that this build does not read.
    #[error(
        "the annotation kerf.dev/request has version {0}, this program reads version {REQUEST_VERSION}; create the pod anew"
    )]
    Version(u32),
}

impl RequestDocument {
    /// A document with these containers and defaults for everything else.
    #[must_use]
    pub fn for_containers(isolation: IsolationClass, containers: Vec<ContainerRequest>) -> Self {
        Self {
            version: REQUEST_VERSION,
            isolation,
            containers,
            gpus: GpuSelection::default(),
            never_evicts: false,
            static_nodes: false,
            nodes: BTreeMap::new(),
            asked: None,
            kinds_by_model: BTreeMap::new(),
            user_namespace: false,
            root_processes: RootProcesses::default(),
            chosen: None,
        }
    }

    /// Reads the text of the annotation `kerf.dev/request`.
    pub fn parse(text: &str) -> Result<Self, UnreadableRequest> {
        let document: Self = serde_json::from_str(text)?;
        if document.version != REQUEST_VERSION {
            return Err(UnreadableRequest::Version(document.version));
        }
        Ok(document)
    }

    /// The slices that the pod holds over its whole life, container by container. kerf reserves these.
    ///
    /// An ordinary init container holds the slices that no container after it takes over, usually none. The pod keeps
    /// them until it ends, because the kubelet gives them to no other pod before.
    ///
    /// The kubelet gives any slice of a name to any container of the pod that asks by this name. So each container gets
    /// the most demanding request of them all: the named profile, the largest size, and the most memory and compute.
    #[must_use]
    pub fn holdings(&self) -> Cow<'_, [ContainerRequest]> {
        let as_it_is =
            |c: &ContainerRequest| c.role != Role::Init && c.wants() == self.most_wanted(c.resource);
        if self.containers.iter().all(as_it_is) {
            return Cow::Borrowed(&self.containers);
        }
        let claim = |c: &ContainerRequest| Claim { role: c.role, resource: c.resource, count: c.count };
        let claims: Vec<Claim> = self.containers.iter().map(claim).collect();
        let held = self.containers.iter().zip(held(&claims)).filter(|(_, count)| *count > 0);
        let holding = |(container, count): (&ContainerRequest, u32)| {
            let Wants { profile, size_gb, memory, compute } = self.most_wanted(container.resource);
            ContainerRequest { size_gb, profile, count, memory, compute, ..container.clone() }
        };
        Cow::Owned(held.map(holding).collect())
    }

    /// The most that any container asks of a slice of this name.
    fn most_wanted(&self, name: ResourceName) -> Wants {
        let containers = self.containers.iter().filter(|container| container.resource == name);
        let nothing = Wants { profile: None, size_gb: SizeGb::ANY, memory: None, compute: None };
        containers.map(ContainerRequest::wants).fold(nothing, |one, other| Wants {
            profile: one.profile.max(other.profile),
            size_gb: one.size_gb.max(other.size_gb),
            memory: one.memory.max(other.memory),
            compute: one.compute.max(other.compute),
        })
    }

    /// The kind of the pod's first slice, by which metrics count the pod. `None` if the pod asks for none, or if
    /// several kinds may serve it.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        self.containers.first().and_then(ContainerRequest::only_kind)
    }

    /// The label by which metrics count the pod before it has a slice.
    #[must_use]
    pub fn kind_label(&self) -> KindLabel {
        let label = |first: &ContainerRequest| first.only_kind().map_or(KindLabel::Any, KindLabel::Of);
        self.containers.first().map_or(KindLabel::None, label)
    }

    /// The text of the annotation `kerf.dev/request`.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    fn container(name: &str, role: Role, count: u32) -> ContainerRequest {
        let of = request("nvidia.com/mig-1g.10gb", count).containers.remove(0);
        ContainerRequest { name: name.to_owned(), role, ..of }
    }

    fn document(containers: Vec<ContainerRequest>) -> RequestDocument {
        RequestDocument { containers, ..request("nvidia.com/mig-1g.10gb", 1) }
    }

    #[test]
    fn a_document_without_roles_has_app_containers_only() {
        let text = r#"{"version":1,"isolation":"memory","containers":[{"name":"main","sizeGb":10,"count":1,"resource":"nvidia.com/mig-1g.10gb"}]}"#;
        let read = RequestDocument::parse(text).unwrap();
        assert_eq!(read.containers, [container("main", Role::App, 1)]);
        assert!(!read.to_json().contains("role"), "programs without roles parse it too");
        let roles = document(vec![container("load", Role::Init, 2), container("proxy", Role::Sidecar, 1)]);
        assert!(roles.to_json().contains(r#""role":"sidecar""#));
        assert_eq!(RequestDocument::parse(&roles.to_json()).unwrap(), roles);
    }

    #[test]
    fn distinct_gpus_is_written_only_if_it_is_set() {
        let several = ContainerRequest { distinct_gpus: true, ..container("main", Role::App, 2) };
        let text = document(vec![several.clone()]).to_json();
        assert!(text.contains(r#""distinctGpus":true"#), "{text}");
        assert_eq!(RequestDocument::parse(&text).unwrap().containers, [several]);
        let before = document(vec![container("main", Role::App, 2)]);
        assert!(!before.to_json().contains("distinct"), "programs without the field parse it too");
        assert!(!RequestDocument::parse(&before.to_json()).unwrap().containers[0].needs_distinct_gpus());
    }

    #[test]
    fn a_neutral_name_allows_each_kind_that_the_document_lists() {
        let of = container("main", Role::App, 1);
        assert_eq!(
            (of.only_kind(), of.may_be(Kind::Mig), of.may_be(Kind::Mps)),
            (Some(Kind::Mig), true, false)
        );
        let kinds = vec![Kind::Mps, Kind::Mig];
        let several = ContainerRequest { resource: ResourceName::Neutral(SizeGb(10)), kinds, ..of };
        assert_eq!((several.only_kind(), several.may_be(Kind::Mps)), (None, true));
        assert!(!several.may_be(Kind::TimeSlicing));
        let text = document(vec![several.clone()]).to_json();
        assert!(text.contains(r#""kinds":["mps","mig"]"#), "{text}");
        assert_eq!(RequestDocument::parse(&text).unwrap().containers, [several]);
    }

    #[test]
    fn an_init_container_holds_what_later_containers_leave() {
        let load = container("load", Role::Init, 3);
        let asked = [load.clone(), container("warm", Role::Init, 1), container("main", Role::App, 1)];
        let document = document(asked.to_vec());
        assert_eq!(*document.holdings(), [ContainerRequest { count: 2, ..load }, asked[2].clone()]);
    }

    #[test]
    fn containers_of_one_name_hold_the_largest_size() {
        let of = |role, size, memory, compute| ContainerRequest {
            resource: ResourceName::Neutral(SizeGb(14)),
            size_gb: SizeGb(size),
            memory,
            compute: ComputePercent::new(compute),
            ..container("main", role, 1)
        };
        let memory = Some(MemoryMib(13_500));
        let asked = vec![
            of(Role::Init, 14, memory, 0),
            of(Role::App, 13, None, 30),
            of(Role::App, 13, Some(MemoryMib(1)), 20),
            container("other", Role::App, 1),
        ];
        let most = of(Role::App, 14, memory, 30);
        let other = asked[3].clone();
        assert_eq!(*document(asked).holdings(), [most.clone(), most, other]);
    }

    #[test]
    fn an_exact_profile_holds_for_all_containers_of_the_name() {
        let profile = "1g.10gb".parse().ok();
        let load = ContainerRequest { profile, ..container("load", Role::Init, 1) };
        let document = document(vec![load, container("main", Role::App, 1)]);
        assert_eq!(*document.holdings(), [ContainerRequest { profile, ..container("main", Role::App, 1) }]);
    }
}
