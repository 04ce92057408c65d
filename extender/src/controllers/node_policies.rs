//! Copies the admins' policies for nodes into the `GpuNodes`, where the agents read them. It writes `spec.policy` and
//! the annotation that names the document, and nothing else. A GpuNode without a matching document keeps what was
//! written by hand.

use crate::api_timeout::{ApiFailure, with_timeout};
use crate::cluster_index::is_due;
use crate::term::Term;
use http::header::CONTENT_TYPE;
use kerf_core::contract::{GpuNodeSpec, NodePolicy};
use kerf_core::keys;
use kerf_core::names::NodeName;
use kerf_core::policy::NodeRules;
use kerf_runtime::gpu_node::GpuNode;
use kube::Resource;
use kube::api::Api;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::time::{MissedTickBehavior, interval};

/// How often `GpuNodes` are compared with the documents, which is as often as the files are read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of one request. A write that failed is due again at the next tick.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a node's policy was not written.
#[derive(Debug, Error)]
enum Unwritten {
    #[error(transparent)]
    Api(#[from] ApiFailure),
    #[error("failed to read or make the object: {0}")]
    Json(#[from] serde_json::Error),
    #[error("failed to make the request: {0}")]
    Request(#[from] http::Error),
}

/// Writes the nodes' policies until the term ends.
pub async fn run(term: Arc<Term>) {
    if !term.policies.are_given() {
        return;
    }
    let mut filler = Filler { api: Api::all(term.client.clone()), term, unkept: HashMap::new() };
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stop = filler.term.stop.clone();
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if stop.run_until_cancelled(filler.look()).await.is_none() {
            return;
        }
    }
}

struct Filler {
    term: Arc<Term>,
    api: Api<GpuNode>,
    /// Policies that the API server does not store completely, because its CRD is older than the policy. They are not
    /// written again at every tick.
    unkept: HashMap<NodeName, NodePolicy>,
}

impl Filler {
    async fn look(&mut self) {
        for name in self
            .term
            .with(|index| if index.is_listed() { index.node_policies().unfilled_nodes() } else { Vec::new() })
        {
            if let Err(error) = self.fill(&name).await {
                tracing::warn!(node = %name, %error, "failed to write the node's policy; trying again");
            }
        }
    }

    async fn fill(&mut self, name: &NodeName) -> Result<(), Unwritten> {
        let rules =
            self.term.with(|index| index.node_policies().rules_of(name).map(Option::<&NodeRules>::cloned));
        let Ok(rules) = rules else { return Ok(()) };
        let wanted = rules.as_ref().and_then(NodeRules::managed).cloned().unwrap_or_default();
        if self.unkept.get(name) == Some(&wanted) {
            return Ok(());
        }
        let Some(found) = with_timeout(TIMEOUT, self.api.get_opt(name.as_str())).await? else {
            return Ok(());
        };
        let Some(operations) = operations(&found, rules.as_ref())? else { return Ok(()) };
        let url = format!("{}/{name}?fieldManager=kerf-extender", GpuNode::url_path(&(), None));
        let request = http::Request::patch(url).header(CONTENT_TYPE, "application/json-patch+json");
        let request = request.body(serde_json::to_vec(&Value::Array(operations))?)?;
        let written: GpuNode = with_timeout(TIMEOUT, self.term.client.request(request)).await?;
        match rules {
            Some(rules) => {
                tracing::info!(node = %name, policy = rules.name, "the node's policy is the document's");
            }
            None => {
                tracing::info!(node = %name, "the node's policy is the default again: its document is gone");
            }
        }
        self.unkept.remove(name);
        if written.read_spec()?.policy != wanted {
            tracing::error!(node = %name, "the API server does not keep all of the node's policy: update the CRD gpunodes.kerf.dev");
            self.unkept.insert(name.clone(), wanted);
        }
        Ok(())
    }
}

/// The JSON patch that brings a GpuNode in line with its document, for the version that was found. `None` if nothing is
/// due.
fn operations(found: &GpuNode, rules: Option<&NodeRules>) -> Result<Option<Vec<Value>>, Unwritten> {
    let GpuNodeSpec { policy, .. } = found.read_spec()?;
    let annotations = found.metadata.annotations.as_ref();
    let filled_by = annotations.and_then(|all| all.get(keys::NODE_POLICY));
    if !is_due(filled_by.map(String::as_str), &policy, rules) {
        return Ok(None);
    }
    let version = &found.metadata.resource_version;
    let mut operations = vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
    let mut add =
        |path: &str, value: Value| operations.push(json!({"op": "add", "path": path, "value": value}));
    if found.spec.is_none() {
        add("/spec", json!({}));
    }
    let key = format!("/metadata/annotations/{}", keys::NODE_POLICY.replace('/', "~1"));
    if let Some(rules) = rules {
        add("/spec/policy", json!(rules.managed()));
        if annotations.is_none() {
            add("/metadata/annotations", json!({}));
        }
        add(&key, json!(rules.name));
    } else {
        add("/spec/policy", json!(NodePolicy::default()));
        operations.push(json!({"op": "remove", "path": key}));
    }
    Ok(Some(operations))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::contract::OverUse;
    use kerf_core::policy::NodeRule;
    use kerf_core::selector::NodeMatch;

    fn rules(name: &str) -> NodeRules {
        let policy = NodePolicy { over_use: OverUse::Evict, ..NodePolicy::default() };
        NodeRules { name: name.to_owned(), nodes: NodeMatch::default(), rule: NodeRule::Managed(policy) }
    }

    /// Applies the patch to a GpuNode with this policy that the document of this name filled.
    fn after(filled_by: Option<&str>, policy: &Value, rules: Option<&NodeRules>) -> Option<(Value, Value)> {
        let mut node = GpuNode::new(&"n".into());
        node.metadata.resource_version = Some("7".to_owned());
        node.metadata.annotations =
            filled_by.map(|name| [(keys::NODE_POLICY.to_owned(), name.to_owned())].into());
        node.spec = Some(json!({"revision": 3, "policy": policy}));
        let operations = operations(&node, rules).unwrap()?;
        let mut object = json!(node);
        let patch: json_patch::Patch = serde_json::from_value(json!(operations)).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
        assert_eq!(object["spec"]["revision"], 3, "the rest of the spec stays");
        Some((object["metadata"]["annotations"][keys::NODE_POLICY].clone(), object["spec"]["policy"].clone()))
    }

    #[test]
    fn a_documents_policy_is_copied_with_its_name_and_removed_with_it() {
        let (p, by_hand) = (rules("p"), json!({"removeRejectedPods": true}));
        let evict = json!({"overUse": "evict"});
        assert_eq!(after(None, &json!({}), Some(&p)), Some((json!("p"), evict.clone())));
        assert_eq!(after(None, &by_hand, Some(&p)), Some((json!("p"), evict.clone())));
        assert_eq!(after(Some("p"), &evict, Some(&p)), None, "nothing is new");
        assert_eq!(after(Some("q"), &evict, Some(&p)), Some((json!("p"), evict.clone())));
        assert_eq!(after(Some("p"), &by_hand, Some(&p)), Some((json!("p"), evict.clone())));
        assert_eq!(after(Some("p"), &evict, None), Some((Value::Null, json!({}))));
        assert_eq!(after(None, &by_hand, None), None, "what an admin wrote by hand stays");
    }
}
