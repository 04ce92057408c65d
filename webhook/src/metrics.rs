//! The webhook's metrics. All labels are closed sets.

use kerf_core::admission::Refusal;
use kerf_core::kind::Kind;
use kerf_runtime::histogram::histogram;
use kerf_runtime::tls::Expiry;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// The upper bounds of the buckets for an answer's time, in milliseconds. They are fine around the usual time of a pod,
/// and coarse for times that nothing waits for.
const DURATIONS_MS: [f64; 20] = [
    0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 25.0, 50.0, 100.0,
    250.0,
];

/// The kind label of pods for which the extender chooses the kind.
pub(crate) const ANY_KIND: &str = "any";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Untouched,
    Patched,
    Denied,
    Error,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Untouched, Self::Patched, Self::Denied, Self::Error];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Untouched => "untouched",
            Self::Patched => "patched",
            Self::Denied => "denied",
            Self::Error => "error",
        }
    }
}

impl EncodeLabelValue for Outcome {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> std::fmt::Result {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

fn durations() -> Histogram {
    histogram(DURATIONS_MS.into_iter().map(|end| end / 1000.0))
}

#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    admissions: Family<Labels, Counter>,
    durations: Family<KindLabel, Histogram, fn() -> Histogram>,
    refusals: Family<ReasonLabels, Counter>,
    pub expiry: Expiry,
}

impl Metrics {
    /// Registers the metrics. All labels start at zero, so that a scraper sees all of them from the beginning.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            admissions: Family::default(),
            durations: Family::new_with_constructor(durations as fn() -> Histogram),
            refusals: Family::default(),
            expiry: Expiry::default(),
        };
        for kind in Kind::labels().chain([ANY_KIND]) {
            drop(metrics.durations.get_or_create(&KindLabel { kind }));
        }
        for reason in Refusal::REASONS {
            drop(metrics.refusals.get_or_create(&ReasonLabels { reason }));
        }
        for outcome in Outcome::ALL {
            drop(metrics.admissions.get_or_create(&Labels { outcome }));
        }
        registry.register(
            "kerf_webhook_admissions",
            "Admission questions, by outcome",
            metrics.admissions.clone(),
        );
        registry.register(
            "kerf_webhook_admission_duration_seconds",
            "Seconds from a request's last byte to its answer, by the kind of slice that the pod gets",
            metrics.durations.clone(),
        );
        registry.register(
            "kerf_webhook_refusals",
            "Pods that were denied, by what was wrong",
            metrics.refusals.clone(),
        );
        metrics.expiry.register(registry);
        metrics
    }

    pub fn count_refusal(&self, reason: &'static str) {
        self.refusals.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Counts one request; `kind` comes from `Admission::kind`.
    pub fn count(&self, outcome: Outcome, kind: &'static str, took: Duration) {
        self.admissions.get_or_create(&Labels { outcome }).inc();
        self.durations.get_or_create(&KindLabel { kind }).observe(took.as_secs_f64());
    }
}
