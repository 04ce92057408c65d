use super::issue::{Step, step};
use super::*;
use jiff::{SignedDuration, Timestamp};

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

fn wanted() -> Wanted {
    Wanted {
        server_names: vec!["kerf-webhook.kerf-system.svc".into(), "127.0.0.1".into(), "::1".into()],
        client_name: Some("kube-scheduler".into()),
    }
}

/// One day for leaves and ninety days for authorities.
fn ages() -> Lifetimes {
    Lifetimes::new(DAY, DAY * 90).unwrap()
}

fn next(before: &Content, wanted: &Wanted, trust: Trust<'_>, now: Timestamp) -> Step {
    step(before, wanted, &Rotation { ages: ages(), trust, now }).unwrap()
}

/// The step for clients that trust the Secret's authorities.
fn after(before: &Content, at: Timestamp) -> Step {
    next(before, &wanted(), Trust::Only(&before["ca.crt"]), at)
}

fn fresh() -> Content {
    next(&Content::new(), &wanted(), Trust::Only(""), now()).content
}

fn count(content: &Content, key: &str) -> usize {
    content[key].matches("BEGIN").count()
}

fn serves(content: &Content, bundle: &str, at: Timestamp) -> bool {
    Material::from_content(content, &wanted()).unwrap().is_trusted_by(bundle, at)
}

#[test]
fn new_certificates_are_usable_and_stay_until_renewal_is_due() {
    let first = fresh();
    let material = Material::from_content(&first, &wanted()).unwrap();
    assert!(material.client_key_pem.is_some());
    server_config(&material, Clients::Verified).unwrap();
    assert!(material.is_trusted_by(&first["ca.crt"], now()));
    assert_eq!(material.end().unwrap(), now() + DAY);
    for later in [SignedDuration::ZERO, DAY / 2] {
        let same = after(&first, now() + later);
        assert_eq!((same.reasons, same.content), (Vec::<String>::new(), first.clone()));
    }
}

#[test]
fn keys_are_not_in_debug_output() {
    let material = Material::from_content(&fresh(), &wanted()).unwrap();
    let text = format!("{material:?}");
    assert!(text.contains("BEGIN CERTIFICATE") && !text.contains("PRIVATE KEY"), "{text}");
}

#[test]
fn a_leaf_is_renewed_after_two_thirds_of_its_life_by_the_same_authority() {
    let first = fresh();
    let second = after(&first, now() + DAY * 2 / 3);
    assert_eq!(second.reasons.len(), 2, "{:?}", second.reasons);
    assert!(second.reasons[0].starts_with("tls.crt ends at 2026-11-22T12:00:00Z"), "{:?}", second.reasons);
    assert_eq!(first["ca.crt"], second.content["ca.crt"]);
    assert_ne!(first["tls.crt"], second.content["tls.crt"]);
    assert!(after(&second.content, now() + DAY * 2 / 3).reasons.is_empty());
}

#[test]
fn a_new_authority_is_published_before_it_signs_and_the_old_one_stays_trusted() {
    let old = after(&fresh(), now() + DAY * 60 - DAY / 12).content;
    let (reported, due) = (old["ca.crt"].clone(), now() + DAY * 60);
    // The new authority is published: both authorities are there, with the leaf and its key as before.
    let both = next(&old, &wanted(), Trust::Only(&reported), due).content;
    assert_eq!((count(&both, "ca.crt"), count(&both, "ca.key")), (2, 2));
    assert!(both["ca.crt"].ends_with(&reported));
    assert_eq!(both["tls.crt"], old["tls.crt"]);
    // A leaf that is renewed while clients trust only the old authority is signed by the old one.
    let between = next(&both, &wanted(), Trust::Only(&reported), due + DAY).content;
    assert_ne!(between["tls.crt"], old["tls.crt"]);
    assert!(serves(&between, &reported, due + DAY));
    // The same while the configuration's caBundle is lost.
    assert!(serves(&next(&both, &wanted(), Trust::Only(""), due + DAY).content, &reported, due + DAY));
    // After the settling time the new authority signs, and the old one's key is gone.
    let signing = after(&both, due + SignedDuration::from_mins(1)).content;
    assert_eq!((count(&signing, "ca.crt"), count(&signing, "ca.key")), (2, 1));
    assert!(!serves(&signing, &reported, due + SignedDuration::from_mins(1)));
    assert!(serves(&signing, &both["ca.crt"], due + SignedDuration::from_mins(1)));
    assert!(after(&signing, due + SignedDuration::from_mins(2)).reasons.is_empty());
    // No leaf of the old authority can be valid after the authority's end.
    let last = after(&signing, now() + DAY * 90);
    assert_eq!(count(&last.content, "ca.crt"), 1);
    assert!(signing["ca.crt"].starts_with(&last.content["ca.crt"]));
}

