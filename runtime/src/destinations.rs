//! To which nodes a pod, or the next pod of a controller, may go, as kube-scheduler will see it.

use crate::machine::keeps_away;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use kerf_core::names::NodeName;
use kerf_core::request::{NodeLabel, NodeSelection, PodView};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// What a pod, or a controller's pods, say of the nodes that they may be on. Its default is all that have no taint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Destinations {
    /// By labels.
    pub chosen: NodeSelection,
    /// By taints.
    pub tolerated: Vec<Toleration>,
}

impl Destinations {
    /// What a pod says of itself, by its JSON.
    ///
    /// # Errors
    /// When its spec cannot be read.
    pub fn of_pod(pod: &Value) -> serde_json::Result<Self> {
        let chosen = NodeSelection::of(&PodView::deserialize(pod)?.spec);
        let tolerated = Option::<Vec<Toleration>>::deserialize(&pod["spec"]["tolerations"])?;
        Ok(Self { chosen, tolerated: tolerated.unwrap_or_default() })
    }

    /// Whether a node is one of them. Where its labels are not known and matter, nobody says so.
    #[must_use]
    pub fn admit(
        &self,
        node: &NodeName,
        labels: Option<&BTreeMap<String, String>>,
        taints: Option<&[Taint]>,
    ) -> bool {
        let is_chosen = self.chosen.is_all()
            || labels.is_some_and(|labels| {
                let label = |key: &str| labels.get(key).map_or(NodeLabel::Missing, |it| NodeLabel::Is(it));
                self.chosen.selects(node.as_str(), label)
            });
        let mut foes = taints.unwrap_or_default().iter().filter(|taint| keeps_away(taint));
        is_chosen && foes.all(|taint| self.tolerated.iter().any(|toleration| tolerates(toleration, taint)))
    }
}

/// As k8s.io/api has it (`core/v1/toleration.go`, `ToleratesTaint`); an operator that is newer tolerates nothing here.
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

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: Some(value.into()), effect: effect.into(), time_added: None }
    }

    #[test]
    fn a_taint_keeps_away_whom_nothing_makes_tolerate_it() {
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
                pod.admit(&"n".into(), None, Some(std::slice::from_ref(&gpu))),
                admitted,
                "{tolerations}"
            );
        }
    }

    #[test]
    fn a_taint_that_only_puts_off_keeps_nobody_away() {
        let taints = [taint("a", "b", "PreferNoSchedule")];
        assert!(Destinations::default().admit(&"n".into(), None, Some(&taints)));
        assert!(Destinations::default().admit(&"n".into(), None, None));
    }
}
