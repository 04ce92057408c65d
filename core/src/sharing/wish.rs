//! What is asked of [`recommend`](super::recommend), and what it answers.

use super::{Latency, Prediction, SwitchingCost, Technology, Throughput, Workload};
use crate::kind::{IsolationClass, Kind};
use crate::mig::MigTable;
use crate::units::MemoryMib;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// What a workload's owner wants. Its neighbours are copies of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish {
    /// The workload, on the GPU model of the supply.
    pub workload: Workload,
    /// The memory that one copy needs, with its context.
    pub memory: MemoryMib,
    /// What tenants are fenced from each other by: [`IsolationClass::Hardware`] when they do not trust each other.
    pub isolation: IsolationClass,
    /// How long an inference may take.
    pub target: Target,
    /// What a tenant may count on when all are busy.
    pub share: Share,
}

/// How long an inference may take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "seconds", rename_all = "kebab-case")]
pub enum Target {
    /// As long as it likes.
    None,
    /// So long on the mean, with neighbours as busy as the workload itself.
    Mean(Latency),
    /// So long on the mean whatever neighbours do, which takes a fence of hardware.
    Hard(Latency),
}

/// What a tenant may count on when all are busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// What the others leave: the most gets done.
    WhatIsLeft,
    /// As much as everybody else: under MPS each has an equal part of the threads and no more, which slows all.
    Equal,
}

/// A GPU that is to be shared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Supply<'a> {
    /// Its memory.
    pub memory: MemoryMib,
    /// Its MIG profiles; an empty table for a GPU without MIG.
    pub table: &'a MigTable,
    /// The ways in which it may be shared.
    pub kinds: &'a [Kind],
    /// What turns cost on it.
    pub switching: SwitchingCost,
}

/// How to share the GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// The technology.
    pub technology: Technology,
    /// How many tenants.
    pub tenants: NonZeroU32,
    /// What keeps it from having more of them.
    pub bound: Bound,
    /// What becomes of each.
    pub each: Prediction,
    /// What all get done together, per second.
    #[serde(rename = "perSecond")]
    pub throughput: Throughput,
    /// Why this technology.
    pub why: Why,
    /// Why none of the other kinds.
    pub passed_over: BTreeMap<Kind, PassedOver>,
}

/// What keeps a GPU from having more tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Its memory.
    Memory,
    /// The clients of an MPS server, which is also the most replicas that are made of a GPU.
    Clients,
    /// The instances of the profile.
    Instances,
    /// There is one tenant of a whole GPU.
    Alone,
    /// Together they would keep more of it busy than [`admits`](super::admits) lets them.
    Load,
    /// One more, and inferences come faster than they are done.
    Queue,
    /// One more, and inferences take longer than the target.
    Target,
}

/// Why a technology was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// No other serves the wish.
    OnlyOne,
    /// Of those that get within 10 % of the most done it is the one that is preferred: side by side (MPS) before fenced
    /// (MIG), the whole GPU and in turns; but turns before all for tenants that are idle most of the time, who gain
    /// nothing from MPS and have its faults in common.
    Preferred,
    /// The ones that are preferred get 10 % less done, or worse.
    MostDone,
}

/// Why a kind was not chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassedOver {
    /// The GPU may not be shared so, or cannot.
    NotOffered,
    /// It does not fence the tenants as is asked.
    NotFenced,
    /// One copy needs more memory than it gives.
    Memory,
    /// One copy would take longer than the target.
    Target,
    /// Inferences would come faster than one copy can do them.
    Queue,
    /// It gets 10 % less done than the best, or worse.
    LessDone,
    /// It would do, and another is preferred.
    Order,
}
