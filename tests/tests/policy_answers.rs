//! `kerf policy` answers as the webhook does: for the manifests of the documentation, the pods of `policies/tests`, and
//! every refusal that exists.

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Parser;
use kerf_cli::policy;
use kerf_core::names::NodeName;
use kerf_core::policy::{Supply, SupplyIndex};
use kerf_core::resource::ResourceName;
use kerf_core::testing::node_status;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kerf_runtime::policy_file;
use kerf_tests::cluster::root;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// `kerf policy`, in this process.
#[derive(Parser)]
struct KerfPolicy {
    #[command(subcommand)]
    command: policy::Command,
}

fn said(args: &[&str], gpunodes: Option<&Path>) -> anyhow::Result<String> {
    let nodes = gpunodes.map(|path| format!("--gpunodes={}", path.display()));
    let args = std::iter::once("policy").chain(args.iter().copied()).chain(nodes.as_deref());
    let mut out = Vec::new();
    let result = policy::run(&KerfPolicy::try_parse_from(args)?.command, &mut out);
    let text = String::from_utf8(out)?;
    result.with_context(|| text.clone()).map(|()| text)
}

/// A pod as the API server sends it to the webhook.
struct Case {
    name: String,
    manifest: Value,
    namespace: String,
    pod: Value,
}

impl Case {
    /// A case of a Pod, or of a Deployment's pod.
    fn from_manifest(name: &str, manifest: &Value) -> Self {
        let is_pod = manifest["kind"] == "Pod";
        let mut pod = if is_pod { manifest } else { &manifest["spec"]["template"] }.clone();
        if pod["spec"]["serviceAccountName"].is_null() {
            pod["spec"]["serviceAccountName"] = json!("default");
        }
        let namespace = manifest["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        Self { name: name.to_owned(), manifest: manifest.clone(), namespace, pod }
    }
}

/// The decision about a pod.
#[derive(Debug, PartialEq, Eq, Default)]
struct Answer {
    refused: Option<String>,
    /// What each container gets, as in `main gets 2x nvidia.com/gpu-10gb`.
    gets: Vec<String>,
    warnings: Vec<String>,
}

impl Answer {
    /// The webhook's decision, from its answer to the API server.
    fn of_webhook(case: &Case, policies: &Path, supply: &Supply) -> anyhow::Result<Self> {
        let question = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "1", "operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"},
                "namespace": case.namespace, "object": case.pod,
            },
        });
        let policies = policy_file::read(policies)?;
        let answer = kerf_webhook::testing::answer(question.to_string().as_bytes(), &policies, supply);
        let answer: Value = serde_json::from_str(&answer.context("no answer")?)?;
        let response = &answer["response"];
        if response["allowed"] != true {
            let refused = response["status"]["message"].as_str().map(str::to_owned);
            return Ok(Self { refused, ..Self::default() });
        }
        let Some(patch) = response["patch"].as_str() else { return Ok(Self::default()) };
        let mut pod = case.pod.clone();
        json_patch::patch(&mut pod, &serde_json::from_slice::<json_patch::Patch>(&STANDARD.decode(patch)?)?)?;
        let warnings = response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Ok(Self { gets: gets(&pod), warnings: warnings.map(str::to_owned).collect(), refused: None })
    }

    /// The command's decision, from its output.
    fn of_explain(case: &Case, policies: &str, gpunodes: Option<&Path>) -> anyhow::Result<Self> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), case.manifest.to_string())?;
        let file = file.path().display().to_string();
        let text = said(&["explain", "-f", &file, "--policy", policies], gpunodes)?;
        let after =
            |prefix: &str| text.lines().filter_map(|l| l.strip_prefix(prefix)).map(str::to_owned).collect();
        let refused: Vec<String> = after("  refused: ");
        Ok(Self {
            refused: refused.into_iter().next(),
            gets: after("  container "),
            warnings: after("  warning: "),
        })
    }

    /// The decision as an expectation of `kerf policy test`.
    fn expected(&self) -> Value {
        let mut expect = json!({"untouched": self.refused.is_none() && self.gets.is_empty()});
        if let Some(refused) = &self.refused {
            expect["refused"] = json!(refused);
        }
        if let Some(warning) = self.warnings.last() {
            expect["warning"] = json!(warning);
        }
        for (container, gets) in self.gets.iter().filter_map(|gets| gets.split_once(" gets ")) {
            expect["containers"][container] = json!(gets);
        }
        json!({"expect": expect})
    }
}

