use super::mine::LIFETIME;
use super::*;
use kerf_core::testing::request;
use std::collections::BTreeMap;

const MIG: &str = "nvidia.com/mig-1g.10gb";
const ME: &str = "me";

fn name(text: &str) -> ResourceName {
    text.parse().unwrap()
}

fn demand(epoch: u64, pending: u32, arrived: u64) -> Demand {
    let arrived = [(ME.to_owned(), [(name(MIG), arrived)].into())].into();
    Demand { pending: [(name(MIG), pending)].into(), arrived, ..Demand::of(epoch) }
}

/// The same after another replica has admitted as many as this.
fn beside_another(demand: Demand, arrived: u64) -> Demand {
    let mut all = demand.arrived;
    all.insert("other".to_owned(), [(name(MIG), arrived)].into());
    Demand { arrived: all, ..demand }
}

/// What a pod wants.
fn one() -> Slices<u32> {
    [(name(MIG), 1)].into()
}

fn pending(recent: &mut Recent, now: Instant) -> u32 {
    recent.pass(now);
    recent.pending().get(&name(MIG)).copied().unwrap_or(0)
}

#[test]
fn an_admission_counts_until_the_extender_has_seen_the_pod() {
    let (mut recent, now) = (Recent::of(ME), Instant::now());
    recent.published(Some(demand(1, 2, 10)), now);
    recent.admitted(&request(MIG, 2), now);
    recent.admitted(&request(MIG, 1), now);
    assert_eq!(pending(&mut recent, now), 5);
    // Two slices have come, and one of those that waited has got its.
    recent.published(Some(demand(1, 3, 12)), now);
    assert_eq!(pending(&mut recent, now), 4);
    recent.published(Some(demand(1, 0, 13)), now);
    assert_eq!(pending(&mut recent, now), 0);
}

#[test]
fn how_late_the_extender_tells_of_a_pod_is_known() {
    let (mut recent, now) = (Recent::of(ME), Instant::now());
    let second = Duration::from_secs(1);
    recent.published(Some(demand(1, 0, 10)), now);
    assert!(recent.delay(now) < second);
    recent.admitted(&request(MIG, 1), now);
    recent.admitted(&request(MIG, 1), now + second);
    recent.published(Some(demand(1, 2, 12)), now + 2 * second);
    assert_eq!(recent.delay(now + 2 * second), 2 * second);
}

#[test]
fn an_admission_of_which_nobody_hears_is_forgotten() {
    let (mut recent, now) = (Recent::of(ME), Instant::now());
    recent.admitted(&request(MIG, 1), now);
    recent.admitted(&request(MIG, 1), now + LIFETIME);
    assert_eq!(pending(&mut recent, now + LIFETIME), 2);
    assert_eq!(pending(&mut recent, now + LIFETIME + Duration::from_millis(1)), 1);
    assert_eq!(pending(&mut recent, now), 1, "what is forgotten stays so");
}

#[test]
fn a_new_leader_counts_anew_and_a_former_one_is_not_heard() {
    let (mut recent, now) = (Recent::of(ME), Instant::now());
    recent.published(Some(demand(1, 0, 100)), now);
    recent.admitted(&request(MIG, 1), now);
    recent.published(Some(demand(2, 4, 300)), now);
    assert_eq!(pending(&mut recent, now), 5, "which pods it has seen is not known");
    recent.published(Some(demand(1, 0, 101)), now);
    assert_eq!(pending(&mut recent, now), 5);
    recent.published(Some(demand(2, 5, 301)), now);
    assert_eq!(pending(&mut recent, now), 5);
    recent.published(None, now);
    assert_eq!(pending(&mut recent, now), 0);
}

#[test]
fn names_do_not_answer_for_each_other() {
    let (mut recent, now) = (Recent::of(ME), Instant::now());
    recent.published(Some(demand(1, 0, 0)), now);
    recent.admitted(&request("nvidia.com/gpu-4gb", 1), now);
    recent.published(Some(demand(1, 1, 1)), now);
    assert_eq!(recent.pending(), [(name(MIG), 1), (name("nvidia.com/gpu-4gb"), 1)].into());
    assert_eq!(recent.version(), 1);
}

#[test]
fn what_another_replica_admitted_is_not_taken_for_its_own() {
    let (mut recent, now) = (Recent::of(ME), Instant::now());
    recent.published(Some(beside_another(demand(1, 0, 0), 0)), now);
    recent.admitted(&request(MIG, 2), now);
    recent.published(Some(beside_another(demand(1, 5, 0), 5)), now);
    assert_eq!(pending(&mut recent, now), 7, "the extender has seen none of the two");
    recent.published(Some(beside_another(demand(1, 6, 1), 5)), now);
    assert_eq!(pending(&mut recent, now), 7);
}

