//! Which way of sharing a GPU serves a workload, and with how many copies.
//!
//! For each kind the most tenants that fulfil the wish are computed. The preferred one among those within 10 % of the
//! highest throughput is chosen ([`Why::Preferred`]).

use super::candidate::{Candidate, candidates};
use super::{Advice, PassedOver, Supply, Why, Wish};
use crate::kind::Kind;
use std::collections::BTreeMap;
use thiserror::Error;

/// Tenants with a lower duty seldom meet. (The serving pods of public traces are busy for 6.5 %.)
const SELDOM: f64 = 0.1;

/// A throughput of this part of the highest one counts as equally good.
const AS_GOOD: f64 = 0.9;

/// The usual order, because tenants side by side have the most throughput, isolation costs some of it, and turns gain
/// nothing.
const USUAL: [Kind; 4] = [Kind::Mps, Kind::Mig, Kind::Whole, Kind::TimeSlicing];

/// The order for tenants that are seldom busy, because turns need no daemon, and no tenant ends with another's fault.
const SELDOM_BUSY: [Kind; 4] = [Kind::TimeSlicing, Kind::Mps, Kind::Mig, Kind::Whole];

/// Even the whole GPU does not serve the wish.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("this GPU does not serve the workload, shared or not; take another model, or ask for less")]
pub struct NoWay {
    /// The reason for each kind.
    pub passed_over: BTreeMap<Kind, PassedOver>,
}

/// Recommends how copies of this workload share this GPU.
///
/// # Errors
/// If one copy alone does not get enough of the GPU in any way that is offered.
pub fn recommend(wish: &Wish, supply: &Supply) -> Result<Advice, NoWay> {
    let order = if wish.workload.duty().get() < SELDOM { SELDOM_BUSY } else { USUAL };
    let (mut all, mut passed_over) = (Vec::new(), BTreeMap::new());
    for kind in order {
        match candidates(wish, supply, kind) {
            Ok(found) => all.extend(found),
            Err(reason) => {
                passed_over.insert(kind, reason);
            }
        }
    }
    let most = all.iter().map(done).fold(0.0, f64::max);
    let as_good = |candidate: &Candidate| done(candidate) >= AS_GOOD * most;
    let Some(chosen) = all.iter().find(|candidate| as_good(candidate)) else {
        return Err(NoWay { passed_over });
    };
    for other in all.iter().filter(|other| kind(other) != kind(chosen)) {
        let reason = if as_good(other) { PassedOver::Order } else { PassedOver::LessDone };
        // With several MIG profiles the best result counts for MIG.
        let known = passed_over.entry(kind(other)).or_insert(reason);
        *known = if reason == PassedOver::Order { reason } else { *known };
    }
    Ok(advice(chosen, why(chosen, &all), passed_over))
}

fn kind(candidate: &Candidate) -> Kind {
    candidate.technology.kind()
}

fn done(candidate: &Candidate) -> f64 {
    candidate.throughput().per_second()
}

fn why(chosen: &Candidate, all: &[Candidate]) -> Why {
    if all.iter().all(|c| kind(c) == kind(chosen)) {
        Why::OnlyOne
    } else if all.first().is_some_and(|first| kind(first) == kind(chosen)) {
        Why::Preferred
    } else {
        Why::MostDone
    }
}

fn advice(chosen: &Candidate, why: Why, passed_over: BTreeMap<Kind, PassedOver>) -> Advice {
    Advice {
        technology: chosen.technology,
        tenants: chosen.tenants,
        bound: chosen.bound,
        each: chosen.each,
        throughput: chosen.throughput(),
        why,
        passed_over,
    }
}
