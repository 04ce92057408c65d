//! Tests who holds what by the three sources, in any order of restarts.

use super::*;
use std::collections::BTreeSet;

const ONE: &str = "nvidia.com/mig-1g.10gb";

fn name() -> ResourceName {
    ONE.parse().unwrap()
}

fn device(id: &str) -> DeviceId {
    DeviceId::new(id)
}

/// The API server's pods, each of which requests one device.
fn pods(uids: &[&str]) -> NodePods {
    let pod = |uid: &&str| NodePod {
        key: PodKey::new("ns", *uid),
        admitted: true,
        names: BTreeMap::from([(name(), 1)]),
        inits: BTreeSet::from(["load".to_owned()]),
        requested: BTreeMap::new(),
        assigned: Vec::new(),
    };
    uids.iter().map(|uid| (PodUid::new(*uid), pod(uid))).collect()
}

fn listed(devices: &[(&str, &str)]) -> BTreeMap<DeviceId, Held> {
    let holder = |pod: &str| Holder { namespace: "ns".into(), pod: pod.into(), container: "main".into() };
    devices.iter().map(|(id, pod)| (device(id), Held { name: name(), holder: holder(pod) })).collect()
}

fn entry(id: &str, uid: &str, container: &str) -> Recorded {
    Recorded { uid: PodUid::new(uid), container: container.to_owned(), name: name(), device: device(id) }
}

fn account(asked: Instant, list: &[(&str, &str)], file: &[(&str, &str)]) -> Holders {
    let recorded = file.iter().map(|(id, uid)| entry(id, uid, "load")).collect();
    Holders { asked, held: listed(list), foreign: Vec::new(), recorded: Ok(recorded) }
}

#[test]
fn a_device_is_held_by_list_or_by_the_checkpoint_of_a_pod_that_lives() {
    let now = Instant::now();
    for (list, file, living, held) in [
        (&[("MIG-1", "a")][..], &[][..], &[][..], true),
        (&[], &[("MIG-1", "a")], &["a"], true),
        (&[], &[("MIG-1", "a")], &["b"], false),
        (&[], &[], &["a"], false),
    ] {
        let mut all = Account::default();
        all.take(account(now, list, file), Some(&pods(living)));
        assert_eq!(all.is_held(&device("MIG-1")), held, "{list:?} {file:?} {living:?}");
        assert_eq!(all.devices().count(), usize::from(held));
    }
}

#[test]
fn all_pods_of_the_checkpoint_count_as_alive_before_the_api_server_lists_pods() {
    let mut all = Account::default();
    all.take(account(Instant::now(), &[], &[("MIG-1", "a"), ("MIG-2", "ended")]), None);
    assert!(all.is_held(&device("MIG-1")) && all.is_held(&device("MIG-2")));
    all.take_pods(Some(&pods(&["a"])));
    assert!(all.is_held(&device("MIG-1")) && !all.is_held(&device("MIG-2")));
}

#[test]
fn the_last_container_holds_a_handed_on_device_in_any_order_of_the_file() {
    for [first, second] in [["load", "main"], ["main", "load"]] {
        let mut all = Account::default();
        let recorded = Ok([first, second].map(|container| entry("MIG-1", "a", container)).to_vec());
        let (held, foreign) = (BTreeMap::new(), Vec::new());
        all.take(Holders { asked: Instant::now(), held, foreign, recorded }, Some(&pods(&["a"])));
        assert_eq!(all.holder(&device("MIG-1")).unwrap().holder.container, "main");
    }
}

#[test]
fn an_allocation_counts_as_held_until_the_kubelet_shows_it_or_no_pod_lacks_one() {
    let (start, late) = (Instant::now(), Duration::from_mins(1));
    // Shown by List; by the checkpoint; by neither while a pod lacks a device; by neither while the pods are unknown;
    // rejected.
    for (list, file, living, goes_on) in [
        (&[("MIG-1", "a")][..], &[][..], Some(pods(&["a"])), false),
        (&[], &[("MIG-1", "a")], Some(pods(&["a"])), false),
        (&[], &[], Some(pods(&["a"])), true),
        (&[], &[], None, true),
        (&[], &[], Some(pods(&[])), false),
        (&[("MIG-2", "a")], &[], Some(pods(&["a"])), false),
    ] {
        let mut all = Account::default();
        all.allocated(name(), vec![device("MIG-1")], start);
        all.take(account(start, list, file), living.as_ref());
        assert!(all.is_held(&device("MIG-1")), "that account says nothing of it");
        all.take(account(start + SHOWN_TIMEOUT / 2, &[], &[]), living.as_ref());
        assert!(all.is_held(&device("MIG-1")), "the pod may not be known yet");
        all.take(account(start + late, list, file), living.as_ref());
        assert_eq!(all.look(start + late).1.is_some(), goes_on, "{list:?} {file:?} {living:?}");
        let is_shown = !list.is_empty() && list[0].0 == "MIG-1" || !file.is_empty();
        assert_eq!(all.is_held(&device("MIG-1")), goes_on || is_shown, "{list:?} {file:?} {living:?}");
    }
}