#[test]
fn each_replica_counts_what_others_may_have_admitted_as_it_did() {
    let (mut recent, now) = (Recent::of(ME), Instant::now());
    let guess = |recent: &mut Recent| recent.guess(now).map(|guess| guess.pending(&one())[&name(MIG)]);
    recent.admitted(&request(MIG, 2), now);
    assert_eq!(guess(&mut recent), None, "there is no extender");
    recent.published(Some(Demand::of(1)), now);
    assert_eq!(guess(&mut recent), Some(4));
    recent.published(Some(demand(2, 0, 4)), now);
    assert_eq!(guess(&mut recent), Some(4), "the extender may have heard of this one first");
    recent.published(Some(demand(3, 0, Demand::LATELY as u64)), now);
    assert_eq!(guess(&mut recent), None, "the API server asks this one alone");
    recent.published(Some(beside_another(demand(3, 3, Demand::LATELY as u64), 3)), now);
    assert_eq!(guess(&mut recent), Some(7));
}

/// The extender may hear of one replica's pods sooner than of another's.
#[test]
fn a_word_of_its_own_pods_gives_a_replica_no_part_of_what_others_may_have_taken() {
    let (mut recent, now) = (Recent::of(ME), Instant::now());
    let guess = |recent: &mut Recent, now| {
        recent.pass(now);
        recent.guess(now).unwrap().pending(&one())[&name(MIG)]
    };
    recent.published(Some(beside_another(demand(1, 0, 0), 0)), now);
    recent.admitted(&request(MIG, 7), now);
    assert_eq!(guess(&mut recent, now), 14);
    let told = now + Duration::from_millis(400);
    recent.published(Some(beside_another(demand(1, 7, 7), 0)), told);
    assert_eq!(guess(&mut recent, told), 7 + 7);
    recent.published(Some(beside_another(demand(1, 10, 7), 3)), told);
    assert_eq!(guess(&mut recent, told), 10 + 4);
    // Had it admitted as many, the extender would have told of them by now.
    let late = now + Duration::from_millis(801);
    assert_eq!(guess(&mut recent, late), 10);
}

#[test]
fn how_many_a_replica_has_ever_admitted_that_was_not_heard_of_for_long_is_no_news() {
    let (mut recent, now) = (Recent::of(ME), Instant::now());
    recent.published(Some(demand(1, 0, 0)), now);
    recent.admitted(&request(MIG, 2), now);
    recent.published(Some(beside_another(demand(1, 3, 2), 1000)), now);
    assert_eq!(recent.guess(now).unwrap().pending(&one())[&name(MIG)], 3 + 2);
}

/// The last slice is the first replica's while all are asked, also where none of them has admitted a pod lately.
#[test]
fn of_what_cannot_be_shared_each_leaves_one_to_those_before_it() {
    let now = Instant::now();
    let guess = |replica: &str, wanted: &Slices<u32>| {
        let mut recent = Recent::of(replica);
        recent.published(Some(beside_another(demand(1, 6, 3), 3)), now);
        let guess = recent.guess(now).unwrap();
        assert!(!guess.awaits(wanted), "nothing of it is on its way");
        guess.pending(wanted)[&name(MIG)]
    };
    assert_eq!((guess(ME, &one()), guess("other", &one())), (6, 7));
    assert_eq!(guess("other", &[(name("nvidia.com/gpu-4gb"), 1)].into()), 6);
}

/// However a burst is spread over the replicas.
#[test]
fn replicas_share_what_is_left_and_no_more() {
    const ROOM: u32 = 15;
    for (replicas, of) in [(2, 1), (2, 5), (3, 2), (3, 3)] {
        let names: Vec<String> = (0..replicas).map(|number| format!("r{number}")).collect();
        let mut all: Vec<Recent> = names.iter().map(|name| Recent::of(name)).collect();
        let now = Instant::now();
        let mut arrived: BTreeMap<String, Slices<u64>> =
            names.iter().map(|replica| (replica.clone(), Slices::new())).collect();
        let mut given = 0;
        for pod in 0..100_usize {
            let document = || {
                let pending = [(name(MIG), given)].into();
                Demand { pending, arrived: arrived.clone(), ..Demand::of(1) }
            };
            // Every 31 pods the extender speaks; all replicas but the first get `of` pods for one of the first.
            if pod % 31 == 0 {
                for recent in &mut all {
                    recent.published(Some(document()), now);
                }
            }
            let who = if pod % (of + 1) == 0 { 0 } else { 1 + pod % (replicas - 1) };
            let wanted = all[who].guess(now).unwrap().pending(&one())[&name(MIG)];
            if wanted < ROOM {
                all[who].admitted(&request(MIG, 1), now);
                *arrived.get_mut(&names[who]).unwrap().entry(name(MIG)).or_default() += 1;
                given += 1;
            }
        }
        assert_eq!(given, ROOM, "{replicas} replicas");
    }
}
