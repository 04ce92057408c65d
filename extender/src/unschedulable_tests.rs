use super::*;
use kerf_core::testing::request;

fn ask(resource: &str) -> Ask {
    Ask::read(Some(&request(resource, 1).to_json())).unwrap()
}

fn refuse(waiting: &mut Unschedulable, pod: &str, ask: &Ask, offered: &[&str]) -> Turn {
    waiting.refused(&pod.into(), &PodKey::new("default", pod), ask, offered, false);
    waiting.turn_of(&pod.into()).unwrap()
}

#[test]
fn pods_of_one_template_with_the_same_nodes_are_one_group() {
    let (small, large) = (ask("nvidia.com/mig-1g.10gb"), ask("nvidia.com/mig-3g.40gb"));
    let mut waiting = Unschedulable::default();
    let first = refuse(&mut waiting, "a", &small, &["n", "m"]);
    let alone = refuse(&mut waiting, "b", &large, &["n", "m"]);
    let next = refuse(&mut waiting, "c", &ask("nvidia.com/mig-1g.10gb"), &["m", "n"]);
    let elsewhere = refuse(&mut waiting, "d", &small, &["n"]);
    let firsts: BTreeSet<Turn> = waiting.first_of_each().collect();
    assert_eq!(firsts, [first, alone, elsewhere].into());
    assert_eq!([first, next, alone].map(|turn| waiting.next_of(turn)), [Some(next), None, None]);

    // A pod that is filtered and refused again keeps its turn.
    waiting.looked_at(&"a".into());
    assert_eq!((waiting.turn_of(&"a".into()), waiting.pods().count()), (None, 3));
    let again = refuse(&mut waiting, "a", &small, &["n", "m"]);
    assert_eq!((again, waiting.next_of(again), waiting.pods().count()), (first, Some(next), 4));
    waiting.call(next, &"n".into()).unwrap();
    waiting.note_held_back(again, true);
    let held_back: Vec<_> = waiting.pods().filter(|(_, held_back)| *held_back).collect();
    assert_eq!(held_back, [(&"a".into(), true)]);
    assert!(waiting.was_offered(&"a".into(), &"m".into()) && !waiting.was_offered(&"d".into(), &"m".into()));
    for pod in ["a", "b", "c", "d"] {
        waiting.forget(&pod.into());
    }
    assert!(waiting.groups.is_empty() && waiting.by_request.is_empty());
    assert!(waiting.turns.is_empty() && waiting.firsts.is_empty());
}

#[test]
fn a_pod_whose_requeue_failed_rejoins_its_group_after_a_pause() {
    let (small, now) = (ask("nvidia.com/mig-1g.10gb"), Instant::now());
    let mut waiting = Unschedulable::default();
    let turn = refuse(&mut waiting, "a", &small, &["n"]);
    waiting.call(turn, &"n".into()).unwrap();
    let other = refuse(&mut waiting, "b", &small, &["n"]);
    waiting.was_not_called(&"a".into(), now);
    waiting.call_again(now);
    assert_eq!(waiting.turn_of(&"a".into()), None, "not yet");
    waiting.call_again(now + RETRY_INTERVAL);
    assert_eq!(waiting.next_of(other), waiting.turn_of(&"a".into()));
    assert_eq!(waiting.take_changed(), ["n".into()].into());
}

#[test]
fn those_that_came_last_are_forgotten_beyond_the_most() {
    let small = ask("nvidia.com/mig-1g.10gb");
    let mut waiting = Unschedulable::default();
    for pod in 0..POD_LIMIT {
        refuse(&mut waiting, &pod.to_string(), &small, &["n"]);
    }
    waiting.refused(&"late".into(), &PodKey::new("default", "late"), &small, &["n"], false);
    assert_eq!((waiting.pods().count(), waiting.turn_of(&"late".into())), (POD_LIMIT, None));
    assert_eq!((waiting.firsts.len(), waiting.turn_of(&"0".into()).is_some()), (POD_LIMIT, true));
}
