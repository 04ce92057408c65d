//! A replica's state for the life of its process: the index, and the term that decides by it, if there is one. Watches
//! and agents feed the index whether the replica leads or not.
//!
//! An index has one term at a time. A task may outlive its term, like that of a bind whose scheduler hung up. It then
//! finds an empty index, so it can neither read nor change what the next term decides by.

use crate::cluster_index::{ClusterIndex, Effects};
use crate::connections::Connections;
use crate::policy_source::PolicySource;
use crate::relist::Lists;
use crate::seen_nodes::SeenNodes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::watch;

/// Carries out the effects of changes of the index. A term does it while it lasts.
pub(crate) trait EffectHandler: Send + Sync {
    fn handle(self: Arc<Self>, effects: Effects);
}

/// The state of the cluster in this replica.
pub struct Cluster {
    state: Mutex<State>,
    /// The admins' policies in their current version.
    pub policies: PolicySource,
    pub agents: Connections,
    /// The lists that the watches begin with.
    pub lists: Lists,
    /// The Nodes that layouts may concern.
    pub seen_nodes: SeenNodes,
    /// Notifies waiters when the index has changed in a way that a term may wait for.
    progress: watch::Sender<()>,
}

struct State {
    index: ClusterIndex,
    /// The term. Weak, because the term itself holds the cluster, and a cycle would never be freed.
    term: Option<Weak<dyn EffectHandler>>,
    number: u64,
    last: u64,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    /// Wraps this index, before any watch or agent feeds it. `seen_nodes` are for layouts.
    #[must_use]
    pub fn new(index: ClusterIndex, policies: PolicySource, seen_nodes: SeenNodes) -> Arc<Self> {
        let state = State { index, term: None, number: 0, last: 0 };
        Arc::new(Self {
            state: Mutex::new(state),
            policies,
            agents: Connections::default(),
            lists: Lists::default(),
            seen_nodes,
            progress: watch::Sender::new(()),
        })
    }

    /// Runs `act` on the index, and passes its effects on to the term, if there is one.
    pub fn with<R>(&self, act: impl FnOnce(&mut ClusterIndex) -> R) -> R {
        self.act(self.lock(), act)
    }

    /// Runs `act` for the term of this number. Returns `act` as the error if that term has ended.
    pub(crate) fn with_term<R, F>(&self, number: u64, act: F) -> Result<R, F>
    where
        F: FnOnce(&mut ClusterIndex) -> R,
    {
        let state = self.lock();
        if state.number == number { Ok(self.act(state, act)) } else { Err(act) }
    }

    /// Waits until `holds` is true for the index.
    pub async fn until(&self, holds: impl Fn(&ClusterIndex) -> bool) {
        let mut progress = self.progress.subscribe();
        while !self.with(|index| holds(index)) {
            // `changed` cannot fail, because the sender lives in `self`.
            let _rang = progress.changed().await;
        }
    }

    /// Hands out the number of the next term.
    pub(crate) fn next_term(&self) -> u64 {
        let mut state = self.lock();
        state.last += 1;
        state.last
    }

    /// Starts the term of this number on the index, in this epoch or a higher one.
    pub(crate) fn begin(&self, number: u64, term: Weak<dyn EffectHandler>, epoch: u64) {
        let mut state = self.lock();
        state.index.lead(epoch);
        (state.term, state.number) = (Some(term), number);
    }

    /// Starts a term on an index that leads already.
    #[cfg(test)]
    pub(crate) fn begin_as_it_is(&self, number: u64, term: Weak<dyn EffectHandler>) {
        let mut state = self.lock();
        (state.term, state.number) = (Some(term), number);
    }

    /// Ends the term of this number. Does nothing if another term has begun since.
    pub(crate) fn end(&self, number: u64) {
        let mut state = self.lock();
        if state.number == number {
            state.index.follow();
            (state.term, state.number) = (None, 0);
        }
    }

    fn act<R>(&self, mut state: MutexGuard<'_, State>, act: impl FnOnce(&mut ClusterIndex) -> R) -> R {
        // Policies are taken at each access, so that no decision rests on outdated ones.
        state.index.nodes().set_policies(&self.policies.current());
        let result = act(&mut state.index);
        let effects = state.index.take_effects();
        if effects == Effects::default() {
            return result;
        }
        let term = state.term.as_ref().and_then(Weak::upgrade);
        // The term may call the index again, so the lock is released first.
        drop(state);
        if effects.progress {
            self.progress.send_replace(());
        }
        if let Some(term) = term {
            term.handle(effects);
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock. If it did, the API server's state would still decide what is true.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::ApiStandIn;
    use crate::metrics::Metrics;
    use crate::term::Term;
    use kerf_core::packing::Terms;
    use kerf_runtime::shutdown::CancellationToken;

    fn begin(cluster: &Arc<Cluster>, epoch: u64) -> Arc<Term> {
        let (metrics, _) = Metrics::new();
        Term::begin(cluster, ApiStandIn::new().client(), metrics, epoch, CancellationToken::new())
    }

    /// Such a task belongs to a bind whose scheduler hung up, or to an agent's answer to it.
    #[tokio::test]
    async fn tasks_of_an_ended_term_do_not_touch_the_next_term() {
        let index = ClusterIndex::following(Terms::default());
        let cluster = Cluster::new(index, PolicySource::default(), SeenNodes::default());
        let first = begin(&cluster, 1);
        first.with(ClusterIndex::take_over);
        first.end();
        assert_eq!(first.answer(|index| index.leadership().epoch()), None);
        let second = begin(&cluster, 2);
        second.with(ClusterIndex::take_over);
        let (uid, node) = ("uid-a".into(), "n".into());
        second.with(|index| index.bindings().begin(&uid));
        first.with(|index| index.reserving().end_bind(&uid, &node, std::time::Instant::now()));
        assert!(second.with(|index| index.bindings().is_open(&uid)));
        first.end();
        assert_eq!(second.answer(|index| index.leadership().epoch()), Some(2), "a term ends itself alone");
        first.with(|index| index.leadership_mut().see_epoch(9));
        assert!(!second.stop.is_cancelled());
        cluster.with(|index| index.leadership_mut().see_epoch(9));
        assert!(second.stop.is_cancelled(), "a newer epoch ends the current term");
    }
}
