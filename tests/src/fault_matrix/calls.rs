//! Finds the calls that the agent really makes, and the acts that cause them. These are the rows of the
//! matrix; they are counted instead of listed, so that none is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::act::Act;
use super::cell::Call;
use super::scene::Scene;

/// Calls, each with the acts that cause it.
pub(super) type Calls = BTreeMap<Call, Vec<Act>>;

/// How often each act is repeated, so that its variants occur, such as destroying idle slices for it.
const TIMES: usize = 8;

/// By then the agent's watch for errors has noticed that the GPUs have new handles.
const WATCH_DELAY: Duration = Duration::from_secs(7);

/// The command that ends an MPS server's fault, some 15 seconds after its begin.
const SHUT_DOWN: &str = "shutdown_server";

/// A node that has not settled by then is broken.
const TIMEOUT: Duration = Duration::from_mins(1);

impl Scene {
    /// Counts the calls of each of these acts alone.
    pub(super) async fn count_calls(&mut self, acts: &[Act]) -> anyhow::Result<Calls> {
        self.node.control(|control| control.count_calls = true)?;
        let mut calls = Calls::new();
        for act in acts.iter().copied() {
            let before = self.counts()?;
            self.go_through(act).await?;
            let made = self.counts()?.into_iter().filter(|(call, count)| before.get(call) != Some(count));
            for (call, _) in made {
                calls.entry(call).or_default().push(act);
            }
        }
        self.node.control(|control| control.count_calls = false)?;
        Ok(calls)
    }

    /// Counts all calls from now on, including those that follow errors.
    pub(super) fn count_all(&mut self) -> anyhow::Result<()> {
        self.node.control(|control| control.count_calls = true)
    }

    /// The calls that were counted since the start.
    pub(super) fn counted(&self) -> anyhow::Result<BTreeSet<Call>> {
        Ok(self.counts()?.into_keys().collect())
    }

    fn counts(&self) -> anyhow::Result<BTreeMap<Call, u64>> {
        let functions = self.node.state()?.calls.into_iter();
        let functions = functions.map(|(function, count)| (Call::Nvml(function), count));
        let words = self.word_counts()?.into_iter().map(|(word, count)| (Call::Mps(word), count as u64));
        Ok(functions.chain(words).collect())
    }

    async fn go_through(&mut self, act: Act) -> anyhow::Result<()> {
        let times = match act {
            Act::Rest | Act::Start | Act::Break => 1,
            Act::Switch => 2,
            Act::Share | Act::Slice => TIMES / 2,
            Act::Cut | Act::Part => TIMES,
        };
        for n in 0..times {
            if n % 2 == 1 {
                self.evict_one(None)?;
                self.rest(Duration::ZERO).await?;
            }
            self.ask(act);
            let least = match act {
                Act::Switch if n == 0 => WATCH_DELAY,
                Act::Rest | Act::Start => self.period * 3 / 2,
                // The agent sets limits only for processes that it has seen.
                Act::Slice if n == 0 => self.period * 3 / 2,
                _ => Duration::ZERO,
            };
            self.rest(least).await?;
        }
        if act == Act::Break {
            let begun = Instant::now();
            while !self.word_counts()?.contains_key(SHUT_DOWN) {
                ensure!(begun.elapsed() < TIMEOUT, "the agent does not shut an MPS server in fault down");
                self.tick(false).await?;
            }
            self.rest(Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Waits until the node has settled, and at least for `least`.
    async fn rest(&mut self, least: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            self.tick(false).await?;
            let complaints = self.complaints()?;
            if complaints.is_empty() && begun.elapsed() >= least {
                return Ok(());
            }
            ensure!(begun.elapsed() < TIMEOUT, "the node does not come to rest: {complaints:?}");
        }
    }
}
