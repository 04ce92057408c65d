//! What was found: good, or something with its remedy.

use serde::Serialize;
use std::fmt;

/// What the checks are about, in the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// The API server, and the way to it.
    KubernetesApi,
    /// What the user may do.
    InstallRights,
    /// The GPUs of the cluster, as its Nodes show them.
    GpuNodes,
    /// NVIDIA's GPU Operator, and what kerf's chart needs beside it.
    GpuOperator,
    /// The `CustomResourceDefinition` and the policies that guard what only kerf writes.
    Resources,
    /// What kerf's service accounts may do.
    ProgramRights,
    /// Mutating admission.
    Webhook,
    /// The scheduler extender.
    Extender,
    /// The scheduler that asks the extender.
    Scheduler,
    /// The admin's policies.
    Policies,
    /// The namespaces' `ResourceQuotas`.
    Quotas,
    /// The nodes that kerf's agents serve.
    ManagedNodes,
    /// The nodes that NVIDIA's device plugin serves.
    StaticNodes,
    /// Others that manage GPUs.
    Others,
    /// The versions of the programs.
    Versions,
    /// The clocks.
    Clocks,
}

impl Group {
    /// In words.
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

/// One line of a report. What is not good has a remedy by construction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was found.
    pub what: String,
    /// How it is.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Whether something is as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum Verdict {
    /// It is.
    Fine,
    /// It works, or could not be looked at.
    Warning {
        /// What to do.
        remedy: String,
    },
    /// It does not work.
    Failure {
        /// What to do.
        remedy: String,
    },
}

impl Finding {
    /// Something good.
    pub fn fine(what: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Fine }
    }

    /// Something that works and should be looked at.
    pub fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Warning { remedy: remedy.into() } }
    }

    /// Something that does not work.
    pub fn failure(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Failure { remedy: remedy.into() } }
    }

    /// What to do, for what is not good.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match &self.verdict {
            Verdict::Fine => None,
            Verdict::Warning { remedy } | Verdict::Failure { remedy } => Some(remedy),
        }
    }

    /// Whether it does not work.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self.verdict, Verdict::Failure { .. })
    }

    /// Whether it works and should be looked at.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(self.verdict, Verdict::Warning { .. })
    }
}

/// What was found of each group that was looked at.
pub type Findings = Vec<(Group, Vec<Finding>)>;
