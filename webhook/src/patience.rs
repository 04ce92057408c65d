//! Whether a pod is decided on now, or once more is known: a pod's kind cannot be changed later, and what is not known yet is
//! heard within a moment. Pure.

use crate::admit::Admission;
use crate::supply_watch::Seen;
use kerf_core::policy::Supply;
use std::time::Duration;

/// How long a pod is kept from an answer at most while the extender's next word may give it a better one. A word comes within a
/// tenth of a second and one write, on a busy machine later; the API server waits for 5 s.
pub(crate) const FOR_WORD: Duration = Duration::from_secs(1);

/// How long a replica leaves the last free slice to those that come before it: as long as it takes until the extender's word of
/// what they have admitted is here.
pub(crate) const FOR_TURN: Duration = Duration::from_millis(400);

/// What is decided by what was seen.
pub(crate) struct Weighed {
    /// What is answered now, or once nothing new was heard for so long.
    pub admission: Admission,
    /// How long after it was asked for the answer may be given; zero for one that holds.
    pub after: Duration,
}

/// Decides by what was seen, `admit` being the decision by a supply.
///
/// What is certain is what the extender has said and what was admitted here since. Of other replicas' admissions the last are a
/// guess: it sends no pod to wait, and speaks against a kind only if nothing better is known in time, for it may be that they
/// admitted none. Then it is heard, so that nobody waits for a full kind while another has room.
pub(crate) fn weigh(seen: &Seen, admit: impl Fn(&Supply) -> Admission) -> Weighed {
    let sure = admit(&seen.supply);
    let Some(wanted) = sure.slices() else { return now(sure) };
    if let (Some(guess), Some(less)) = (&seen.guess, seen.by_guess(&wanted)) {
        let guessed = admit(&less);
        if !guessed.waits() && guessed.slices().as_ref() != Some(&wanted) {
            return match guess.awaits(&wanted) {
                true => Weighed { admission: guessed, after: FOR_WORD },
                false => Weighed { admission: sure, after: FOR_TURN },
            };
        }
    }
    if seen.is_behind && sure.meets_full() {
        let best = admit(&seen.supply.wanted([].into()));
        let is_better = best.slices().as_ref() != Some(&wanted) || sure.waits() && !best.waits();
        if is_better {
            return Weighed { admission: sure, after: FOR_WORD };
        }
    }
    now(sure)
}

fn now(admission: Admission) -> Weighed {
    Weighed { admission, after: Duration::ZERO }
}