/// The limits of an admitted pod, as texts.
fn gets(pod: &Value) -> Vec<String> {
    let containers = ["initContainers", "containers"]
        .into_iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
    let of = |container: &Value| {
        let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
        let name = container["name"].as_str().unwrap_or_default().to_owned();
        let slices = limits.into_iter().filter(|(limit, _)| limit.parse::<ResourceName>().is_ok());
        slices
            .map(|(limit, count)| format!("{name} gets {}x {limit}", count.as_str().unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    containers.flat_map(of).collect()
}

/// Compares the webhook and the commands. Returns how many pods were refused and how many got something.
fn compare(
    cases: &[Case],
    policies: &Path,
    supply: &Supply,
    gpunodes: Option<&Path>,
) -> anyhow::Result<(usize, usize)> {
    let folder = tempfile::tempdir()?;
    let text = policies.display().to_string();
    let (mut refused, mut served) = (0, 0);
    for (number, case) in cases.iter().enumerate() {
        let answer = Answer::of_webhook(case, policies, supply).with_context(|| case.name.clone())?;
        let explained = Answer::of_explain(case, &text, gpunodes).with_context(|| case.name.clone())?;
        assert_eq!(explained, answer, "{}: {}", case.name, case.manifest);
        refused += usize::from(answer.refused.is_some());
        served += usize::from(!answer.gets.is_empty());
        let documents = format!("{}\n---\n{}\n", case.manifest, answer.expected());
        std::fs::write(folder.path().join(format!("{number:03}.yaml")), documents)?;
    }
    said(&["test", &folder.path().display().to_string(), "--policy", &text], gpunodes)?;
    Ok((refused, served))
}

/// The pods of a folder's files.
fn cases(folder: &Path) -> anyhow::Result<Vec<Case>> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.sort_unstable();
    let mut cases = Vec::new();
    for file in files {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(&file)?)?;
        let makes_pods = documents.iter().filter(|d| d["kind"] == "Pod" || d["kind"] == "Deployment");
        cases.extend(makes_pods.map(|document| Case::from_manifest(&file.display().to_string(), document)));
    }
    ensure!(!cases.is_empty(), "{}: no pods", folder.display());
    Ok(cases)
}

#[test]
fn on_the_manifests_of_the_documentation() -> anyhow::Result<()> {
    let folder = root().join("docs/dialects");
    let statuses = [node_status(&["H100-80GB", "H100-80GB"]), node_status(&["T4-16GB"])];
    let node = |(number, status)| GpuNode {
        status: Some(json!(status)),
        ..GpuNode::new(&NodeName::new(format!("n{number}")))
    };
    let nodes: Vec<GpuNode> = statuses.iter().enumerate().map(node).collect();
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), json!({"kind": "List", "items": nodes}).to_string())?;
    let (cases, policies) = (cases(&folder)?, folder.join("policy.yaml"));
    let with_gpus = compare(&cases, &policies, &Supply::from_statuses(&statuses), Some(file.path()))?;
    let without = compare(&cases, &policies, &Supply::default(), None)?;
    ensure!(with_gpus.1 > 15 && without.1 > 15, "{with_gpus:?} {without:?}");
    Ok(())
}

#[test]
fn on_static_nodes() -> anyhow::Result<()> {
    let labels = |product: &str, memory: &str, count: &str, replicas: &str, strategy: &str| {
        json!({
            "nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": memory, "nvidia.com/gpu.count": count,
            "nvidia.com/gpu.replicas": replicas, "nvidia.com/gpu.sharing-strategy": strategy,
        })
    };
    let node = |name: &str, labels: Value, resource: &str, count: &str| {
        let all = json!({"cpu": "8", resource: count});
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"capacity": all, "allocatable": all},
        })
    };
    let nodes = [
        node("mps", labels("NVIDIA-A100-SXM4-80GB-SHARED", "81920", "2", "4", "mps"), "nvidia.com/gpu", "8"),
        node("single", labels("NVIDIA-H200-MIG-1g.18gb", "16384", "7", "1", "none"), "nvidia.com/gpu", "7"),
        node(
            "sliced",
            labels("NVIDIA-A10G", "23028", "1", "2", "time-slicing"),
            "nvidia.com/gpu.shared",
            "2",
        ),
        node("bare", json!({}), "nvidia.com/gpu", "1"),
    ];
    let mut index = SupplyIndex::default();
    for node in &nodes {
        let machine: Machine = serde_json::from_value(node.clone())?;
        index.show_static(machine.name(), machine.static_node());
        index.show_user_namespaces(&machine.name(), machine.has_user_namespaces());
    }
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), json!({"kind": "List", "items": nodes}).to_string())?;
    let folder = root().join("docs/dialects");
    let (cases, policies) = (cases(&folder)?, folder.join("policy.yaml"));
    let (_, served) = compare(&cases, &policies, &index.supply(), Some(file.path()))?;
    ensure!(served > 12, "{served}");
    Ok(())
}

#[test]
fn on_the_pods_of_the_shipped_tests() -> anyhow::Result<()> {
    for (folder, policies) in [
        ("default", "default.yaml"),
        ("teams", "examples/teams.yaml"),
        ("dialects", "examples/dialects.yaml"),
    ] {
        let cases = cases(&root().join("policies/tests").join(folder))?;
        compare(&cases, &root().join("policies").join(policies), &Supply::default(), None)?;
    }
    Ok(())
}

#[test]
fn on_every_refusal() -> anyhow::Result<()> {
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(root().join("webhook/src/admit/refusals.json"))?)?;
    let folder = tempfile::tempdir()?;
    let policies = folder.path().join("policies.yaml");
    let documents = golden["policies"].as_array().context("policies")?.iter().map(Value::to_string);
    std::fs::write(&policies, documents.collect::<Vec<_>>().join("\n---\n"))?;
    // The command skips manifests that are not Pods.
    let all = golden["cases"].as_array().context("cases")?.iter().filter(|case| case["direct"] == false);
    let cases: Vec<Case> = all
        .map(|case| Case::from_manifest(case["case"].as_str().unwrap_or_default(), &case["pod"]))
        .collect();
    let (refused, _) = compare(&cases, &policies, &Supply::default(), None)?;
    ensure!(refused == cases.len() && refused > 60, "{refused} of {}", cases.len());
    Ok(())
}
