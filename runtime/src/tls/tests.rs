use super::inspect::inspect;
use super::issue::issue;
use super::*;
use jiff::{SignedDuration, Timestamp};

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

fn days(days: i32) -> SignedDuration {
    SignedDuration::from_hours(24) * days
}

fn wanted() -> Wanted {
    Wanted {
        server_names: vec!["kerf-webhook.kerf-system.svc".into(), "127.0.0.1".into(), "::1".into()],
        client_name: Some("kube-scheduler".into()),
    }
}

fn fresh() -> Content {
    issue(&Content::new(), &wanted(), now()).unwrap()
}

fn unfit(content: &Content, wanted: &Wanted, at: Timestamp) -> String {
    inspect(content, wanted, at).unwrap_err().to_string()
}

#[test]
fn what_is_made_serves() {
    let material = inspect(&fresh(), &wanted(), now()).unwrap();
    assert!(material.client_key_pem.is_some());
    server_config(&material, Clients::Verified).unwrap();
}

#[test]
fn keys_are_not_in_debug_output() {
    let material = inspect(&fresh(), &wanted(), now()).unwrap();
    let text = format!("{material:?}");
    assert!(text.contains("BEGIN CERTIFICATE") && !text.contains("PRIVATE KEY"), "{text}");
}

#[test]
fn a_leaf_is_renewed_a_month_before_its_end_by_the_same_authority() {
    let first = fresh();
    assert!(inspect(&first, &wanted(), now() + days(330)).is_ok());
    let later = now() + days(340);
    assert!(unfit(&first, &wanted(), later).starts_with("tls.crt does not serve kerf-webhook"));
    let second = issue(&first, &wanted(), later).unwrap();
    assert_eq!(first["ca.crt"], second["ca.crt"]);
    assert_ne!(first["tls.crt"], second["tls.crt"]);
    assert!(inspect(&second, &wanted(), later).is_ok());
}

#[test]
fn an_authority_that_ends_is_trusted_until_its_leaves_are_gone() {
    let first = fresh();
    let later = now() + days(3400);
    let second = issue(&first, &wanted(), later).unwrap();
    assert_eq!(second["ca.crt"].matches("BEGIN").count(), 2);
    assert!(second["ca.crt"].ends_with(&first["ca.crt"]));
    assert!(inspect(&second, &wanted(), later).is_ok());
    let old_leaf = issue(&first, &Wanted { client_name: None, ..wanted() }, now()).unwrap();
    let mixed = Content::from([
        ("ca.crt".to_owned(), second["ca.crt"].clone()),
        ("tls.crt".to_owned(), old_leaf["tls.crt"].clone()),
        ("tls.key".to_owned(), old_leaf["tls.key"].clone()),
    ]);
    assert!(inspect(&mixed, &Wanted { client_name: None, ..wanted() }, now()).is_ok());
    let third = issue(&second, &wanted(), later + days(3400)).unwrap();
    assert_eq!(third["ca.crt"].matches("BEGIN").count(), 2);
}

#[test]
fn an_authority_that_has_ended_is_forgotten() {
    let second = issue(&fresh(), &wanted(), now() + days(4000)).unwrap();
    assert_eq!(second["ca.crt"].matches("BEGIN").count(), 1);
}

#[test]
fn content_that_does_not_serve_is_found() {
    let good = fresh();
    let without = |key: &str| {
        let mut content = good.clone();
        content.remove(key);
        content
    };
    let with = |key: &str, text: &str| {
        let mut content = good.clone();
        content.insert(key.to_owned(), text.to_owned());
        content
    };
    assert_eq!(unfit(&without("tls.crt"), &wanted(), now()), "tls.crt is missing");
    assert_eq!(unfit(&without("client.key"), &wanted(), now()), "client.key is missing");
    assert!(inspect(&without("client.key"), &Wanted { client_name: None, ..wanted() }, now()).is_ok());
    assert!(unfit(&with("ca.crt", "garbage"), &wanted(), now()).starts_with("ca.crt cannot be used"));
    let strange = fresh();
    assert!(
        unfit(&with("tls.key", &strange["tls.key"]), &wanted(), now()).contains("tls.key cannot be used")
    );
    assert!(unfit(&with("ca.crt", &strange["ca.crt"]), &wanted(), now()).contains("tls.crt does not serve"));

    let more = Wanted { server_names: vec!["10.0.0.7".into()], ..wanted() };
    assert!(unfit(&good, &more, now()).starts_with("tls.crt does not serve 10.0.0.7"));
    let other = Wanted { client_name: Some("somebody".into()), ..wanted() };
    assert_eq!(unfit(&good, &other, now()), "client.crt does not name somebody");
    let no_name = Wanted { server_names: vec!["no name".into()], ..wanted() };
    assert_eq!(unfit(&good, &no_name, now()), "\"no name\" is no DNS name and no IP address");
}

#[test]
fn unusable_content_is_replaced_whole() {
    let broken = fresh().into_keys().map(|key| (key, "garbage".to_owned())).collect();
    let content = issue(&broken, &wanted(), now()).unwrap();
    assert!(inspect(&content, &wanted(), now()).is_ok());
}
