//! Plays a cell: arms the fault, continues the churn until it has occurred, ends it, and waits until the node
//! has settled.

use std::time::{Duration, Instant};

use super::act::Act;
use super::cell::{Call, Cell, Dose, Lasts, Verdict};
use super::harm::Harm;
use super::scene::Scene;

/// How many probe periods a node may take to settle after a fault's end.
const PERIODS: u32 = 3;

/// After this many periods a node counts as never settling.
const NEVER: u32 = 20;

/// A node that keeps a failed slice for a pod settles later: a Binding may arrive for eighty seconds, then
/// the agent looks up the pod, releases the slice, and the pod is deleted.
const DOUBT_TIMEOUT: Duration = Duration::from_secs(100);

/// Timeout for the faulty call.
const CALL_TIMEOUT: Duration = Duration::from_mins(1);

/// Delay before another act shall make the agent call.
const ASK_INTERVAL: Duration = Duration::from_secs(3);

/// How long the agent may take to replace a hanging MPS daemon: three probes at intervals of five seconds
/// that take three seconds each, and a start.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(45);

/// How often a dose is given if its node settles late, because other load on the machine may be the cause.
const TRIES: usize = 3;

enum Outcome {
    /// The node settled in time.
    Settled(Duration),
    /// The time in which the node settled, and what was last missing.
    Late(Duration, Vec<String>),
    NotStruck,
}

/// The acts to try until the agent makes the call. If the first does not cause it, the others may. For some
/// commands MPS must begin, get larger shares, and end.
fn asks(call: &Call, first: Act, acts: &[Act]) -> Vec<Act> {
    let of_mps = matches!(call, Call::Mps(_)) || acts.contains(&Act::Share) && acts.contains(&Act::Slice);
    let round = [Act::Share, Act::Share, Act::Share, Act::Slice];
    let others = acts.iter().copied().filter(|act| *act != first);
    std::iter::once(first).chain(others).chain(round.into_iter().filter(|_| of_mps)).collect()
}

impl Scene {
    /// Plays the cell. `turn` selects the act to begin with.
    pub(super) async fn play(&mut self, cell: &Cell, turn: usize) -> anyhow::Result<Verdict> {
        let acts = self.calls.get(&cell.call).cloned().unwrap_or_default();
        let mut slowest = Duration::ZERO;
        for dose in cell.doses(&acts, turn) {
            let asks = asks(&cell.call, dose.act, &acts);
            let mut tries = 1;
            loop {
                self.node.note(&format!("{cell}: try {tries}, {dose:?}"));
                let outcome = self.give(&dose, &asks).await?;
                let wrong = self.wrongs();
                if !wrong.is_empty() {
                    return Ok(Verdict::Broken(wrong));
                }
                match outcome {
                    Outcome::NotStruck => return Ok(Verdict::NotStruck),
                    Outcome::Settled(within) => {
                        slowest = slowest.max(within);
                        break;
                    }
                    Outcome::Late(after, _) if self.lenient => {
                        slowest = slowest.max(after);
                        break;
                    }
                    Outcome::Late(_, _) if tries < TRIES => tries += 1,
                    Outcome::Late(after, why) => {
                        let act = dose.act;
                        let late = format!("settled only after {after:.1?}, by {act:?}; until then: {why:?}");
                        return Ok(Verdict::Broken(vec![late]));
                    }
                }
            }
        }
        Ok(Verdict::Sound(slowest))
    }

    /// All wrong behaviour since the last call.
    fn wrongs(&mut self) -> Vec<String> {
        let mut wrong = self.guard.take();
        wrong.append(&mut self.faults);
        wrong.append(&mut self.leader.wrongs);
        wrong
    }

    async fn give(&mut self, dose: &Dose, asks: &[Act]) -> anyhow::Result<Outcome> {
        let (deaths, holders, daemons) = (self.deaths, self.mps_holders(), self.daemons_started()?);
        let mut harm = Harm::new(dose, self.next_number());
        harm.begin(self)?;
        let struck = self.until_struck(&harm, asks).await?;
        if struck {
            self.suffer(&harm, dose.lasts, daemons).await?;
        }
        if struck && harm.kills_the_agent_by_hand() {
            self.node.kill_agent()?;
        }
        harm.end(self)?;
        self.node.note("the fault ends");
        if !struck {
            return Ok(Outcome::NotStruck);
        }
        // The node may look settled before the agent's death is noticed.
        while harm.kills_the_agent() && self.deaths == deaths {
            self.tick(true).await?;
            self.revive()?;
        }
        let period = harm.period(self.period);
        let outcome = self.settle(Instant::now(), period).await?;
        // The daemons' clients would die with them, so only faults of MPS commands may restart one that has
        // shares.
        if !harm.is_of_mps() && self.daemons_started()? != daemons {
            let still = self.mps_holders();
            let robbed: Vec<_> = holders.iter().filter(|pod| still.contains(*pod)).collect();
            if !robbed.is_empty() {
                self.faults.push(format!("the MPS daemon was started anew while {robbed:?} had shares"));
            }
        }
        Ok(outcome)
    }

    async fn until_struck(&mut self, harm: &Harm, asks: &[Act]) -> anyhow::Result<bool> {
        let begun = Instant::now();
        let mut asks = asks.iter().cycle();
        let mut asked: Option<Instant> = None;
        while begun.elapsed() < CALL_TIMEOUT {
            if harm.has_struck(self)? {
                return Ok(true);
            }
            if asked.is_none_or(|at| at.elapsed() > ASK_INTERVAL) && self.asks_nothing() {
                asks.next().into_iter().for_each(|act| self.ask(*act));
                asked = Some(Instant::now());
            }
            self.tick(true).await?;
            self.revive()?;
        }
        Ok(false)
    }

    /// Continues the churn while the fault lasts.
    async fn suffer(&mut self, harm: &Harm, lasts: Lasts, daemons: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        let period = harm.period(self.period);
        loop {
            let over = begun.elapsed();
            let goes_on = match lasts {
                Lasts::Once => false,
                // A hang counts only after it lasted as long as a call may take.
                Lasts::AWhile if harm.hangs() => {
                    over < period * 3 / 2
                        || over < period * 3 && !harm.is_of_mps() && self.status().is_ready()
                }
                Lasts::AWhile => over < self.period,
                Lasts::UntilReplaced => over < REPLACEMENT_TIMEOUT && self.daemons_started()? == daemons,
            };
            if !goes_on {
                return Ok(());
            }
            self.tick(true).await?;
            self.revive()?;
        }
    }

    /// Waits until the node has settled.
    async fn settle(&mut self, ended: Instant, period: Duration) -> anyhow::Result<Outcome> {
        let (mut last, mut never) = (Vec::new(), period * NEVER);
        loop {
            self.tick(false).await?;
            self.revive()?;
            let complaints = self.complaints()?;
            let took = ended.elapsed();
            if complaints.is_empty() {
                let in_time = took <= period * PERIODS;
                return Ok(if in_time { Outcome::Settled(took) } else { Outcome::Late(took, last) });
            }
            if self.leader.is_kept_in_doubt() {
                never = never.max(DOUBT_TIMEOUT);
            }
            if took > never {
                self.faults.push(format!("never settled: {complaints:?}"));
                return Ok(Outcome::Late(took, complaints));
            }
            last = complaints;
        }
    }
}
