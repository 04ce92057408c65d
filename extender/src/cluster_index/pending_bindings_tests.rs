use super::super::scene::Scene;
use super::super::tests::{index, known, reserve, uid};
use super::*;
use crate::cluster_index::REQUEST_LIMIT;
use std::collections::BTreeSet;

/// A pod whose Binding to `n` was sent, and whose sender stopped waiting at `now`.
fn posted(index: &mut Scene, pod: &str, now: Instant) {
    reserve(index, pod);
    index.bindings().send(&uid(pod), &PodKey::new("default", pod), now);
    index.take_effects();
}

/// The pods that a resync looks up.
fn asked(index: &mut Scene, now: Instant) -> BTreeSet<PodUid> {
    index.resync(now);
    index.take_effects().unconfirmed
}

#[test]
fn a_pod_is_looked_up_once_its_binding_can_no_longer_be_made() {
    let (mut index, now) = (index(), Instant::now());
    posted(&mut index, "a", now);
    assert!(asked(&mut index, now + REQUEST_LIMIT.mul_f32(0.9)).is_empty());
    index.looked_up(known("a", None), now + REQUEST_LIMIT.mul_f32(0.9));
    assert!(!index.reserving().give_up(&uid("a")), "it may yet be made");
    assert_eq!(asked(&mut index, now + REQUEST_LIMIT), [uid("a")].into());
    assert_eq!(index.reserving().reserved_pod(&uid("a")), Some(PodKey::new("default", "a")));
    index.looked_up(known("a", None), now + REQUEST_LIMIT);
    assert!(asked(&mut index, now + REQUEST_LIMIT * 2).is_empty(), "the watch shows it: it is no stray");
    assert!(index.place_of(&uid("a")).is_some(), "it keeps its place as long as it can use it");
    assert!(index.reserving().give_up(&uid("a")));
}

#[test]
fn a_lookup_finds_a_binding_that_was_made_after_all() {
    let (mut index, now) = (index(), Instant::now());
    posted(&mut index, "a", now);
    index.looked_up(known("a", Some("n")), now + REQUEST_LIMIT);
    assert!(asked(&mut index, now + REQUEST_LIMIT).is_empty());
    assert!(!index.reserving().give_up(&uid("a")), "it runs there");
}

#[test]
fn a_binding_that_is_sent_again_restarts_its_time() {
    let (mut index, now) = (index(), Instant::now());
    posted(&mut index, "a", now);
    index.bindings().send(&uid("a"), &PodKey::new("default", "a"), now + REQUEST_LIMIT);
    index.looked_up(known("a", None), now + REQUEST_LIMIT);
    assert!(!index.reserving().give_up(&uid("a")));
}

#[test]
fn a_pod_without_a_reservation_is_looked_up_too() {
    let (mut index, now) = (index(), Instant::now());
    let key = PodKey::new("default", "plain");
    index.bindings().send(&uid("plain"), &key, now);
    assert_eq!(asked(&mut index, now + REQUEST_LIMIT), [uid("plain")].into());
    assert_eq!(index.reserving().reserved_pod(&uid("plain")), Some(key));
    index.looked_up(known("plain", None).with(|template| template.request = None), now + REQUEST_LIMIT);
    assert!(asked(&mut index, now + REQUEST_LIMIT).is_empty());
    assert_eq!(index.place_of(&uid("plain")), None);
}

#[test]
fn a_refused_second_binding_leaves_the_first_one_open() {
    let (mut index, now) = (index(), Instant::now());
    let (key, again) = (PodKey::new("default", "a"), now + REQUEST_LIMIT / 2);
    posted(&mut index, "a", now);
    index.bindings().send(&uid("a"), &key, again);
    index.reserving().refuse_binding(&uid("a"), again);
    assert!(index.bindings().is_pending(&uid("a")), "the API server may still make the first Binding");
    assert!(!index.reserving().give_up(&uid("a")));
    assert_eq!(asked(&mut index, now + REQUEST_LIMIT), [uid("a")].into(), "the refused one lives no longer");
    index.looked_up(known("a", None), now + REQUEST_LIMIT);
    assert!(!index.bindings().is_pending(&uid("a")));
}

#[test]
fn a_pod_is_looked_up_when_the_last_of_two_open_bindings_is_over() {
    let (mut index, now) = (index(), Instant::now());
    posted(&mut index, "a", now);
    index.bindings().send(&uid("a"), &PodKey::new("default", "a"), now + REQUEST_LIMIT / 2);
    assert!(asked(&mut index, now + REQUEST_LIMIT).is_empty());
    assert_eq!(asked(&mut index, now + REQUEST_LIMIT.mul_f32(1.5)), [uid("a")].into());
}
