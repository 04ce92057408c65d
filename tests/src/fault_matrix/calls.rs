//! The calls that the agent really makes, and what makes it call: the rows of the matrix, counted and not listed, so that
//! none can be forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::act::Act;
use super::scene::Scene;

/// Functions, each with the acts in which it is called.
pub(super) type Calls = BTreeMap<String, Vec<Act>>;

/// How often each act is asked for, so that all that may become of it is seen.
const TIMES: usize = 8;

/// After so long the agent's watch for errors has noticed that the GPUs' handles are others.
const WATCH_NOTICES: Duration = Duration::from_secs(7);

/// After so long a node at rest is a broken one.
const PATIENCE: Duration = Duration::from_mins(1);

impl Scene {
    /// Counts the calls of each act, nothing else being asked for.
    pub(super) async fn count_calls(&mut self, period: Duration) -> anyhow::Result<Calls> {
        self.node.control(|control| control.count_calls = true)?;
        let mut calls = Calls::new();
        for act in Act::ALL {
            let before = self.node.state()?.calls;
            self.go_through(act, period).await?;
            let after = self.node.state()?.calls;
            let made = after.iter().filter(|(function, count)| before.get(*function) != Some(count));
            for (function, _) in made {
                calls.entry(function.clone()).or_default().push(act);
            }
        }
        self.node.control(|control| control.count_calls = false)?;
        // What every look makes is made whatever is asked for; other calls are made on purpose only.
        let looks: BTreeSet<String> =
            calls.iter().filter(|(_, acts)| acts.contains(&Act::Rest)).map(|(f, _)| f.clone()).collect();
        ensure!(!looks.is_empty(), "the agent does not look at its GPUs");
        Ok(calls)
    }

    async fn go_through(&mut self, act: Act, period: Duration) -> anyhow::Result<()> {
        let times = match act {
            Act::Rest | Act::Start => 1,
            Act::Switch => 2,
            Act::Cut | Act::Part | Act::Share => TIMES,
        };
        for _ in 0..times {
            self.act(act).await?;
            let begun = Instant::now();
            self.rest(period).await?;
            let due = match act {
                Act::Switch => WATCH_NOTICES,
                Act::Rest => period * 3,
                _ => Duration::ZERO,
            };
            while begun.elapsed() < due {
                self.tick(false).await?;
            }
        }
        Ok(())
    }

    /// Waits until the node is at rest.
    pub(super) async fn rest(&mut self, period: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            // An agent that was just started still shows what it said before.
            self.tick(false).await?;
            let complaints = self.complaints()?;
            if complaints.is_empty() && begun.elapsed() > period {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "the node does not come to rest: {complaints:?}");
        }
    }
}
