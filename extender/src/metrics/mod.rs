//! The extender's metrics. Label values come from closed lists, or are names that an admin chose: of nodes, and of
//! policies with the namespaces that they name. So the number of series stays bounded.

use crate::cluster_index::Stages;
use crate::metric_labels::{Outcome, Stage, Verb};
use crate::objects::pod::Counted;
use jiff::Timestamp;
use kerf_core::kind::{Kind, KindLabel};
use kerf_runtime::histogram::histogram;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: Verb,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabels {
    verb: Verb,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: Stage,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LayoutLabels {
    /// The reason of the Node's condition, from a closed list.
    state: &'static str,
}

type Histograms<Labels> = Family<Labels, Histogram, fn() -> Histogram>;

/// Doubles from a quarter of a millisecond, in which a filter is answered, to 4 s, just below the 5 s that a scheduler
/// waits.
fn request_seconds() -> Histogram {
    histogram(exponential_buckets(0.000_25, 2.0, 15))
}

/// Doubles from 5 ms, in which an agent accepts a reservation, to 87 minutes of waiting for room.
fn pod_seconds() -> Histogram {
    histogram(exponential_buckets(0.005, 2.0, 21))
}

/// The extender's counters. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    durations: Histograms<VerbLabels>,
    created_to_bound: Histograms<KindLabels>,
    stages: Histograms<StageLabels>,
    moves: Counter,
    dropped_events: Counter,
    layouts: Family<LayoutLabels, Gauge>,
}

impl Metrics {
    /// Makes the counters, and a registry that shows them.
    #[must_use]
    pub fn new() -> (Self, Registry) {
        let metrics = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(request_seconds as fn() -> Histogram),
            created_to_bound: Family::new_with_constructor(pod_seconds as fn() -> Histogram),
            stages: Family::new_with_constructor(pod_seconds as fn() -> Histogram),
            moves: Counter::default(),
            dropped_events: Counter::default(),
            layouts: Family::default(),
        };
        metrics.begin_at_zero();
        let mut registry = Registry::default();
        metrics.register(registry.sub_registry_with_prefix("kerf_extender"));
        (metrics, registry)
    }

    /// Creates every series of a closed list at zero, so that none is missing before its first event.
    fn begin_at_zero(&self) {
        for &verb in Verb::ALL {
            for kind in KindLabel::all().map(KindLabel::as_str) {
                drop(self.durations.get_or_create(&VerbLabels { verb, kind }));
            }
            for &outcome in Outcome::ALL {
                drop(self.requests.get_or_create(&RequestLabels { verb, outcome }));
            }
        }
        for kind in Kind::ALL.map(Kind::as_str) {
            drop(self.created_to_bound.get_or_create(&KindLabels { kind }));
            for &stage in Stage::ALL {
                drop(self.stages.get_or_create(&StageLabels { stage, kind }));
            }
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("requests", "Requests of the scheduler", self.requests.clone());
        let help = "Seconds from a request of the scheduler to its answer, by the kind of the pod's slices";
        registry.register("request_duration_seconds", help, self.durations.clone());
        let help = "Seconds from a pod's creation to its Binding, by the kind of its slices";
        registry.register("created_to_bound_seconds", help, self.created_to_bound.clone());
        let help = "Seconds of each stage of a pod's way to its Binding, by the kind of its slices";
        registry.register("stage_duration_seconds", help, self.stages.clone());
        let help = "Movable pods that were evicted to make room for a bigger one";
        registry.register("moves", help, self.moves.clone());
        let help = "Events that were not written because too many were at once";
        registry.register("events_dropped", help, self.dropped_events.clone());
        let help =
            "Nodes with a layout of NVIDIA's device plugin, by the reason of their condition kerf.dev/Layout";
        registry.register("plugin_layout_nodes", help, self.layouts.clone());
    }

    /// Counts an answered request about a pod that gets slices of this kind.
    pub fn answered(&self, verb: Verb, kind: KindLabel, outcome: Outcome, after: Duration) {
        self.requests.get_or_create(&RequestLabels { verb, outcome }).inc();
        let labels = VerbLabels { verb, kind: kind.as_str() };
        self.durations.get_or_create(&labels).observe(after.as_secs_f64());
    }

    pub fn dropped_event(&self) {
        self.dropped_events.inc();
    }

    /// Observes how long a pod waited for its first reservation.
    pub fn reserved(&self, pod: Counted, now: Timestamp) {
        if let (KindLabel::Of(kind), Some(waited)) = (pod.kind, pod.age(now)) {
            self.stage(Stage::Reserved, kind, waited);
        }
    }

    /// Observes a bound pod, with those of its stages that were seen.
    pub fn bound(&self, pod: Counted, stages: Stages, now: Timestamp) {
        let KindLabel::Of(kind) = pod.kind else { return };
        if let Some(took) = pod.age(now) {
            let labels = KindLabels { kind: kind.as_str() };
            self.created_to_bound.get_or_create(&labels).observe(took.as_secs_f64());
        }
        let Stages { accepted, ready, bound } = stages;
        for (stage, took) in [(Stage::Accepted, accepted), (Stage::Ready, ready), (Stage::Bound, bound)] {
            if let Some(took) = took {
                self.stage(stage, kind, took);
            }
        }
    }

    fn stage(&self, stage: Stage, kind: Kind, took: Duration) {
        let labels = StageLabels { stage, kind: kind.as_str() };
        self.stages.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub fn moved(&self) {
        self.moves.inc();
    }

    /// Sets the number of nodes in each layout state, from the states of all nodes with a layout of NVIDIA's device
    /// plugin.
    pub fn layouts(&self, states: impl Iterator<Item = &'static str>) {
        // A state that no node has any longer must lose its series.
        self.layouts.clear();
        for state in states {
            self.layouts.get_or_create(&LayoutLabels { state }).inc();
        }
    }
}

#[cfg(test)]
mod tests;
