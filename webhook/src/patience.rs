//! Whether a pod is decided on now, or once more is known: a pod's kind cannot be changed later, and what is not known yet is
//! heard within a moment. Pure.

use crate::admit::Admission;
use crate::supply_watch::Seen;
use kerf_core::contract::Slices;
use kerf_core::policy::Supply;
use std::time::Duration;

/// How long a pod is kept from an answer at most while the extender's next words may give it a better one. A word comes within
/// a tenth of a second and one write, on a busy machine later; the API server waits for 5 s.
pub(crate) const FOR_WORD: Duration = Duration::from_secs(2);

/// What is decided by what was seen.
pub(crate) struct Weighed {
    /// What is answered now, or once nothing new was heard for so long.
    pub admission: Admission,
    /// What may make it another decision within [`FOR_WORD`].
    pub doubt: Option<Doubt>,
}

/// Why a decision is put off.
pub(crate) struct Doubt {
    /// The slices that may not be left.
    pub about: Slices<u32>,
    /// After what time the decision may be another by the time alone, if nothing new is heard.
    pub calm_in: Duration,
}

/// Decides by what was seen, `admit` being the decision by a supply. Who was in `doubt` about some slices is until it is calm:
/// words that tell of some of the others' pods and not of all speak too well of what is left.
///
/// What is certain is what the extender has said and what was admitted here since. Of other replicas' admissions the last are a
/// guess: it sends no pod to wait, and speaks against a kind only if nothing better is known in time, for it may be that they
/// admitted none. The last slice is left to those before this replica for as long again.
pub(crate) fn weigh(
    seen: &Seen,
    doubt: Option<&Slices<u32>>,
    admit: impl Fn(&Supply) -> Admission,
) -> Weighed {
    let sure = admit(&seen.supply);
    let Some(wanted) = sure.slices() else { return now(sure) };
    if let (Some(guess), Some(less)) = (&seen.guess, seen.by_guess(&wanted)) {
        let guessed = admit(&less);
        let speaks_against = !guessed.waits() && guessed.slices().as_ref() != Some(&wanted);
        let calm = if guess.awaits(&wanted) { Duration::ZERO } else { seen.calm };
        let enough = if speaks_against { seen.delay * 2 } else { seen.delay };
        if (speaks_against || doubt == Some(&wanted)) && calm < enough {
            let admission = if speaks_against { guessed } else { sure };
            let calm_in = enough.saturating_sub(calm);
            return Weighed { admission, doubt: Some(Doubt { about: wanted, calm_in }) };
        }
    }
    if seen.is_behind && sure.meets_full() {
        let best = admit(&seen.supply.wanted([].into()));
        let is_better = best.slices().as_ref() != Some(&wanted) || sure.waits() && !best.waits();
        if is_better {
            let doubt = Doubt { about: wanted, calm_in: FOR_WORD };
            return Weighed { admission: sure, doubt: Some(doubt) };
        }
    }
    now(sure)
}

fn now(admission: Admission) -> Weighed {
    Weighed { admission, doubt: None }
}
