//! Keeps the match condition by which the API server selects the pods for this webhook as the policies in force need
//! it. An outage of the webhook must not stop pods that ask kerf for nothing.

mod due;

use crate::args::{Args, MatchConditions};
use due::Due;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use kerf_core::admission::MatchCondition;
use kerf_core::request::Dialect;
use kerf_runtime::policy_file::PolicyStore;
use kerf_runtime::shutdown::CancellationToken;
use kerf_runtime::telemetry::chain;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::oneshot;

/// The interval at which the configuration is compared with the policies in force. Others write it, too: each apply of
/// the manifests may make it too narrow, and for this long pods then bypass kerf. So it is as short as the interval at
/// which policy files are read.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which the condition must be wider than needed before it is narrowed. A changed `ConfigMap` reaches all
/// replicas within about a minute, and until then one replica may still need what another does not.
const NARROWING_DELAY: Duration = Duration::from_mins(2);

/// The field manager under which the API server records these writes.
const MANAGER: &str = "kerf-webhook-match-conditions";

#[derive(Debug, Error)]
enum WriteError {
    #[error("there is no MutatingWebhookConfiguration {0}; apply kerf's manifests")]
    Absent(String),
    #[error("failed to {verb} the MutatingWebhookConfiguration {name}")]
    Api { verb: &'static str, name: String, source: Box<kube::Error> },
}

pub(crate) struct MatchConditionReconciler {
    api: Api<MutatingWebhookConfiguration>,
    name: String,
    policies: PolicyStore,
    is_on: bool,
    due: Due,
}

impl MatchConditionReconciler {
    pub fn new(args: &Args, client: Client, policies: PolicyStore) -> Self {
        Self {
            api: Api::all(client),
            name: args.tls.configuration.clone(),
            policies,
            is_on: args.match_conditions == MatchConditions::Auto,
            due: Due::with_delay(NARROWING_DELAY),
        }
    }

    /// Keeps the condition up to date until `stop`. `first_try` is sent after the first try, whether it succeeded or
    /// not.
    pub async fn run(mut self, first_try: oneshot::Sender<()>, stop: CancellationToken) {
        let mut first_try = Some(first_try);
        let mut last_error = None::<String>;
        while self.is_on {
            let needed = MatchCondition::for_policies(&self.policies.current());
            let Some(written) = stop.run_until_cancelled(self.reconcile(&needed)).await else { return };
            let error = written.err().map(|error| chain(&error));
            if let Some(error) = error.as_ref().filter(|error| last_error.as_ref() != Some(error)) {
                tracing::warn!(error, "failed to update the match condition");
            }
            last_error = error;
            if let Some(first_try) = first_try.take() {
                let _ = first_try.send(());
            }
            if stop.run_until_cancelled(tokio::time::sleep(READ_INTERVAL)).await.is_none() {
                return;
            }
        }
    }

    async fn reconcile(&mut self, needed: &MatchCondition) -> Result<(), WriteError> {
        let failed = |verb, name: &str| {
            let name = name.to_owned();
            move |source| WriteError::Api { verb, name, source: Box::new(source) }
        };
        let read = self.api.get_opt(&self.name).await.map_err(failed("read", &self.name))?;
        let read = read.ok_or_else(|| WriteError::Absent(self.name.clone()))?;
        let Some(next) = self.due.next(condition(&read).as_ref(), needed, Instant::now()) else {
            // The ownership is given up in a later round, because the condition itself is more urgent.
            let Some(patch) = disowned(&read) else { return Ok(()) };
            let patch = Patch::Merge(patch);
            return match self.api.patch(&self.name, &params(), &patch).await {
                Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
                written => written.map(drop).map_err(failed("patch", &self.name)),
            };
        };
        let patch = Patch::Strategic(patch(&read, &next));
        match self.api.patch(&self.name, &params(), &patch).await {
            Ok(_) => {
                let dialects: Vec<_> = next.dialects().map(|dialect: Dialect| dialect.to_string()).collect();
                tracing::info!(
                    configuration = self.name,
                    dialects = dialects.join(", "),
                    "match condition written"
                );
                Ok(())
            }
            // This is no error, because the next round reads the other writer's version.
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
            Err(source) => Err(failed("patch", &self.name)(source)),
        }
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

/// The patch that removes this program as an owner of the condition. Otherwise the next server-side apply, of Helm or
/// kubectl, would conflict with it.
fn disowned(configuration: &MutatingWebhookConfiguration) -> Option<Value> {
    let all = configuration.metadata.managed_fields.as_ref()?;
    let others: Vec<_> = all.iter().filter(|entry| entry.manager.as_deref() != Some(MANAGER)).collect();
    let version = &configuration.metadata.resource_version;
    // An empty list would remove every owner. At least the creator of the object remains.
    (others.len() < all.len() && !others.is_empty())
        .then(|| json!({"metadata": {"resourceVersion": version, "managedFields": others}}))
}

/// The webhooks that have the condition, or must have it.
fn entries(configuration: &MutatingWebhookConfiguration) -> impl Iterator<Item = &MutatingWebhook> {
    configuration
        .webhooks
        .iter()
        .flatten()
        .filter(|webhook| webhook.name == MatchCondition::WEBHOOK || expression(webhook).is_some())
}

fn expression(webhook: &MutatingWebhook) -> Option<&str> {
    let mut conditions = webhook.match_conditions.iter().flatten();
    conditions.find(|condition| condition.name == MatchCondition::NAME).map(|found| found.expression.as_str())
}

/// The present condition; `None` if there is none, or if it is not one of kerf's.
fn condition(configuration: &MutatingWebhookConfiguration) -> Option<MatchCondition> {
    let pods = entries(configuration).find(|webhook| webhook.name == MatchCondition::WEBHOOK)?;
    MatchCondition::parse(expression(pods)?)
}

/// The patch that sets this condition, unless the configuration has changed since it was read. A strategic patch merges
/// webhooks and conditions by their names.
fn patch(configuration: &MutatingWebhookConfiguration, next: &MatchCondition) -> Value {
    let condition = json!({"name": MatchCondition::NAME, "expression": next.expression()});
    let webhooks: Vec<Value> = entries(configuration)
        .map(|webhook| json!({"name": webhook.name, "matchConditions": [condition]}))
        .collect();
    json!({
        "metadata": {"resourceVersion": configuration.metadata.resource_version}, "webhooks": webhooks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_entries_with_the_condition_are_patched() {
        let entry = |name: &str, conditions: Value| {
            json!({
                "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "matchConditions": conditions,
                "clientConfig": {"url": "https://127.0.0.1:9443/mutate"},
            })
        };
        let widest = json!([{"name": "asks-for-gpus", "expression": MatchCondition::widest().expression()}]);
        let configuration: MutatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": {"name": "kerf", "resourceVersion": "7"},
            "webhooks": [
                entry("pods.kerf.dev", widest.clone()),
                entry("templates.kerf.dev", json!([{"name": "has-a-template", "expression": "true"}])),
                entry("b.pods.kerf.dev", widest),
            ],
        }))
        .unwrap();
        assert_eq!(condition(&configuration), Some(MatchCondition::widest()));
        let narrow = MatchCondition::for_dialects(&[Dialect::Mig].into());
        let conditions = json!([{"name": "asks-for-gpus", "expression": narrow.expression()}]);
        assert_eq!(
            patch(&configuration, &narrow),
            json!({"metadata": {"resourceVersion": "7"}, "webhooks": [
                {"name": "pods.kerf.dev", "matchConditions": conditions},
                {"name": "b.pods.kerf.dev", "matchConditions": conditions},
            ]})
        );
    }
}