#[test]
fn the_kubelet_is_polled_until_the_checkpoint_has_the_uid_of_each_listed_holder() {
    let (mut all, start, one) = (Account::default(), Instant::now(), pods(&["a"]));
    let at = |seconds| start + Duration::from_secs(seconds);
    all.allocated(name(), vec![device("MIG-1")], start);
    all.take(account(at(1), &[("MIG-1", "a")], &[]), Some(&one));
    assert!(all.look(at(1)).1.is_some() && all.owner(&device("MIG-1")).is_none());
    all.take(account(at(2), &[("MIG-1", "a")], &[("MIG-1", "a")]), Some(&one));
    assert_eq!((all.look(at(2)), all.owner(&device("MIG-1"))), ((false, None), Some(&PodUid::new("a"))));
    // Of a pod that was deleted by force the checkpoint says nothing that counts.
    all.allocated(name(), vec![device("MIG-2")], at(3));
    for (seconds, goes_on) in [(4, true), (70, false)] {
        all.take(account(at(seconds), &[("MIG-2", "gone")], &[("MIG-2", "gone")]), Some(&one));
        assert_eq!(all.look(at(seconds)).1.is_some(), goes_on, "after {seconds} s");
    }
}

#[test]
fn an_earlier_entry_of_the_checkpoint_does_not_show_a_new_allocation() {
    let (mut all, start) = (Account::default(), Instant::now());
    let (both, one) = (pods(&["a", "b"]), pods(&["b"]));
    all.take(account(start, &[], &[("MIG-1", "a")]), Some(&both));
    // The kubelet has freed it and gives it to the next pod, before the agent learns that the first has ended.
    all.allocated(name(), vec![device("MIG-1")], start);
    let before_the_write = account(start + SHOWN_TIMEOUT / 2, &[], &[("MIG-1", "a")]);
    all.take(before_the_write, Some(&both));
    all.take_pods(Some(&one));
    assert!(all.is_held(&device("MIG-1")));
    all.take(account(start + SHOWN_TIMEOUT, &[], &[("MIG-1", "b")]), Some(&one));
    assert_eq!(all.owner(&device("MIG-1")), Some(&PodUid::new("b")));
    assert_eq!(all.look(start + SHOWN_TIMEOUT), (false, None));
}

#[test]
fn the_kubelet_is_polled_with_backoff_until_a_gone_pods_devices_are_free() {
    let (mut all, start) = (Account::default(), Instant::now());
    all.take(account(start, &[("MIG-1", "a")], &[]), Some(&pods(&[])));
    assert_eq!(all.look(start), (false, None));
    all.left(PodKey::new("ns", "a"), PodUid::new("a"), start);
    let (now, first) = all.look(start);
    assert!(!now && first == Some(start + FIRST_POLL_INTERVAL));
    let (now, second) = all.look(start + FIRST_POLL_INTERVAL);
    assert!(now && second == Some(start + FIRST_POLL_INTERVAL * 3));
    all.take(account(start + FIRST_POLL_INTERVAL * 2, &[], &[]), Some(&pods(&[])));
    assert_eq!(all.look(start + FIRST_POLL_INTERVAL * 3), (false, None));
    all.left(PodKey::new("ns", "b"), PodUid::new("b"), start);
    assert_eq!(all.look(start), (false, None), "it had nothing");
}

#[test]
fn an_unreadable_checkpoint_keeps_the_last_one_and_is_read_again() {
    let (mut all, start, living) = (Account::default(), Instant::now(), pods(&["a"]));
    let unread = |asked| Holders { recorded: Err("corrupt".into()), ..account(asked, &[], &[]) };
    all.take(unread(start), Some(&living));
    assert!(all.is_blind() && all.look(start).0);
    all.take(account(start, &[], &[("MIG-1", "a")]), Some(&living));
    assert!(!all.is_blind() && all.look(start) == (false, None));
    all.take(unread(start), Some(&living));
    assert!(!all.is_blind() && all.is_held(&device("MIG-1")) && all.unread() == Some("corrupt"));
    all.take_pods(Some(&pods(&[])));
    assert!(!all.is_held(&device("MIG-1")));
}
