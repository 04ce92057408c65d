//! nos (Nebuly), by our reading of its sources. It takes an idle instance of the profile first. Otherwise it searches
//! the first GPU for which some known list of counts keeps the counts in use and has one more of the profile. It
//! destroys all idle instances there and recuts the GPU to that list.
//!
//! The driver chooses the places: nos creates the new instances in one order after another until one works. Counts may
//! have no placement beside what is held; then the plan fails, and so does the request.
//!
//! The lists are those of `known_configs.go` for 80 GB, with two slips of the pen corrected. They have no `1g.20gb`: a
//! `2g.20gb` serves it. If several lists fit, nos takes an arbitrary one; here it is the first.
//!
//! The replay sees placements only. An instance that was cut ahead counts as created when it is first used, and one
//! that a recut destroyed counts as still idle. So the share of placements without a create flatters nos.

use super::Rule;
use super::slots::driver_order;
use crate::board::{Board, Gpu};
use crate::profile::{PerProfile, Profile};

#[derive(Debug)]
pub struct Nos;

/// The known lists of counts: `1g.10gb`, `1g.20gb`, `2g.20gb`, `3g.40gb`, `4g.40gb`, `7g.80gb`.
const KNOWN: [PerProfile<u32>; 12] = [
    [0, 0, 0, 0, 0, 1],
    [1, 0, 1, 0, 1, 0],
    [3, 0, 0, 0, 1, 0],
    [0, 0, 0, 2, 0, 0],
    [1, 0, 1, 1, 0, 0],
    [3, 0, 0, 1, 0, 0],
    [0, 0, 2, 1, 0, 0],
    [2, 0, 1, 1, 0, 0],
    [1, 0, 3, 0, 0, 0],
    [3, 0, 2, 0, 0, 0],
    [5, 0, 1, 0, 0, 0],
    [7, 0, 0, 0, 0, 0],
];

impl Rule for Nos {
    fn cut_as(&self, profile: Profile) -> Profile {
        if profile == Profile::OneTwenty { Profile::Two } else { profile }
    }

    fn choose(&self, board: &mut Board, profile: Profile) -> Option<(usize, u8)> {
        let idle = board.gpus().iter().enumerate().find_map(|(at, gpu)| Some((at, gpu.idle(profile)?)));
        if idle.is_some() {
            return idle;
        }
        let (at, missing) =
            board.gpus().iter().enumerate().find_map(|(at, gpu)| Some((at, missing(gpu, profile)?)))?;
        let created = create(board.gpus()[at].mask(), missing)?;
        board.recut(at, &created);
        created.iter().find(|(created, _)| *created == profile).map(|(_, start)| (at, *start))
    }
}

/// What must be created for the first known list that keeps what is in use and has one more of the profile.
fn missing(gpu: &Gpu, profile: Profile) -> Option<PerProfile<u32>> {
    let mut used = PerProfile::<u32>::default();
    for held in gpu.held() {
        used[held.index()] += 1;
    }
    let serves = |list: &&PerProfile<u32>| {
        list[profile.index()] > used[profile.index()]
            && list.iter().zip(&used).all(|(known, used)| known >= used)
    };
    let list = KNOWN.iter().find(serves)?;
    Some(std::array::from_fn(|n| list[n] - used[n]))
}

/// Creates these instances beside the memory slices of `mask`, each where the driver puts it. All orders of creation
/// are tried. With equal instances counted once there are at most twelve orders, fewer than the twenty after which nos
/// stops.
fn create(mask: u8, missing: PerProfile<u32>) -> Option<Vec<(Profile, u8)>> {
    if missing.iter().all(|count| *count == 0) {
        return Some(Vec::new());
    }
    Profile::ALL.into_iter().rev().filter(|profile| missing[profile.index()] > 0).find_map(|profile| {
        let start = *driver_order(profile).iter().find(|start| mask & profile.mask(**start) == 0)?;
        let mut rest = missing;
        rest[profile.index()] -= 1;
        let mut created = create(mask | profile.mask(start), rest)?;
        created.push((profile, start));
        Some(created)
    })
}
