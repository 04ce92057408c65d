//! What the extender counts. All label values come from closed lists.

use crate::term::Standing;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All of them: what never happened is told as zero.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
                match self { $(Self::$variant => $text,)* }.encode(encoder)
            }
        }
    };
}

label!(
    /// What the scheduler asks.
    Verb {
        /// Which nodes can serve a pod.
        Filter = "filter",
        /// Which of them is best.
        Prioritize = "prioritize",
        /// On which nodes pods may be evicted for it.
        Preempt = "preempt",
        /// Bind it.
        Bind = "bind",
    }
);

label!(
    /// How a request ended.
    Outcome {
        /// As wished: some node fits or may be preempted, or the pod is bound.
        Ok = "ok",
        /// No node can serve the pod, or not the one that was chosen.
        Refused = "refused",
        /// The slice was not ready in time.
        TimedOut = "timed-out",
        /// This replica does not lead.
        NotLeader = "not-leader",
        /// The request could not be read.
        BadRequest = "bad-request",
        /// Something failed.
        Error = "error",
    }
);

label!(
    /// How a write of a GpuNode's spec ended.
    Write {
        /// It was made.
        Written = "written",
        /// Somebody else had written.
        Conflict = "conflict",
        /// It failed, or nobody knows.
        Failed = "failed",
    }
);

label!(
    /// How far a promise is.
    PromiseState {
        /// Expected by a filter, not asked for yet.
        Tentative = "tentative",
        /// Not written yet.
        Writing = "writing",
        /// Written.
        Committed = "committed",
    }
);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: Verb,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabels {
    verb: Verb,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    outcome: Write,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: PromiseState,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LayoutLabels {
    /// The reason of the Node's condition, of a closed list.
    state: &'static str,
}

/// From a quarter of a millisecond, in which a filter is answered, to the 5 s that a scheduler waits, each twice the one before.
fn histogram() -> Histogram {
    Histogram::new((0..15).map(|power| 0.000_25 * f64::from(1 << power)))
}

/// The extender's counters. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<VerbLabels, Histogram, fn() -> Histogram>,
    writes: Family<WriteLabels, Counter>,
    moves: Counter,
    layouts: Family<LayoutLabels, Gauge>,
}

impl Metrics {
    /// The counters, and a registry that shows them and the promises of `standing`.
    #[must_use]
    pub fn new(standing: &Arc<Standing>) -> (Self, Registry) {
        let metrics = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(histogram as fn() -> Histogram),
            writes: Family::default(),
            moves: Counter::default(),
            layouts: Family::default(),
        };
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("kerf_extender");
        own.register("requests", "Requests of the scheduler", metrics.requests.clone());
        let help = "Seconds from a request of the scheduler to its answer";
        own.register("request_duration_seconds", help, metrics.durations.clone());
        own.register("spec_writes", "Writes of GpuNode specs", metrics.writes.clone());
        let help = "Movable pods that were evicted to make room for a bigger one";
        own.register("moves", help, metrics.moves.clone());
        let help =
            "Nodes with a layout of NVIDIA's device plugin, by the reason of their condition kerf.dev/Layout";
        own.register("plugin_layout_nodes", help, metrics.layouts.clone());
        own.register_collector(Box::new(OfTheTerm(standing.clone())));
        for &verb in Verb::ALL {
            drop(metrics.durations.get_or_create(&VerbLabels { verb }));
            for &outcome in Outcome::ALL {
                drop(metrics.requests.get_or_create(&RequestLabels { verb, outcome }));
            }
        }
        for &outcome in Write::ALL {
            drop(metrics.writes.get_or_create(&WriteLabels { outcome }));
        }
        (metrics, registry)
    }

    /// A request was answered.
    pub fn answered(&self, verb: Verb, outcome: Outcome, after: Duration) {
        self.requests.get_or_create(&RequestLabels { verb, outcome }).inc();
        self.durations.get_or_create(&VerbLabels { verb }).observe(after.as_secs_f64());
    }

    /// A pod was evicted to make room for another.
    pub fn moved(&self) {
        self.moves.inc();
    }

    /// These are the states of all nodes with a layout of NVIDIA's device plugin.
    pub fn layouts(&self, states: impl Iterator<Item = &'static str>) {
        self.layouts.clear();
        for state in states {
            self.layouts.get_or_create(&LayoutLabels { state }).inc();
        }
    }

    /// A GpuNode's spec was written, or not.
    pub fn wrote(&self, outcome: Write) {
        self.writes.get_or_create(&WriteLabels { outcome }).inc();
    }
}

/// What the leader's term knows, counted when it is asked for. A replica that does not lead tells that alone.
#[derive(Debug)]
struct OfTheTerm(Arc<Standing>);

impl Collector for OfTheTerm {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let term = self.0.term();
        let help = "Whether this replica leads and has listed everything";
        let family = encoder.encode_descriptor("leader", help, None, MetricType::Gauge)?;
        ConstGauge::new(u32::from(term.is_some())).encode(family)?;
        let Some(term) = term else { return Ok(()) };
        let (counts, refused, demand) =
            term.with(|index| (index.promise_counts(), index.refused_pods().len(), index.demand().pending));
        let help = "Pods with promised slices, by how far the promise is";
        let mut family = encoder.encode_descriptor("reservations", help, None, MetricType::Gauge)?;
        for (state, count) in counts {
            gauge(count).encode(family.encode_family(&StateLabels { state })?)?;
        }
        let help = "Pods that wait, refused by every node that the scheduler offered or such as no node could ever serve";
        let family = encoder.encode_descriptor("waiting_pods", help, None, MetricType::Gauge)?;
        gauge(refused).encode(family)?;
        let help = "Slices of admitted pods that were not promised any yet and could be, by resource name";
        let mut family = encoder.encode_descriptor("pending_slices", help, None, MetricType::Gauge)?;
        for (name, count) in demand {
            let labels = [("resource", name.to_string())];
            ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn gauge(count: usize) -> ConstGauge<u32> {
    ConstGauge::new(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::ApiStandIn;
    use crate::in_force::InForce;
    use crate::term::Term;
    use kerf_core::packing::Terms;
    use kerf_runtime::shutdown::CancellationToken;

    #[tokio::test]
    async fn what_is_counted_is_shown_under_its_name() {
        let standing = Arc::new(Standing::default());
        let (metrics, registry) = Metrics::new(&standing);
        let term = Term::new(
            ApiStandIn::new().client(),
            metrics.clone(),
            1,
            Terms::default(),
            InForce::default(),
            CancellationToken::new(),
        );
        standing.begin(term);
        metrics.answered(Verb::Bind, Outcome::TimedOut, Duration::from_secs(4));
        metrics.wrote(Write::Conflict);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"kerf_extender_requests_total{verb="bind",outcome="timed-out"} 1"#,
            r#"kerf_extender_request_duration_seconds_sum{verb="bind"} 4.0"#,
            r#"kerf_extender_request_duration_seconds_bucket{le="4.096",verb="bind"} 1"#,
            r#"kerf_extender_spec_writes_total{outcome="conflict"} 1"#,
            r#"kerf_extender_reservations{state="committed"} 0"#,
            r#"kerf_extender_requests_total{verb="filter",outcome="refused"} 0"#,
            "kerf_extender_leader 1",
            "kerf_extender_waiting_pods 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
