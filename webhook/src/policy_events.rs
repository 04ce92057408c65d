//! Writes Events about policy files on the webhook's own configuration, for admins who read the cluster and not the
//! logs.
//!
//! No task depends on these Events. Each is a new one and not a repetition, because its text matters.

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kerf_core::keys;
use kerf_runtime::event_note::shortened;
use kerf_runtime::policy_file::{Errors, PolicyStore};
use kerf_runtime::shutdown::CancellationToken;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use kube::{Client, Resource};
use std::path::PathBuf;
use std::time::Duration;

/// The namespace of Events about cluster-wide objects. The API server accepts them in no other.
const NAMESPACE: &str = "default";

/// The number of tries for an Event, the wait after the first one, which then doubles, and the timeout of each.
const ATTEMPT_LIMIT: u32 = 5;
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
enum FileEvent {
    Refused(String),
    Loaded(PathBuf),
}

impl FileEvent {
    fn reason(&self) -> &'static str {
        match self {
            Self::Refused(_) => "PolicyRefused",
            Self::Loaded(_) => "PolicyLoaded",
        }
    }
}

pub(crate) async fn run(
    client: Client,
    configuration: String,
    policies: PolicyStore,
    stop: CancellationToken,
) {
    let mut errors = policies.subscribe();
    let mut reported = Errors::new();
    loop {
        let now = Errors::clone(&errors.borrow_and_update());
        for change in differences(&reported, &now) {
            stop.run_until_cancelled(write(&client, &configuration, &change)).await;
        }
        reported = now;
        match stop.run_until_cancelled(errors.changed()).await {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return,
        }
    }
}

fn differences(before: &Errors, now: &Errors) -> Vec<FileEvent> {
    let refused = now.iter().filter(|(path, error)| before.get(*path) != Some(error));
    let refused = refused.map(|(_, error)| FileEvent::Refused(error.clone()));
    let loaded = before.keys().filter(|path| !now.contains_key(*path));
    refused.chain(loaded.map(|path| FileEvent::Loaded(path.clone()))).collect()
}

async fn write(client: &Client, configuration: &str, change: &FileEvent) {
    let api = Api::<Event>::namespaced(client.clone(), NAMESPACE);
    let mut wait = FIRST_BACKOFF;
    for _ in 0..ATTEMPT_LIMIT {
        let regarding = regarding(client, configuration).await;
        let event = event(change, regarding, Timestamp::now());
        let error = match tokio::time::timeout(EVENT_TIMEOUT, api.create(&PostParams::default(), &event))
            .await
        {
            Ok(Ok(_)) => return,
            // A retry would be rejected again, unless the API server only throttled this one (429).
            Ok(Err(kube::Error::Api(status))) if (400..500).contains(&status.code) && status.code != 429 => {
                tracing::warn!(reason = event.reason, error = %status, "an Event is refused");
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::debug!(reason = event.reason, error, "an Event was not written; trying again");
        tokio::time::sleep(wait).await;
        wait *= 2;
    }
    tracing::warn!(?change, "an Event was not written");
}

/// The configuration, with its UID if that can be read, because `kubectl describe` searches for it.
async fn regarding(client: &Client, configuration: &str) -> ObjectReference {
    let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let found = tokio::time::timeout(EVENT_TIMEOUT, api.get(configuration)).await;
    ObjectReference {
        api_version: Some(MutatingWebhookConfiguration::api_version(&()).into_owned()),
        kind: Some(MutatingWebhookConfiguration::kind(&()).into_owned()),
        name: Some(configuration.to_owned()),
        uid: found.ok().and_then(Result::ok).and_then(|found| found.metadata.uid),
        ..ObjectReference::default()
    }
}

fn event(change: &FileEvent, regarding: ObjectReference, now: Timestamp) -> Event {
    let (type_, note) = match change {
        FileEvent::Refused(error) => ("Warning", format!("{error}; what was in force before stays in force")),
        FileEvent::Loaded(path) => ("Normal", format!("{}: good again", path.display())),
    };
    let text = |text: &str| Some(text.to_owned());
    Event {
        metadata: ObjectMeta {
            generate_name: text("kerf-policy-"),
            namespace: text(NAMESPACE),
            ..ObjectMeta::default()
        },
        action: text("ReadPolicy"),
        event_time: Some(MicroTime(now)),
        note: Some(shortened(note)),
        reason: text(change.reason()),
        regarding: Some(regarding),
        reporting_controller: Some(format!("{}/webhook", keys::GROUP)),
        reporting_instance: text("webhook"),
        type_: text(type_),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_runtime::event_note::LONGEST_NOTE;
    use std::collections::BTreeSet;

    fn errors(errors: &[(&str, &str)]) -> Errors {
        errors.iter().map(|(path, error)| (PathBuf::from(path), (*error).to_owned())).collect()
    }

    #[test]
    fn each_mistake_gets_one_event_and_its_end_another() {
        let (first, second) = (errors(&[("a", "x"), ("b", "y")]), errors(&[("b", "z")]));
        assert_eq!(
            differences(&Errors::new(), &first),
            [FileEvent::Refused("x".into()), FileEvent::Refused("y".into())]
        );
        assert_eq!(differences(&first, &first), []);
        assert_eq!(
            differences(&first, &second),
            [FileEvent::Refused("z".into()), FileEvent::Loaded("a".into())]
        );
    }

    #[test]
    fn a_long_mistake_fits_into_an_event() {
        let event =
            event(&FileEvent::Refused("ä".repeat(2000)), ObjectReference::default(), Timestamp::UNIX_EPOCH);
        let note = event.note.unwrap();
        assert!(note.len() <= LONGEST_NOTE && note.ends_with('…'));
        assert_eq!(
            (event.type_.as_deref(), event.reason.as_deref()),
            (Some("Warning"), Some("PolicyRefused"))
        );
    }

    #[test]
    fn the_documentation_has_a_row_for_every_reason_and_for_no_other() {
        let all = [FileEvent::Refused(String::new()), FileEvent::Loaded(PathBuf::new())];
        // A new variant does not compile until it is listed here and above.
        let number = |change: &FileEvent| match change {
            FileEvent::Refused(_) => 0,
            FileEvent::Loaded(_) => 1,
        };
        assert_eq!(all.iter().map(number).collect::<Vec<_>>(), [0, 1]);
        let text = include_str!("../../docs/events.md");
        let rows = text.lines().filter(|line| line.contains("| webhook |"));
        let documented: BTreeSet<&str> = rows.filter_map(|line| line.split('`').nth(1)).collect();
        assert_eq!(documented, all.iter().map(FileEvent::reason).collect());
    }
}
