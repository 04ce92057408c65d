use super::*;
use crate::contract::Peer;
use crate::testing::{gpu_uuid, node_status};
use proptest::prelude::*;
use proptest::sample::subsequence;

/// GPUs with `nvlinks` NVLinks between each pair.
fn linked(count: usize, nvlinks: impl Fn(u32, u32) -> u32) -> Closeness {
    let mut gpus = node_status(&vec!["T4-16GB"; count]).gpus;
    for gpu in &mut gpus {
        let more = gpu.index + 1..u32::try_from(count).unwrap();
        let peer = |index| Peer { index, nvlinks: nvlinks(gpu.index, index), pcie: None };
        gpu.peers = more.map(peer).collect();
    }
    Closeness::from_gpus(&gpus)
}

/// Islands of four GPUs with twelve links between each pair.
fn islands(count: usize) -> Closeness {
    linked(count, |one, other| if one / 4 == other / 4 { 12 } else { 0 })
}

/// NVIDIA DGX-1 with V100: a hybrid cube mesh, as `nvidia-smi topo -m` prints it.
fn dgx_1() -> Closeness {
    const LINKS: [[u32; 8]; 8] = [
        [0, 1, 1, 2, 2, 0, 0, 0],
        [1, 0, 2, 1, 0, 2, 0, 0],
        [1, 2, 0, 2, 0, 0, 1, 0],
        [2, 1, 2, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 1, 1, 2],
        [0, 2, 0, 0, 1, 0, 2, 1],
        [0, 0, 1, 0, 1, 2, 0, 2],
        [0, 0, 0, 1, 2, 1, 2, 0],
    ];
    linked(8, |one, other| LINKS[one as usize][other as usize])
}

#[test]
fn more_links_are_closer_than_fewer_and_any_link_than_a_bridge() {
    let mut gpus = node_status(&["T4-16GB"; 2]).gpus;
    let mut scores = |nvlinks, pcie| {
        gpus[0].peers = vec![Peer { index: 1, nvlinks, pcie }];
        (score(&gpus[0], &gpus[1]), score(&gpus[1], &gpus[0]))
    };
    let bridge = Some(PcieAncestor::HostBridge);
    assert_eq!(scores(4, bridge), (430, 430));
    assert_eq!(scores(1, bridge), (130, 130));
    assert_eq!(scores(0, Some(PcieAncestor::SingleSwitch)), (50, 50));
    assert_eq!(scores(0, Some(PcieAncestor::MultipleSwitches)), (40, 40));
    assert_eq!(scores(0, None), (20, 20), "of one NUMA node");
    gpus[1].numa_node = Some(1);
    assert_eq!(score(&gpus[0], &gpus[1]), 10);
    assert_eq!(score(&gpus[0], &gpus[0]), 0);
}

#[test]
fn sets_are_counted() {
    for (all, count, number) in
        [(8, 1, 8), (8, 4, 70), (8, 8, 1), (12, 6, 924), (16, 4, 1_820), (16, 13, 560), (128, 127, 128)]
    {
        assert_eq!(sets(all, count), number, "{count} of {all}");
    }
    assert!(sets(128, 64) > SETS_LIMIT);
}

#[test]
fn several_gpus_come_from_one_island() {
    let two = islands(8);
    for (free, count, chosen) in [
        (&[0, 1, 2, 3, 4, 5, 6, 7][..], 2, &[0, 1][..]),
        (&[3, 4, 5], 2, &[4, 5]),
        (&[0, 1, 4, 5, 6], 2, &[0, 1]),
        (&[0, 1, 2, 5, 6], 2, &[5, 6]),
        (&[0, 4, 5, 6, 7], 4, &[4, 5, 6, 7]),
        (&[0, 1, 2, 4, 5, 6, 7], 3, &[0, 1, 2]),
        (&[0, 1, 4], 3, &[0, 1, 4]),
        (&[0, 1], 3, &[0, 1]),
    ] {
        assert_eq!(two.closest(&[], free, count), chosen, "{count} of {free:?}");
    }
}

#[test]
fn one_gpu_breaks_up_no_island_while_another_is_free() {
    let two = islands(8);
    for (free, chosen) in [(&[0, 1, 2, 3, 5][..], 5), (&[0, 1, 4, 5, 6], 0), (&[0, 1, 2, 3, 4, 5, 6], 4)] {
        assert_eq!(two.closest(&[], free, 1), [chosen], "of {free:?}");
    }
}

#[test]
fn peers_of_taken_gpus_are_chosen() {
    assert_eq!(islands(8).closest(&[5], &[0, 1, 2, 6, 7], 2), [6, 7]);
}

#[test]
fn links_within_a_set_are_not_cut() {
    // GPUs 1 and 2 are as close to each other as 3 and the taken GPU 0, and no set cuts a link.
    let node = linked(5, |one, other| if matches!((one, other), (1, 2) | (0, 3)) { 2 } else { 0 });
    assert_eq!(node.closest(&[0], &[1, 2, 3, 4], 2), [1, 2]);
}

#[test]
fn gpus_have_the_numbers_of_the_list() {
    let numbers = |closeness: &Closeness| [0, 3, 8].map(|gpu| closeness.number(&gpu_uuid(gpu)));
    assert_eq!(numbers(&islands(8)), [Some(0), Some(3), None]);
    assert_eq!(numbers(&Closeness::default()), [None; 3]);
}

#[test]
fn a_gpu_of_unknown_number_is_close_to_none() {
    assert_eq!(islands(8).closest(&[], &[70, 0, 71], 1), [70]);
}

