//! Applies layouts to the nodes that NVIDIA's device plugin serves: writes what core decides into the plugin's
//! `ConfigMap`, GPU Operator's `ClusterPolicy` and the Nodes.
//!
//! Only the leader writes. All its state is in these objects, except for how long each has been as it is. So another
//! leader continues where this one stopped, and counts the waiting times from zero.
//!
//! | module | what it does |
//! |---|---|
//! | [`holders`] | asks which pods hold devices of a node |
//! | [`cluster_policy`] | reads and writes the `ClusterPolicy`, which need not exist |
//! | [`config_map`] | reads and writes the `ConfigMap` |
//! | [`node_patch`] | writes labels, record and condition of a Node |

mod cluster_policy;
mod config_map;
mod holders;
mod node_patch;

use crate::api_timeout::ApiFailure;
use crate::args::{PluginArgs, RightsArgs};
use crate::cluster_index::ClusterIndex;
use crate::events;
use crate::policy_source::PolicySource;
use crate::seen_nodes::NodeChange;
use crate::term::Term;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kerf_core::names::NodeName;
use kerf_core::plugin_layout::{
    Decision, FirstSeen, Holders, NodeDecision, NodeRecord, Seen, SeenClusterPolicy, SeenConfigMap, SeenNode,
    decide,
};
use kube::api::Api;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The interval of passes over what is due.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often the `ConfigMap` and the `ClusterPolicy` are read, which change rarely.
const READ_INTERVAL: Duration = Duration::from_secs(3);
/// Timeout of one request. A write that failed is due again at the next pass.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Whether this replica applies layouts while it leads.
#[must_use]
pub fn applies(policies: &PolicySource, rights: RightsArgs) -> bool {
    // Without `--policy` no file asks for the removal of layouts either, so the reconciler changes nothing.
    rights.layouts && policies.are_given()
}

/// Whether layouts are applied in this term. If so, static nodes are closed until the first pass.
pub fn begins(term: &Term, rights: RightsArgs) -> bool {
    let begins = applies(&term.policies, rights);
    if begins {
        term.with(|index| index.nodes().static_nodes().await_changes());
    }
    begins
}

/// Applies layouts until the term ends. It uses the replica's one watch of Nodes. With a watch of its own the API
/// server would send every Node twice, also in clusters without layouts.
pub async fn run(term: Arc<Term>, settings: PluginArgs) {
    let stop = term.stop.clone();
    // The Nodes must be as they were read in this term, because they show which static nodes are being changed.
    let are_read = term.until(ClusterIndex::can_answer);
    if stop.run_until_cancelled(are_read).await.is_none() {
        return;
    }
    let mut nodes = term.cluster.seen_nodes.follow();
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reconciler = Reconciler::new(term.clone(), settings);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            change = nodes.recv() => match change {
                Some(change) => {
                    let is_listed = matches!(change, NodeChange::All(_));
                    reconciler.observe(change);
                    if is_listed {
                        // Runs the first pass now, because pods for static nodes are held back until then.
                        ticks.reset_immediately();
                    }
                }
                None => break,
            },
            _ = ticks.tick() => {
                if reconciler.is_listed && stop.run_until_cancelled(reconciler.reconcile()).await.is_none() {
                    break;
                }
            }
        }
    }
    term.metrics.layouts([].into_iter());
}

/// The leader's state, and its clients for writing.
struct Reconciler {
    term: Arc<Term>,
    nodes: Api<Node>,
    settings: PluginArgs,
    seen: BTreeMap<NodeName, SeenNode>,
    /// The resource version of each Node that decisions are based on.
    versions: BTreeMap<NodeName, String>,
    is_listed: bool,
    config_map: SeenConfigMap,
    cluster_policy: Option<(SeenClusterPolicy, String)>,
    read_at: Option<Instant>,
    /// The origin of `ages`. It is monotonic: the wall clock may be set, and other leaders have another one.
    began: Instant,
    ages: FirstSeen,
    /// The last node whose holders were asked for in turn.
    asked_last: Option<NodeName>,
    /// A node whose holders block a change of the `ClusterPolicy`.
    in_the_way: Option<NodeName>,
    /// Nodes that are closed to pods while the `ClusterPolicy` changes.
    closed: BTreeSet<NodeName>,
    /// The version of each Node whose write had no answer. Whether it was written is known when another version is
    /// seen.
    in_doubt: BTreeMap<NodeName, String>,
    /// Whether the nodes are closed whose MIG devices a former leader began to rename.
    has_taken_over: bool,
}

