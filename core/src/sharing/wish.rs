//! The input and output of [`recommend`](super::recommend).

use super::{Latency, Prediction, SwitchingCost, Technology, Throughput, Workload};
use crate::kind::{IsolationClass, Kind};
use crate::mig::MigTable;
use crate::units::MemoryMib;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// The requirements of a workload's owner. The neighbours are copies of the workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish {
    /// The workload, measured on the GPU model of the supply.
    pub workload: Workload,
    /// The memory that one copy needs, including its context.
    pub memory: MemoryMib,
    /// The isolation between tenants: [`IsolationClass::Hardware`] if they do not trust each other.
    pub isolation: IsolationClass,
    /// The longest acceptable mean latency.
    pub target: Target,
    /// The share of a tenant while all are busy.
    pub share: Share,
}

/// The longest acceptable latency of an inference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "seconds", rename_all = "kebab-case")]
pub enum Target {
    /// No limit on the latency.
    None,
    /// This mean latency, with neighbours as busy as the workload itself.
    Mean(Latency),
    /// This mean latency whatever neighbours do, which needs hardware isolation.
    Hard(Latency),
}

/// The share of a tenant while all are busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// The part that the others leave, which gives the highest throughput.
    WhatIsLeft,
    /// An equal part for each tenant. Under MPS each one is limited to that part of the threads, which slows all of
    /// them down.
    Equal,
}

/// A GPU that workloads can share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Supply<'a> {
    /// The memory of the GPU.
    pub memory: MemoryMib,
    /// The MIG profiles of the GPU; an empty table for a GPU without MIG.
    pub table: &'a MigTable,
    /// The kinds in which it may be shared.
    pub kinds: &'a [Kind],
    /// The cost of turns on it.
    pub switching: SwitchingCost,
}

/// A recommendation for sharing the GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// The recommended way of sharing.
    pub technology: Technology,
    /// The recommended number of tenants.
    pub tenants: NonZeroU32,
    /// The limit that rules out more tenants.
    pub bound: Bound,
    /// The prediction for each tenant.
    pub each: Prediction,
    /// The throughput of all tenants together.
    #[serde(rename = "perSecond")]
    pub throughput: Throughput,
    /// The reason for this technology.
    pub why: Why,
    /// The reason against each other kind.
    pub passed_over: BTreeMap<Kind, PassedOver>,
}

/// The limit that rules out more tenants on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The memory of the GPU is used up.
    Memory,
    /// An MPS server has its most clients, which is also the most replicas of a GPU.
    Clients,
    /// The GPU has its most instances of the profile.
    Instances,
    /// A whole GPU has exactly one tenant.
    Alone,
    /// Further tenants would keep more of the GPU busy than [`admits`](super::admits) allows.
    Load,
    /// With one more tenant, inferences would arrive faster than they are done.
    Queue,
    /// With one more tenant, inferences would take longer than the target.
    Target,
}

/// Why a technology was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// No other technology serves the wish.
    OnlyOne,
    /// It is the preferred one within 10 % of the highest throughput. MPS comes before MIG, then the whole GPU, then
    /// turns. For tenants that are idle most of the time turns come first, because MPS gains them nothing and lets them
    /// fail together.
    Preferred,
    /// The preferred ones have a throughput more than 10 % lower.
    MostDone,
}

/// Why a kind was not chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassedOver {
    /// The GPU may not or cannot be shared in this way.
    NotOffered,
    /// It does not isolate the tenants as the wish requires.
    #[serde(rename = "not-fenced")]
    NotIsolated,
    /// One copy needs more memory than it gives.
    Memory,
    /// One copy would take longer than the target.
    Target,
    /// Inferences would arrive faster than one copy can do them.
    Queue,
    /// Its throughput is more than 10 % below the highest one.
    LessDone,
    /// It would serve the wish, and another kind is preferred.
    Order,
}
