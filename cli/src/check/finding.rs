//! The result of a check: something good, or a problem with its remedy.

use serde::Serialize;
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    KubernetesApi,
    InstallRights,
    GpuNodes,
    /// NVIDIA's GPU Operator, and the chart values that kerf needs beside it.
    GpuOperator,
    /// The `CustomResourceDefinition`, and the admission policies that guard what only kerf writes.
    Resources,
    ProgramRights,
    Webhook,
    Extender,
    Scheduler,
    Policies,
    Quotas,
    ManagedNodes,
    /// The static nodes, which NVIDIA's device plugin serves.
    StaticNodes,
    Others,
    Versions,
    Clocks,
}

impl Group {
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::KubernetesApi => "Kubernetes",
            Self::InstallRights => "rights to install",
            Self::GpuNodes => "nodes with GPUs",
            Self::GpuOperator => "NVIDIA's GPU Operator",
            Self::Resources => "kerf's resources",
            Self::ProgramRights => "rights of kerf's programs",
            Self::Webhook => "webhook",
            Self::Extender => "extender",
            Self::Scheduler => "scheduler",
            Self::Policies => "policies",
            Self::Quotas => "ResourceQuotas",
            Self::ManagedNodes => "nodes that kerf serves",
            Self::StaticNodes => "nodes that NVIDIA's device plugin serves",
            Self::Others => "others that manage GPUs",
            Self::Versions => "versions",
            Self::Clocks => "clocks",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// One line of a report. The types leave no way to report a problem without a remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub what: String,
    #[serde(flatten)]
    pub verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum Verdict {
    Fine,
    /// It works but needs attention, or could not be checked.
    Warning {
        remedy: String,
    },
    Failure {
        remedy: String,
    },
}

impl Finding {
    pub fn fine(what: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Fine }
    }

    pub fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Warning { remedy: remedy.into() } }
    }

    pub fn failure(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Failure { remedy: remedy.into() } }
    }

    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match &self.verdict {
            Verdict::Fine => None,
            Verdict::Warning { remedy } | Verdict::Failure { remedy } => Some(remedy),
        }
    }

    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self.verdict, Verdict::Failure { .. })
    }

    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(self.verdict, Verdict::Warning { .. })
    }
}

pub type Findings = Vec<(Group, Vec<Finding>)>;