impl Reconciler {
    fn new(term: Arc<Term>, settings: PluginArgs) -> Self {
        Self {
            nodes: Api::all(term.client.clone()),
            term,
            settings,
            seen: BTreeMap::new(),
            versions: BTreeMap::new(),
            is_listed: false,
            config_map: SeenConfigMap::default(),
            cluster_policy: None,
            read_at: None,
            began: Instant::now(),
            ages: FirstSeen::default(),
            asked_last: None,
            in_the_way: None,
            closed: BTreeSet::new(),
            in_doubt: BTreeMap::new(),
            has_taken_over: false,
        }
    }

    fn observe(&mut self, change: NodeChange) {
        match change {
            NodeChange::All(nodes) => {
                self.seen.clear();
                self.versions.clear();
                for (name, (seen, version)) in nodes {
                    self.show(name, seen, version);
                }
                self.is_listed = true;
            }
            NodeChange::Shown(name, node) => {
                let (seen, version) = *node;
                self.show(name, seen, version);
            }
            NodeChange::Hidden(name) => self.hide(&name),
        }
    }

    fn show(&mut self, name: NodeName, seen: SeenNode, version: String) {
        self.versions.insert(name.clone(), version);
        self.seen.insert(name, seen);
    }

    fn hide(&mut self, name: &NodeName) {
        self.in_doubt.remove(name);
        self.versions.remove(name);
        self.seen.remove(name);
    }

    /// Reads, decides, and writes what is due.
    async fn reconcile(&mut self) {
        if !self.has_taken_over && !self.take_over().await {
            return;
        }
        self.open_nodes();
        let policies = self.term.policies.current();
        let is_idle =
            policies.layouts().next().is_none() && self.seen.values().all(|node| node.record.is_none());
        if is_idle && self.read_at.is_some() && self.settled() {
            self.term.metrics.layouts([].into_iter());
            return;
        }
        if self.read_at.is_none_or(|at| at.elapsed() >= READ_INTERVAL)
            && let Err(error) = self.read().await
        {
            return tracing::warn!(%error, "failed to read the configuration of NVIDIA's device plugin; trying again");
        }
        // Holders are asked for again before each decision, because pods may have come since.
        self.seen.values_mut().for_each(|node| node.holders = Holders::Unknown);
        let mut decision = self.decide();
        self.ask_for_holders(&decision).await;
        if self.seen.values().any(|node| node.holders != Holders::Unknown) {
            // A node changes by the current configuration, not by one that was read before the requests for holders.
            if let Err(error) = self.read().await {
                return tracing::warn!(%error, "failed to read the configuration of NVIDIA's device plugin; trying again");
            }
            decision = self.decide();
        }
        self.write(decision).await;
    }

    /// Closes the nodes whose MIG devices get other names by what a former leader wrote. All other changes are recorded
    /// in the Nodes themselves. Static nodes stay closed to all pods until then. Returns whether this is known.
    async fn take_over(&mut self) -> bool {
        if let Err(error) = self.read_cluster_policy().await {
            tracing::warn!(%error, "failed to read the ClusterPolicy");
            if error.may_pass() {
                return false;
            }
            // A replica that may not read the `ClusterPolicy` has written nothing there, and an unreadable one names no
            // node. Waiting would not help.
        }
        self.term.with(|index| index.nodes().know_changes());
        self.has_taken_over = true;
        true
    }

    async fn read_cluster_policy(&mut self) -> Result<(), ApiFailure> {
        self.cluster_policy = cluster_policy::read(&self.term.client).await?;
        let policy = self.cluster_policy.as_ref().map(|(policy, _)| policy);
        self.closed = policy.map(|policy| policy.renamed(&self.seen, &self.ages)).unwrap_or_default();
        self.shut(&self.closed);
        Ok(())
    }

