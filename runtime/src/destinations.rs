//! The nodes to which a pod, or the next pod of a controller, may go, by kube-scheduler's rules. A move needs them:
//! otherwise kerf would evict a pod that no other node takes.

use crate::machine::keeps_away;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::names::NodeName;
use kerf_core::request::{NodeLabel, NodeSelection, PodView};
use kerf_core::selector::Labels;
use serde::Deserialize;
use serde_json::Value;

/// The constraints of a pod, or of a controller's pods, on their nodes. The default admits every node without taints.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Destinations {
    /// Node selector, node affinity and node name.
    pub chosen: NodeSelection,
    /// The taints that the pod tolerates.
    pub tolerated: Vec<Toleration>,
}

impl Destinations {
    /// Reads the constraints from a pod's JSON.
    ///
    /// # Errors
    /// If the pod's spec does not parse.
    pub fn of_pod(pod: &Value) -> serde_json::Result<Self> {
        let chosen = NodeSelection::from_spec(&PodView::deserialize(pod)?.spec);
        let tolerated = Option::<Vec<Toleration>>::deserialize(&pod["spec"]["tolerations"])?;
        Ok(Self { chosen, tolerated: tolerated.unwrap_or_default() })
    }

    /// Whether a node is admitted. Unknown labels do not admit a node if the pod selects by labels.
    #[must_use]
    pub fn admit(&self, node: &NodeName, labels: Option<&impl Labels>, taints: Option<&[Taint]>) -> bool {
        self.admit_but_for(node, labels, taints, |_| false)
    }

    /// Like [`Self::admit`], but ignoring the agents' labels of kinds of slices: kerf adds requirements on those for a
    /// pod's resource name.
    #[must_use]
    pub fn admit_by_any_kind(
        &self,
        node: &NodeName,
        labels: Option<&impl Labels>,
        taints: Option<&[Taint]>,
    ) -> bool {
        let is_of_kinds = |key: &str| Kind::ALL.into_iter().any(|kind| keys::node_kind_label(kind) == key);
        self.admit_but_for(node, labels, taints, is_of_kinds)
    }

    fn admit_but_for(
        &self,
        node: &NodeName,
        labels: Option<&impl Labels>,
        taints: Option<&[Taint]>,
        is_ignored: impl Fn(&str) -> bool,
    ) -> bool {
        let is_chosen = self.chosen.is_all()
            || labels.is_some_and(|labels| {
                self.chosen.selects(node.as_str(), |key| match labels.value(key) {
                    _ if is_ignored(key) => NodeLabel::Unknown,
                    Some(value) => NodeLabel::Is(value),
                    None => NodeLabel::Missing,
                })
            });
        is_chosen && !is_tainted_for(taints.unwrap_or_default(), &self.tolerated)
    }
}

/// Whether a node's taints keep pods away that tolerate only `tolerated`.
#[must_use]
pub fn is_tainted_for(taints: &[Taint], tolerated: &[Toleration]) -> bool {
    let is_tolerated = |taint: &Taint| tolerated.iter().any(|toleration| tolerates(toleration, taint));
    taints.iter().any(|taint| keeps_away(taint) && !is_tolerated(taint))
}

/// The rule of k8s.io/api (`core/v1/toleration.go`, `ToleratesTaint`). An unknown operator tolerates nothing, because
/// otherwise kerf could evict a pod for a node that rejects it.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_any_or =
        |mine: &Option<String>, its: &str| mine.as_deref().is_none_or(|mine| mine.is_empty() || mine == its);
    is_any_or(&toleration.effect, &taint.effect)
        && is_any_or(&toleration.key, &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => {
                toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
            }
            "Exists" => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    const UNKNOWN: Option<&BTreeMap<String, String>> = None;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: Some(value.into()), effect: effect.into(), time_added: None }
    }

    #[test]
    fn a_tainted_node_admits_only_pods_that_tolerate_the_taint() {
        let gpu = taint("nvidia.com/gpu", "present", "NoSchedule");
        let cases: [(Value, bool); 9] = [
            (json!([]), false),
            (json!([{"operator": "Exists"}]), true),
            (json!([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]), true),
            (json!([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}]), false),
            (json!([{"key": "nvidia.com/gpu", "value": "present"}]), true),
            (json!([{"key": "nvidia.com/gpu", "operator": "Equal", "value": "absent"}]), false),
            (json!([{"key": "nvidia.com/gpu", "operator": "Gt", "value": "1"}]), false),
            (
                json!([{"key": "other", "operator": "Exists"}, {"key": "nvidia.com/gpu", "operator": "Exists"}]),
                true,
            ),
            (json!([{"key": "other", "operator": "Exists"}]), false),
        ];
        for (tolerations, admitted) in cases {
            let tolerated = serde_json::from_value(tolerations.clone()).unwrap();
            let pod = Destinations { tolerated, ..Destinations::default() };
            assert_eq!(
                pod.admit(&"n".into(), UNKNOWN, Some(std::slice::from_ref(&gpu))),
                admitted,
                "{tolerations}"
            );
        }
    }

    #[test]
    fn a_taint_with_prefer_no_schedule_admits_every_pod() {
        let taints = [taint("a", "b", "PreferNoSchedule")];
        assert!(Destinations::default().admit(&"n".into(), UNKNOWN, Some(&taints)));
        assert!(Destinations::default().admit(&"n".into(), UNKNOWN, None));
    }
}
