//! An active fault: arms it, detects whether it has occurred, and ends it.

use std::time::Duration;

use kerf_nvml_mock::{Fault, Strike as Nvml};

use super::cell::{Dose, Strike};
use super::scene::Scene;
use crate::mps::{Fault as Mishap, WordFault};

/// How often the agent probes an MPS daemon (`Timings::probe_every`, which no flag scales).
const MPS_PROBE_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Harm {
    strike: Strike,
    /// Count of this command's faults before this one was armed.
    words_before: usize,
}

impl Harm {
    /// The dose's fault. `number` identifies it in the simulated NVML.
    pub(super) fn new(dose: &Dose, number: u32) -> Self {
        let strike = match dose.strike.clone() {
            Strike::Nvml(fault) => Strike::Nvml(Fault { id: Some(format!("dose-{number}")), ..fault }),
            other => other,
        };
        Self { strike, words_before: 0 }
    }

    pub(super) fn begin(&mut self, scene: &mut Scene) -> anyhow::Result<()> {
        match &self.strike {
            Strike::Nvml(fault) => scene.node.control(|control| control.faults.push(fault.clone())),
            Strike::Mps(fault) | Strike::MpsAndAgent(fault) => {
                self.words_before = struck(scene, fault)?;
                scene.order(|orders| orders.faults = vec![fault.clone()])
            }
        }
    }

    /// Whether the fault has occurred. A hang counts only while the running agent is in it.
    pub(super) fn has_struck(&self, scene: &Scene) -> anyhow::Result<bool> {
        let fault = match &self.strike {
            Strike::Nvml(fault) => fault,
            Strike::Mps(fault) | Strike::MpsAndAgent(fault) => {
                return Ok(struck(scene, fault)? > self.words_before);
            }
        };
        let state = scene.node.state()?;
        Ok(match fault.strike {
            Nvml::Hang => {
                let mut hanging = state.hanging_now().into_iter();
                hanging.any(|call| call.pid == scene.node.agent_id() && call.function == fault.function)
            }
            Nvml::Code(_) | Nvml::Kill | Nvml::Slow(_) => {
                fault.id.as_ref().is_some_and(|id| state.faults_struck.contains_key(id))
            }
        })
    }

    pub(super) fn end(&self, scene: &mut Scene) -> anyhow::Result<()> {
        match &self.strike {
            Strike::Nvml(_) => scene.node.control(|control| control.faults.clear()),
            Strike::Mps(_) | Strike::MpsAndAgent(_) => scene.order(|orders| orders.faults.clear()),
        }
    }

    /// Whether the faulty call hangs.
    pub(super) fn hangs(&self) -> bool {
        match &self.strike {
            Strike::Nvml(fault) => fault.strike == Nvml::Hang,
            Strike::Mps(fault) | Strike::MpsAndAgent(fault) => {
                matches!(fault.fault, Mishap::HangBefore | Mishap::HangAfter)
            }
        }
    }

    pub(super) fn kills_the_agent(&self) -> bool {
        match &self.strike {
            Strike::Nvml(fault) => fault.strike == Nvml::Kill,
            Strike::Mps(_) => false,
            Strike::MpsAndAgent(_) => true,
        }
    }

    /// Whether the test must kill the agent during the fault.
    pub(super) fn kills_the_agent_by_hand(&self) -> bool {
        matches!(self.strike, Strike::MpsAndAgent(_))
    }

    /// Whether it is a fault of a command to an MPS daemon.
    pub(super) fn is_of_mps(&self) -> bool {
        !matches!(self.strike, Strike::Nvml(_))
    }

    /// The agent's probe period for the faulty part.
    pub(super) fn period(&self, own: Duration) -> Duration {
        if self.is_of_mps() { own.max(MPS_PROBE_INTERVAL) } else { own }
    }
}

/// How often the command has had this fault.
fn struck(scene: &Scene, fault: &WordFault) -> anyhow::Result<usize> {
    let all = scene.words_struck()?;
    Ok(all.iter().filter(|(word, mishap)| *word == fault.word && *mishap == fault.fault).count())
}