    fn shut(&self, names: &BTreeSet<NodeName>) {
        self.term
            .with(|index| names.iter().for_each(|name| index.nodes().static_nodes().close_at_once(name)));
    }

    /// Opens the nodes that were closed for a change and are no longer being changed.
    fn open_nodes(&self) {
        let is_changing = |name: &NodeName| {
            let record = self.seen.get(name).and_then(|node| node.record.as_deref());
            record
                .and_then(|text| NodeRecord::from_json(text).ok())
                .is_some_and(|record| record.is_changing())
                || self.closed.contains(name)
                || self.in_doubt.get(name).is_some_and(|version| self.versions.get(name) == Some(version))
        };
        self.term.with(|index| index.nodes().open_static_nodes(is_changing));
    }

    /// Whether nothing is left of layouts: no `ConfigMap` with keys, no record in the `ClusterPolicy`, no condition.
    fn settled(&self) -> bool {
        let is_default = |data: &BTreeMap<String, String>| data.len() <= 1;
        self.config_map.data.as_ref().is_none_or(is_default)
            && self.cluster_policy.as_ref().is_none_or(|(policy, _)| policy.record.is_none())
            && self.seen.values().all(|node| node.condition.is_none())
    }

    fn decide(&mut self) -> Decision {
        let cluster_policy = self.cluster_policy.as_ref().map(|(policy, _)| policy);
        self.ages.look(self.began.elapsed().as_secs(), &self.seen, &self.config_map, cluster_policy);
        decide(Seen {
            policies: &self.term.policies.current().layouts().collect::<Vec<_>>(),
            has_bad_files: self.term.policies.has_bad_files(),
            nodes: &self.seen,
            config_map: &self.config_map,
            config_map_name: &self.settings.plugin_config_map,
            cluster_policy,
            timeout_seconds: self.settings.plugin_timeout.as_secs(),
            config_delay_seconds: self.settings.plugin_config_delay.as_secs(),
            now: now(),
            ages: &self.ages,
        })
    }

    async fn read(&mut self) -> Result<(), ApiFailure> {
        // The `ClusterPolicy` is read first, because it decides which nodes are closed, even if the rest cannot be
        // read.
        self.read_cluster_policy().await?;
        let (namespace, name) = (&self.settings.plugin_namespace, &self.settings.plugin_config_map);
        let error = self.config_map.error.take();
        self.config_map =
            SeenConfigMap { error, ..config_map::read(&self.term.client, namespace, name).await? };
        self.read_at = Some(Instant::now());
        Ok(())
    }

    async fn ask_for_holders(&mut self, decision: &Decision) {
        self.ask_until_held(&decision.asks).await;
        let asking = decision.nodes.iter().filter(|(_, decision)| decision.asks_for_holders);
        let waiting = asking.map(|(name, _)| name.clone()).collect();
        for name in holders::turn(&waiting, self.asked_last.as_ref()) {
            self.ask(&name).await;
            self.asked_last = Some(name);
        }
    }

    /// Asks about all of them until one with holders is found, which is enough to block the change. That node is asked
    /// first the next time.
    async fn ask_until_held(&mut self, names: &BTreeSet<NodeName>) {
        let first = self.in_the_way.take().filter(|name| names.contains(name));
        for name in first.iter().chain(names.iter().filter(|name| first.as_ref() != Some(*name))) {
            if self.ask(name).await {
                self.in_the_way = Some(name.clone());
                return;
            }
        }
    }

    /// Whether a pod holds devices of the node, as far as is known.
    async fn ask(&mut self, name: &NodeName) -> bool {
        let Some(node) = self.seen.get_mut(name) else { return false };
        if node.holders == Holders::Unknown {
            match holders::list(&self.term.client, name).await {
                Ok(pods) => node.holders = Holders::Known(pods),
                Err(error) => {
                    tracing::warn!(node = %name, %error, "failed to ask who holds GPUs of the node; trying again");
                }
            }
        }
        matches!(&node.holders, Holders::Known(pods) if !pods.is_empty())
    }