#[test]
fn the_most_links_count_without_islands() {
    let mesh = dgx_1();
    assert_eq!(mesh.closest(&[], &[0, 1, 2, 3, 4, 5, 6, 7], 2), [0, 3], "two links, not one");
    assert_eq!(mesh.closest(&[], &[0, 1, 2, 5], 2), [1, 5], "1 and 2 have two as well, and cut off more");
    assert_eq!(mesh.closest(&[], &[0, 1, 2, 3, 4, 5, 6, 7], 4), [0, 1, 2, 3]);
}

#[test]
fn the_pci_bus_and_the_numa_node_count_without_nvlinks() {
    let mut gpus = node_status(&["T4-16GB"; 6]).gpus;
    for (gpu, node) in gpus.iter_mut().zip([0, 1, 0, 1, 1, 1]) {
        gpu.numa_node = Some(node);
    }
    assert_eq!(Closeness::from_gpus(&gpus).closest(&[], &[0, 1, 2, 3], 2), [0, 2], "one NUMA node");
    for (one, index, pcie) in [
        (1, 3, PcieAncestor::HostBridge),
        (1, 4, PcieAncestor::MultipleSwitches),
        (4, 5, PcieAncestor::SingleSwitch),
    ] {
        gpus[one].peers.push(Peer { index, nvlinks: 0, pcie: Some(pcie) });
    }
    let closeness = Closeness::from_gpus(&gpus);
    assert_eq!(closeness.closest(&[], &[0, 1, 2, 3], 2), [1, 3]);
    assert_eq!(closeness.closest(&[], &[0, 1, 2, 3, 4], 2), [1, 4]);
    assert_eq!(closeness.closest(&[], &[0, 1, 2, 3, 4, 5], 2), [4, 5]);
}

#[test]
fn equal_pairs_are_taken_in_order() {
    for alike in [linked(8, |_, _| 18), linked(1, |_, _| 0), linked(2, |_, _| 4), Closeness::from_gpus(&[])] {
        assert!(!alike.distinguishes_pairs());
        assert_eq!(alike.closest(&[], &[3, 1, 2], 2), [3, 1]);
    }
}

#[test]
fn islands_among_sixteen_gpus_are_found() {
    let four = islands(16);
    let all: Vec<usize> = (0..16).collect();
    assert_eq!(four.closest(&[], &all, 4), [0, 1, 2, 3]);
    let shuffled = [15, 4, 8, 1, 9, 14, 0, 5, 10, 13, 6, 2, 11, 7, 3, 12];
    assert_eq!(sets(16, 8), 12_870, "more than are compared each with each");
    assert_eq!(four.closest(&[], &shuffled, 8), [15, 4, 14, 5, 13, 6, 7, 12]);
}

/// The members of `of` whose bits are set.
fn members(of: &[usize], bits: u32) -> Vec<usize> {
    of.iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1).map(|(_, gpu)| *gpu).collect()
}

/// The sum over the pairs within a set, and over the pairs between the set and the GPUs that are left.
fn worth(links: &[[u32; 16]], taken: &[usize], candidates: &[usize], set: &[usize]) -> (u32, u32) {
    let together = [taken, set].concat();
    let link = |one: usize, other: usize| links[one.min(other)][one.max(other)];
    let within = together.iter().flat_map(|one| {
        together.iter().filter(move |other| *other < one).map(move |other| link(*one, *other))
    });
    let left = candidates.iter().filter(|gpu| !set.contains(gpu));
    let cut = left.flat_map(|left| set.iter().map(move |gpu| link(*gpu, *left)));
    (within.sum(), cut.sum())
}

proptest! {
    #[test]
    fn the_chosen_set_has_the_highest_score_and_then_the_fewest_cut_links(
        links in prop::collection::vec(prop::array::uniform16(0_u32..5), 16),
        (taken, free) in (0_usize..3, subsequence((0..16).collect::<Vec<usize>>(), 0..10))
            .prop_map(|(taken, gpus)| {
                let taken = taken.min(gpus.len());
                (gpus[..taken].to_vec(), gpus[taken..].to_vec())
            }),
        count in 0_usize..6,
    ) {
        let closeness = linked(16, |one, other| links[one as usize][other as usize]);
        let chosen = closeness.closest(&taken, &free, count);
        prop_assert_eq!(chosen.len(), count.min(free.len()));
        prop_assert!(chosen.is_sorted() && chosen.windows(2).all(|pair| pair[0] != pair[1]));
        prop_assert!(chosen.iter().all(|gpu| free.contains(gpu)));
        let value = |set: &[usize]| {
            let (within, cut) = worth(&links, &taken, &free, set);
            (within, Reverse(cut))
        };
        let others = (0_u32..1 << free.len()).map(|bits| members(&free, bits));
        let best = others.filter(|set| set.len() == chosen.len()).map(|set| value(&set)).max();
        prop_assert_eq!(Some(value(&chosen)), best);
        let reversed: Vec<usize> = free.iter().rev().copied().collect();
        prop_assert_eq!(value(&closeness.closest(&taken, &reversed, count)), value(&chosen));
    }

    #[test]
    fn a_set_of_many_gpus_is_no_worse_than_the_first_candidates(
        links in prop::collection::vec(prop::array::uniform16(0_u32..5), 16),
        count in 5_usize..16,
    ) {
        let closeness = linked(16, |one, other| links[one as usize][other as usize]);
        let all: Vec<usize> = (0..16).collect();
        let chosen = closeness.closest(&[], &all, count);
        prop_assert_eq!(chosen.len(), count);
        prop_assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(worth(&links, &[], &all, &chosen).0 >= worth(&links, &[], &all, &all[..count]).0);
    }
}
