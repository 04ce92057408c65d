//! The metrics of policy files.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The outcome of reading a changed file, the label of `kerf_policy_reloads_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    Loaded,
    /// The content is bad, and the previous one stays in force.
    Refused,
}

/// The state of a file's present content, the label of `kerf_policy_files`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum FileState {
    Good,
    Bad,
}

macro_rules! label {
    ($type:ident, $($case:ident $text:literal),+) => {
        impl EncodeLabelValue for $type {
            fn encode(&self, encoder: &mut LabelValueEncoder) -> std::fmt::Result {
                let text = match self {
                    $(Self::$case => $text,)+
                };
                EncodeLabelValue::encode(&text, encoder)
            }
        }
    };
}

label!(Outcome, Loaded "loaded", Refused "refused");
label!(FileState, Good "good", Bad "bad");

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    result: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FileLabels {
    state: FileState,
}

#[derive(Debug)]
pub(super) struct Metrics {
    reloads: Family<ReloadLabels, Counter>,
    files: Family<FileLabels, Gauge>,
}

impl Metrics {
    /// Starts with every label at zero, so that a scraper sees all of them from the beginning.
    pub fn new() -> Self {
        let metrics = Self { reloads: Family::default(), files: Family::default() };
        for result in [Outcome::Loaded, Outcome::Refused] {
            drop(metrics.reloads.get_or_create(&ReloadLabels { result }));
        }
        metrics.files(0, 0);
        metrics
    }

    pub fn count(&self, result: Outcome) {
        self.reloads.get_or_create(&ReloadLabels { result }).inc();
    }

    pub fn counted(&self, result: Outcome) -> u64 {
        self.reloads.get_or_create(&ReloadLabels { result }).get()
    }

    pub fn files(&self, good: usize, bad: usize) {
        for (state, number) in [(FileState::Good, good), (FileState::Bad, bad)] {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            self.files.get_or_create(&FileLabels { state }).set(number);
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let help = "Changed policy files, by whether the new content is in force";
        registry.register("kerf_policy_reloads", help, self.reloads.clone());
        let help = "Policy files, by whether their present content is in force";
        registry.register("kerf_policy_files", help, self.files.clone());
    }
}
