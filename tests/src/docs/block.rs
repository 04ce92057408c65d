//! A code block of a page, and the role that its fence gives it.

use std::str::FromStr;
use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The line of its fence, counted from 1.
    pub line: usize,
    pub role: Role,
    pub text: String,
}

/// How a test checks a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Commands that are run in the order of the page.
    Run,
    /// Commands that are run after everything else.
    RunAtTheEnd,
    /// Commands that are run on an API server without kerf's programs and without a kubelet.
    RunOnApiServer,
    /// Commands that cannot be run here.
    Elsewhere(Elsewhere),
    /// Complete documents of Kubernetes and of kerf.
    Manifest,
    /// Complete documents of kinds that other projects define.
    Foreign,
    /// A part of a document, which a test completes.
    Part(Whole),
    /// Text that is only shown.
    Shown,
}

/// The environment of commands that a local control plane without a GPU cannot run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elsewhere {
    /// They are the gate, or a long part of it.
    Gate,
    /// They need a machine with a GPU.
    Gpu,
    /// They need a cloud account.
    Cloud,
    /// They need a container engine or a registry.
    Images,
    /// They need a cluster with more than Kubernetes: GPU Operator, Prometheus, cert-manager, or `OpenShift`.
    Cluster,
}

/// The document that a block is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    Pod,
    Container,
    /// The `spec` of a policy for pods.
    GpuPolicySpec,
    GpuNodePolicy,
    GpuNode,
    /// The values of kerf's chart.
    Values,
    /// A pod and its expected result, for `kerf policy test`.
    PolicyTest,
    /// The `env` of a container.
    Env,
    /// A kustomization at the root of the checkout.
    Kustomization,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the fence {0:?} is not known: see tests/src/docs")]
pub struct UnknownFence(String);

impl FromStr for Role {
    type Err = UnknownFence;

    fn from_str(info: &str) -> Result<Self, UnknownFence> {
        let words: Vec<&str> = info.split_whitespace().collect();
        Ok(match words.as_slice() {
            ["sh"] => Self::Run,
            ["sh", "when=end"] => Self::RunAtTheEnd,
            ["sh", "on=api-server"] => Self::RunOnApiServer,
            ["sh", place] => Self::Elsewhere(match *place {
                "elsewhere=gate" => Elsewhere::Gate,
                "elsewhere=gpu" => Elsewhere::Gpu,
                "elsewhere=cloud" => Elsewhere::Cloud,
                "elsewhere=images" => Elsewhere::Images,
                "elsewhere=cluster" => Elsewhere::Cluster,
                _ => return Err(UnknownFence(info.to_owned())),
            }),
            ["yaml"] => Self::Manifest,
            ["yaml", "elsewhere=cluster"] => Self::Foreign,
            ["yaml", whole] => Self::Part(match *whole {
                "part-of=Pod" => Whole::Pod,
                "part-of=container" => Whole::Container,
                "part-of=GpuPolicy.spec" => Whole::GpuPolicySpec,
                "part-of=GpuNodePolicy" => Whole::GpuNodePolicy,
                "part-of=GpuNode" => Whole::GpuNode,
                "part-of=values" => Whole::Values,
                "part-of=policy-test" => Whole::PolicyTest,
                "part-of=env" => Whole::Env,
                "part-of=kustomization" => Whole::Kustomization,
                _ => return Err(UnknownFence(info.to_owned())),
            }),
            ["text" | "json" | "promql" | "toml" | "mermaid"] => Self::Shown,
            _ => return Err(UnknownFence(info.to_owned())),
        })
    }
}

impl Block {
    /// The commands of the block, without comments, and with continued lines joined.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let joined = self.text.replace("\\\n", " ");
        let lines = joined.lines().map(|line| line.split(" #").next().unwrap_or_default().trim());
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_says_what_becomes_of_its_block() {
        for (info, role) in [
            ("sh", Role::Run),
            ("sh when=end", Role::RunAtTheEnd),
            ("sh on=api-server", Role::RunOnApiServer),
            ("sh elsewhere=gpu", Role::Elsewhere(Elsewhere::Gpu)),
            ("yaml", Role::Manifest),
            ("yaml elsewhere=cluster", Role::Foreign),
            ("yaml part-of=GpuPolicy.spec", Role::Part(Whole::GpuPolicySpec)),
            ("text", Role::Shown),
        ] {
            assert_eq!(info.parse(), Ok(role), "{info}");
        }
        for info in ["", "bash", "sh skip", "sh elsewhere=moon", "yaml part-of=nothing", "text text"] {
            assert_eq!(info.parse::<Role>(), Err(UnknownFence(info.to_owned())));
        }
    }

    #[test]
    fn comments_and_line_ends_are_no_commands() {
        let text =
            "# first\nhelm install kerf \\\n  deploy/chart   # all of it\n\nkubectl get nodes\n".to_owned();
        let block = Block { line: 1, role: Role::Run, text };
        assert_eq!(block.commands(), ["helm install kerf    deploy/chart", "kubectl get nodes"]);
    }
}
