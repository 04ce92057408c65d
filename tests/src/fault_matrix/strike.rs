//! Plays a cell: arms the fault, goes on with the churn until it has struck, ends it, and waits until the node is at rest.

use std::time::{Duration, Instant};

use kerf_nvml_mock::{Fault, MockState, Strike};

use super::act::Act;
use super::cell::{Cell, Dose, Verdict};
use super::scene::Scene;

/// Probe periods within which a node is settled after a fault's end.
pub(super) const PERIODS: u32 = 3;

/// Periods after which a node that is not settled never will be.
const NEVER: u32 = 20;

/// How long a call is waited for.
const CALLED_WITHIN: Duration = Duration::from_secs(25);

/// The wait before the agent is made to call once more.
const ASK_AGAIN: Duration = Duration::from_secs(3);

/// How often a dose is given again whose node was settled late: once more on a machine that has other things to do.
const TRIES: usize = 3;

/// How one dose went.
pub(super) enum Outcome {
    /// The node was settled in time.
    Settled(Duration),
    /// It was not, and what was not at rest last.
    Late(Duration, Vec<String>),
    /// The agent did not make the call.
    NotStruck,
}

impl Scene {
    /// Plays the cell.
    pub(super) async fn play(
        &mut self,
        cell: &Cell,
        (acts, turn): (&[Act], usize),
        period: Duration,
    ) -> anyhow::Result<Verdict> {
        let mut slowest = Duration::ZERO;
        for dose in cell.doses(acts, turn) {
            let mut tries = 1;
            loop {
                self.node.note(&format!("{cell}: try {tries}, {dose:?}"));
                let outcome = self.give(&dose, period).await?;
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
                    Outcome::Late(_, _) if tries < TRIES => tries += 1,
                    Outcome::Late(after, why) => {
                        let late =
                            format!("settled only after {after:.1?}, by {:?}; until then: {why:?}", dose.act);
                        return Ok(Verdict::Broken(vec![late]));
                    }
                }
            }
        }
        Ok(Verdict::Sound(slowest))
    }

    /// What should not have been.
    fn wrongs(&mut self) -> Vec<String> {
        let mut wrong = self.guard.take();
        wrong.append(&mut self.faults);
        wrong.extend(self.leader.failed.drain(..).filter(|failed| failed.contains("NO REASON")));
        self.leader.refused.clear();
        wrong
    }

    async fn give(&mut self, dose: &Dose, period: Duration) -> anyhow::Result<Outcome> {
        let deaths = self.deaths;
        // Counted by itself: an earlier one may have been equal.
        self.given += 1;
        let fault = Fault { id: Some(format!("dose-{}", self.given)), ..dose.fault.clone() };
        self.node.control(|control| control.faults.push(fault.clone()))?;
        let struck = self.until_struck(&fault, dose.act).await?;
        if struck && dose.lasts {
            self.suffer(&fault, period).await?;
        }
        self.node.control(|control| control.faults.clear())?;
        self.node.note("the fault ends");
        if !struck {
            return Ok(Outcome::NotStruck);
        }
        while fault.strike == Strike::Kill && self.deaths == deaths {
            self.tick(true).await?;
            self.revive()?;
        }
        self.settle(Instant::now(), period).await
    }

    async fn until_struck(&mut self, fault: &Fault, act: Act) -> anyhow::Result<bool> {
        let begun = Instant::now();
        let mut asked: Option<Instant> = None;
        while begun.elapsed() < CALLED_WITHIN {
            if self.has_struck(fault)? {
                return Ok(true);
            }
            if asked.is_none_or(|at| at.elapsed() > ASK_AGAIN) {
                self.act(act).await?;
                asked = Some(Instant::now());
            }
            self.tick(true).await?;
            self.revive()?;
        }
        Ok(false)
    }

    fn has_struck(&self, fault: &Fault) -> anyhow::Result<bool> {
        let state = self.node.state()?;
        Ok(match fault.strike {
            Strike::Hang => self.hangs(&state, &fault.function),
            Strike::Code(_) | Strike::Kill => {
                fault.id.as_ref().is_some_and(|id| state.faults_struck.contains_key(id))
            }
        })
    }

    fn hangs(&self, state: &MockState, function: &str) -> bool {
        let agent = self.node.agent_id();
        state.hanging_now().iter().any(|call| call.pid == agent && call.function == function)
    }

    /// Goes on with the churn while the fault lasts: for a probe period, and for a hang until the agent has said that it
    /// hangs, or could have.
    async fn suffer(&mut self, fault: &Fault, period: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        let hangs = fault.strike == Strike::Hang;
        let least = if hangs { period * 3 / 2 } else { period };
        while begun.elapsed() < least || hangs && begun.elapsed() < least * 2 && self.status().is_ready() {
            self.tick(true).await?;
            self.revive()?;
        }
        Ok(())
    }

    /// Waits until all is at rest.
    pub(super) async fn settle(&mut self, ended: Instant, period: Duration) -> anyhow::Result<Outcome> {
        let mut last = Vec::new();
        loop {
            self.tick(false).await?;
            self.revive()?;
            let complaints = self.complaints()?;
            let took = ended.elapsed();
            if complaints.is_empty() {
                return Ok(if took <= period * PERIODS {
                    Outcome::Settled(took)
                } else {
                    Outcome::Late(took, last)
                });
            }
            if took > period * NEVER {
                self.faults.push(format!("never settled: {complaints:?}"));
                return Ok(Outcome::Late(took, complaints));
            }
            last = complaints;
        }
    }
}
