//! Tests what is listed, what is withheld, and when an id may be dropped.

use super::*;
use crate::node::holders::Holders;

fn name(text: &str) -> ResourceName {
    text.parse().unwrap()
}

const ONE: &str = "nvidia.com/mig-1g.10gb";
const TWO: &str = "nvidia.com/mig-1g.18gb";

fn devices(pairs: &[(&str, &str)]) -> DevicesByName {
    let mut all = DevicesByName::new();
    for (n, device) in pairs {
        all.entry(name(n)).or_default().insert(DeviceId::new(*device));
    }
    all
}

struct Scene {
    all: Advertised,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let mut all = Advertised::default();
        all.serve(&BTreeSet::from([name(ONE), name(TWO)]));
        Self { all, now: Instant::now() }
    }

    fn tick(&mut self) -> Instant {
        self.now += Duration::from_millis(1);
        self.now
    }

    fn offer(&mut self, pairs: &[(&str, &str)]) {
        let now = self.tick();
        self.all.offer(&devices(pairs), now);
    }

    fn saw(&mut self, pairs: &[(&str, &str)]) {
        let asked = self.tick();
        self.all.saw(Allocatable { asked, healthy: devices(pairs) });
    }
}

#[test]
fn a_device_is_acknowledged_when_the_kubelet_shows_it_after_it_was_listed() {
    let mut scene = Scene::new();
    let early = scene.tick();
    scene.offer(&[(ONE, "MIG-1")]);
    scene.all.saw(Allocatable { asked: early, healthy: devices(&[(ONE, "MIG-1")]) });
    assert!(!scene.all.is_acknowledged(name(ONE), &DeviceId::new("MIG-1")));
    scene.saw(&[(ONE, "MIG-1")]);
    assert!(scene.all.is_acknowledged(name(ONE), &DeviceId::new("MIG-1")));
    scene.all.register(BTreeSet::new());
    assert!(!scene.all.is_acknowledged(name(ONE), &DeviceId::new("MIG-1")));
}

#[test]
fn a_device_changes_its_name_only_after_the_kubelet_stopped_offering_the_old_one() {
    let mut scene = Scene::new();
    scene.offer(&[(ONE, "MIG-1")]);
    scene.saw(&[(ONE, "MIG-1")]);
    scene.offer(&[(TWO, "MIG-1")]);
    assert_eq!(scene.all.healthy(), devices(&[]), "healthy under neither name meanwhile");
    scene.saw(&[(ONE, "MIG-1")]);
    scene.offer(&[(TWO, "MIG-1")]);
    assert_eq!(scene.all.healthy(), devices(&[]));
    scene.saw(&[]);
    scene.offer(&[(TWO, "MIG-1")]);
    assert_eq!(scene.all.healthy(), devices(&[]), "first no pod is granted it under the old name");
    assert!(scene.all.revoked_at(scene.now));
    scene.offer(&[(TWO, "MIG-1")]);
    assert_eq!(scene.all.healthy(), devices(&[(TWO, "MIG-1")]));
}

#[test]
fn a_device_is_quiet_once_the_kubelet_stopped_offering_it() {
    let mut scene = Scene::new();
    let device = DeviceId::new("MIG-1");
    assert_eq!(scene.all.quiet_since(&device, scene.now), None, "the kubelet has not answered yet");
    scene.saw(&[]);
    assert!(scene.all.quiet_since(&device, scene.now).is_some());
    scene.offer(&[(ONE, "MIG-1")]);
    assert_eq!(scene.all.quiet_since(&device, scene.now), None);
    scene.saw(&[(ONE, "MIG-1")]);
    scene.offer(&[]);
    assert_eq!(scene.all.quiet_since(&device, scene.now), None, "not acknowledged yet");
    scene.saw(&[]);
    assert_eq!(scene.all.quiet_since(&device, scene.now), Some(scene.now));
}

#[test]
fn an_id_is_dropped_after_the_kubelets_acknowledgement_and_a_newer_list_of_holders() {
    let mut scene = Scene::new();
    let mut account = Account::default();
    scene.offer(&[(ONE, "MIG-1")]);
    scene.saw(&[(ONE, "MIG-1")]);
    scene.offer(&[]);
    let listed = |all: &Advertised| all.lists().flat_map(|(_, devices)| devices).count();
    let later = scene.now + DROP_TIMEOUT * 2;
    assert_eq!(scene.all.drop_ids(&account, later), None);
    assert_eq!(listed(&scene.all), 1, "listed as unhealthy until it is acknowledged");
    scene.saw(&[]);
    assert!(scene.all.drop_ids(&account, later).is_some());
    assert_eq!(listed(&scene.all), 1, "and until the holders are known");
    assert!(scene.all.wants_holders(&account, scene.now));
    let (held, foreign, recorded) = (BTreeMap::new(), Vec::new(), Ok(Vec::new()));
    account.take(Holders { asked: scene.tick(), held, foreign, recorded }, None);
    assert!(!scene.all.wants_holders(&account, scene.now));
    assert!(scene.all.drop_ids(&account, scene.now).is_some());
    assert_eq!(listed(&scene.all), 1, "and for a while");
    assert_eq!(scene.all.drop_ids(&account, later), None);
    assert_eq!(listed(&scene.all), 0);
}

#[test]
fn a_kubelet_that_never_showed_a_device_may_still_process_its_list() {
    let mut scene = Scene::new();
    let device = DeviceId::new("MIG-1");
    scene.saw(&[]);
    scene.offer(&[(ONE, "MIG-1")]);
    scene.offer(&[]);
    let withdrawn = scene.now;
    scene.saw(&[]);
    assert_eq!(scene.all.quiet_since(&device, scene.now), None, "it has shown the effect of neither list");
    let account = Account::default();
    assert!(!scene.all.wants_holders(&account, scene.now));
    let due = withdrawn + DROP_TIMEOUT;
    assert_eq!(scene.all.drop_ids(&account, scene.now), Some(due), "due for a check then");
    assert_eq!(scene.all.quiet_since(&device, due), Some(due), "it has had time for both");
    // The kubelet shows the device late, and then no longer: it has processed both lists.
    scene.saw(&[(ONE, "MIG-1")]);
    scene.saw(&[]);
    assert_eq!(scene.all.quiet_since(&device, scene.now), Some(scene.now));
}
