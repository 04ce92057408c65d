//! What the nodes of a snapshot offer for a pod.

use super::{Nodes, listed};
use k8s_openapi::api::core::v1::Taint;
use kerf_core::contract::{PassedKind, RequestDocument, Shape};
use kerf_core::kind::Kind;
use kerf_core::names::{GpuUuid, NodeName};
use kerf_core::packing::{KindPlan, Rank, Refusal, SchedulerVerdict, Selection, choose_place};
use kerf_core::resource::{PluginName, ResourceName};
use kerf_core::static_node::Devices;
use kerf_runtime::destinations::Destinations;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    Labels,
    /// The pod does not tolerate this taint, in kubectl's form.
    Taint(String),
}

impl Exclusion {
    pub(super) fn from_taint(taint: Taint) -> Self {
        let value = taint.value.filter(|value| !value.is_empty()).map(|value| format!("={value}"));
        Self::Taint(format!("{}{}:{}", taint.key, value.unwrap_or_default(), taint.effect))
    }

    fn verdict(&self) -> SchedulerVerdict {
        match self {
            Self::Labels => SchedulerVerdict::Excluded,
            Self::Taint(_) => SchedulerVerdict::Tainted,
        }
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Labels => {
                f.write_str("left out: the pod's node selector or affinity does not match its labels")
            }
            Self::Taint(taint) => write!(f, "left out: the pod does not tolerate its taint {taint}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taken {
    Slices(Vec<TakenSlice>),
    Devices(Devices),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenSlice {
    pub container: String,
    pub resource: ResourceName,
    pub kind: Kind,
    pub shape: Shape,
    pub gpu: GpuUuid,
    pub gpu_index: u32,
    pub model: String,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = match self {
            Self::Slices(slices) => {
                slices.iter().map(|slice| format!("{} on {}", slice.shape, slice.gpu)).collect()
            }
            Self::Devices(devices) => devices.iter().map(|(name, count)| format!("{count} {name}")).collect(),
        };
        f.write_str(&parts.join(", "))
    }
}

impl Serialize for Taken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Slices(slices) => slices.serialize(serializer),
            Self::Devices(devices) => {
                let device = |(name, count): (&PluginName, &u32)| serde_json::json!({"resource": name.to_string(), "count": count});
                serializer.collect_seq(devices.iter().map(device))
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    pub node: Option<NodeName>,
    pub taken: Option<Taken>,
    pub passed: Vec<PassedKind>,
    pub nodes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub best: Option<NodeName>,
    pub plan: KindPlan,
    /// The kinds that the pod's policy prefers, and why none of them was chosen.
    pub passed: Vec<PassedKind>,
    pub equal: BTreeMap<NodeName, Taken>,
    /// What the pod would get on each node that serves it by less preferred kinds.
    pub outranked: BTreeMap<NodeName, Taken>,
    pub refused: Vec<(NodeName, Refusal)>,
    pub excluded: Vec<(NodeName, Exclusion)>,
}

impl Choice {
    pub fn new(nodes: &Nodes, pod: &Destinations, request: &RequestDocument) -> Self {
        let excluded: BTreeMap<&NodeName, Exclusion> =
            nodes.names().filter_map(|name| Some((name, nodes.exclusion(name, pod)?))).collect();
        let offered = nodes.names().filter(|name| !excluded.contains_key(name));
        let mut taken: BTreeMap<NodeName, Taken> = BTreeMap::new();
        let Selection { best, equal, outranked, refused } = choose_place(offered, |name| {
            let (place, found) = nodes.place(name, request)?;
            taken.insert(name.clone(), found);
            Ok(place)
        });
        let rank = best.map_or(Rank::BEST, |(_, place)| place.rank);
        let plan = rank.plan(request).unwrap_or_default();
        // Without a node no kind is chosen, so none can be preferred to it.
        let mut passed = Vec::new();
        if best.is_some() {
            for (kind, preferred) in plan.preferred(request) {
                let mut counted = PassedKind::new(kind);
                for name in nodes.names() {
                    let verdict = excluded.get(name).map_or(SchedulerVerdict::Offered, Exclusion::verdict);
                    counted.count(nodes.has_by(name, request, &preferred), verdict);
                }
                passed.push(counted);
            }
        }
        let mut of = |names: Vec<&NodeName>| -> BTreeMap<NodeName, Taken> {
            names.into_iter().filter_map(|name| taken.remove_entry(name)).collect()
        };
        Self {
            best: best.map(|(name, _)| name.clone()),
            plan,
            passed,
            equal: of(equal.into_iter().map(|(name, _)| name).collect()),
            outranked: of(outranked),
            refused: refused.into_iter().map(|(name, refusal)| (name.clone(), refusal)).collect(),
            excluded: excluded.into_iter().map(|(name, why)| (name.clone(), why)).collect(),
        }
    }

    #[must_use]
    pub fn taken(&self) -> Option<(&NodeName, &Taken)> {
        let best = self.best.as_ref()?;
        Some((best, self.equal.get(best)?))
    }

    #[must_use]
    pub fn placement(&self) -> Placement {
        let (node, taken) = self.taken().map(|(node, taken)| (node.clone(), taken.clone())).unzip();
        Placement { node, taken, passed: self.passed.clone(), nodes: self.lines() }
    }

    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let equal = self.equal.iter().map(|(name, taken)| (name, format!("has room: {taken}")));
        let outranked = self.outranked.iter().map(|(name, taken)| {
            (name, format!("has room: {taken}; but another node serves a kind that the pod prefers"))
        });
        let refused = self.refused.iter().map(|(name, refusal)| (name, refusal.to_string()));
        let excluded = self.excluded.iter().map(|(name, why)| (name, why.to_string()));
        let mut answers: Vec<(String, Vec<&NodeName>)> = Vec::new();
        for (name, answer) in equal.chain(outranked).chain(refused).chain(excluded) {
            match answers.iter_mut().find(|(known, _)| *known == answer) {
                Some((_, names)) => names.push(name),
                None => answers.push((answer, vec![name])),
            }
        }
        answers.into_iter().map(|(answer, names)| format!("{}: {answer}", listed(&names))).collect()
    }

    /// Why no node serves the pod, with the number of nodes per answer, as kube-scheduler prints it.
    #[must_use]
    pub fn refusals(&self) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let refused = self.refused.iter().map(|(_, refusal)| refusal.to_string());
        for answer in refused.chain(self.excluded.iter().map(|(_, why)| why.to_string())) {
            *counts.entry(answer).or_default() += 1;
        }
        if counts.is_empty() {
            return "the snapshot has no node with GPUs".to_owned();
        }
        let counts = counts
            .into_iter()
            .map(|(answer, count)| format!("{}: {answer}", crate::counted::counted(count, "node")));
        counts.collect::<Vec<_>>().join("; ")
    }
}