#[test]
fn clients_that_read_the_secret_get_leaves_of_a_new_authority_at_once() {
    let first = fresh();
    let second = next(&first, &wanted(), Trust::AsRead, now() + DAY * 60).content;
    assert_eq!((count(&second, "ca.crt"), count(&second, "ca.key")), (2, 1));
    assert!(!serves(&second, &first["ca.crt"], now() + DAY * 60));
}

#[test]
fn after_a_long_absence_a_new_authority_signs_at_once() {
    for late in [DAY * 90 - SignedDuration::from_mins(1), DAY * 200] {
        let content = after(&fresh(), now() + late).content;
        assert!(serves(&content, &content["ca.crt"], now() + late));
        assert_eq!(Material::from_content(&content, &wanted()).unwrap().end().unwrap(), now() + late + DAY);
    }
}

#[test]
fn shortened_ages_take_effect_at_once() {
    let first = fresh();
    let short = Lifetimes::new(DAY / 24, DAY).unwrap();
    let rotation = Rotation { ages: short, trust: Trust::Only(&first["ca.crt"]), now: now() + DAY };
    let second = step(&first, &wanted(), &rotation).unwrap().content;
    assert_eq!(count(&second, "ca.crt"), 2);
    assert_eq!(Material::from_content(&second, &wanted()).unwrap().end().unwrap(), now() + DAY + DAY / 24);
}

#[test]
fn unusable_entries_are_replaced_with_the_reason() {
    let good = fresh();
    let strange = fresh();
    let why = |content: &Content, wanted: &Wanted| {
        let trust = Trust::Only(&good["ca.crt"]);
        let step = next(content, wanted, trust, now());
        assert!(next(&step.content, wanted, trust, now()).reasons.is_empty());
        step.reasons.join("; ")
    };
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
    let no_client = Wanted { client_name: None, ..wanted() };
    let more = Wanted { server_names: vec!["10.0.0.7".into()], ..wanted() };
    let other = Wanted { client_name: Some("somebody".into()), ..wanted() };
    assert_eq!(why(&without("tls.crt"), &wanted()), "tls.crt is missing");
    assert_eq!(why(&without("client.key"), &wanted()), "client.key is missing");
    assert_eq!(why(&without("client.key"), &no_client), "");
    assert!(why(&with("ca.crt", "garbage"), &wanted()).starts_with("ca.crt is renewed; ca.key is renewed"));
    assert!(why(&without("ca.key"), &wanted()).starts_with("ca.crt is renewed; ca.key is renewed"));
    assert!(why(&with("tls.key", &strange["tls.key"]), &wanted()).contains("tls.key cannot be used"));
    assert!(why(&with("tls.crt", &strange["tls.crt"]), &wanted()).contains("tls.key cannot be used"));
    assert!(why(&good, &more).starts_with("tls.crt does not serve 10.0.0.7"));
    assert_eq!(why(&good, &other), "client.crt does not name somebody");
}

#[test]
fn unknown_entries_stay_where_all_others_are_replaced() {
    let mut broken: Content = fresh().into_keys().map(|key| (key, "garbage".to_owned())).collect();
    broken.insert("note".to_owned(), "ours".to_owned());
    let content = next(&broken, &wanted(), Trust::Only(""), now()).content;
    assert!(serves(&content, &content["ca.crt"], now()));
    assert_eq!(content["note"], "ours");
}