    async fn write(&mut self, decision: Decision) {
        let client = self.term.client.clone();
        if let Some(write) = decision.config_map {
            let (namespace, name) = (&self.settings.plugin_namespace, &self.settings.plugin_config_map);
            self.config_map = match config_map::write(&client, namespace, name, &write).await {
                Ok(()) => {
                    tracing::info!(config_map = %name, keys = write.data.len(), "the plugin's configuration is written");
                    SeenConfigMap { data: Some(write.data), written: write.written, error: None }
                }
                Err(error) => {
                    tracing::warn!(config_map = %name, %error, "failed to write the plugin's configuration; trying again");
                    SeenConfigMap { error: Some(error.to_string()), ..std::mem::take(&mut self.config_map) }
                }
            };
        }
        let are_closed = self.close_all(&decision.closes);
        self.shut(&decision.renamed);
        self.closed = decision.renamed;
        self.closed.extend(decision.closes);
        if let (Some(write), Some((_, version))) = (&decision.cluster_policy, &self.cluster_policy)
            && are_closed
        {
            match cluster_policy::write(&client, write, version).await {
                Ok(()) => tracing::info!(cluster_policy = write.name, "the ClusterPolicy is written"),
                Err(error) => {
                    tracing::warn!(cluster_policy = write.name, %error, "failed to write the ClusterPolicy; trying again");
                }
            }
            // GPU Operator's reaction is read before anything rests on it.
            self.read_at = None;
        }
        let states = decision.nodes.values().filter_map(|node| node.state.as_ref());
        self.term.metrics.layouts(states.map(kerf_core::plugin_layout::LayoutState::reason));
        for (name, decision) in decision.nodes {
            if decision.asks_for_holders {
                continue;
            }
            if let Err(error) = self.write_node(&name, decision).await {
                tracing::warn!(node = %name, %error, "failed to write the node's layout; trying again");
            }
        }
    }

    /// Closes nodes whose MIG devices get other names. Returns false if a pod has come to one since its holders were
    /// asked for.
    fn close_all(&self, names: &BTreeSet<NodeName>) -> bool {
        // `filter` and `count` visit every node, so that each is closed, also after one that cannot be closed yet.
        self.term
            .with(|index| names.iter().filter(|name| !index.nodes().static_nodes().close(name)).count() == 0)
    }

    async fn write_node(&mut self, name: &NodeName, decision: NodeDecision) -> Result<(), ApiFailure> {
        if let (Some(write), Some(version)) = (&decision.write, self.versions.get(name)) {
            let changes = self.seen.get(name).is_some_and(|seen| write.changes(seen));
            if changes && !self.term.with(|index| index.nodes().static_nodes().close(name)) {
                // A pod has come, or is about to come, since the holders were asked for.
                return Ok(());
            }
            let written = node_patch::labels(&self.nodes, name, write, version).await;
            match &written {
                Err(error) if error.may_be_done() => {
                    drop(self.in_doubt.insert(name.clone(), version.clone()));
                }
                _ => drop(self.in_doubt.remove(name)),
            }
            let (written, labels, state) = (written?, &write.labels, &decision.state);
            let state = state.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::info!(node = %name, ?labels, state, "the node's layout is written");
            self.observe(written.into());
        }
        let Some(seen) = self.seen.get(name) else { return Ok(()) };
        let reported = decision.event_after(seen);
        if let Some(condition) = decision.condition(seen) {
            let before = seen.condition.as_ref().map(|condition| condition.status.clone());
            let written =
                node_patch::condition(&self.nodes, name, condition.as_ref(), before.as_deref()).await?;
            self.observe(written.into());
        }
        if let Some(reported) = reported {
            events::publish_for_node(&self.term.client, name, reported).await;
        }
        Ok(())
    }
}

fn now() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or_default()
}

#[cfg(test)]
#[path = "reconciler_tests.rs"]
mod tests;
