//! Runs the commands of the pages that need only an API server. Before each block the leftovers of the one before it
//! are removed.

use std::fs;

use anyhow::Context as _;
use kerf_tests::cluster::{NAMESPACE, root};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::docs::{Role, pages};
use kerf_tests::openapi::crds;
use serde_json::{Value, json};

use super::reader::Reader;

/// The node that the pages use.
const NODE: &str = "gpu-1";

/// The placeholders that a reader replaces, with their values.
const PLACEHOLDERS: [(&str, &str); 3] =
    [("NODE", NODE), ("NAME", NODE), ("SELECTOR", "nvidia.com/gpu.present=true")];

/// kerf's objects that are in no namespace.
const CLUSTER_SCOPED: &str = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,\
    validatingadmissionpolicies,validatingadmissionpolicybindings,customresourcedefinitions";

/// A node with GPUs and the GPU Operator's labels.
fn node() -> Value {
    let operands = ["device-plugin", "gpu-feature-discovery", "mig-manager", "mps-control-daemon"];
    let mut labels = json!({"nvidia.com/gpu.present": "true"});
    for operand in operands {
        labels[format!("nvidia.com/gpu.deploy.{operand}")] = json!("true");
    }
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}})
}

/// The commands with their placeholders replaced.
fn filled_in(text: &str) -> String {
    let word = |piece: &str| {
        let word = piece.trim_end();
        let value = PLACEHOLDERS.into_iter().find(|(name, _)| *name == word);
        value.map_or_else(|| piece.to_owned(), |(_, value)| piece.replacen(word, value, 1))
    };
    text.split_inclusive(char::is_whitespace).map(word).collect()
}

/// Removes what a page has created.
async fn clear(plane: &ControlPlane) -> anyhow::Result<()> {
    let namespaces = ["delete", "namespace", "kerf-system", "demo", "ollama", "--ignore-not-found"];
    let objects = ["delete", CLUSTER_SCOPED, "--selector=app.kubernetes.io/part-of=kerf"];
    let nodes = ["delete", "node", NODE, "--ignore-not-found"];
    for command in [&objects[..], &namespaces, &nodes] {
        plane.kubectl(command).await?;
    }
    plane.apply(&node().to_string()).await?;
    // As after an installation, because some pages add to one.
    plane.create_namespace(NAMESPACE).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_need_an_api_server_alone_run() -> anyhow::Result<()> {
    let options = ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::default() };
    let plane = ControlPlane::start(options).await?;
    for operator in fs::read_dir(crds()?)? {
        let folder = operator?.path().display().to_string();
        plane.kubectl(&["apply", "--server-side", "--recursive", "-f", &folder]).await?;
    }
    plane.definitions_established().await?;
    let reader = Reader::with_kerf(&plane)?;
    for page in pages(&root())? {
        for block in page.blocks.iter().filter(|block| block.role == Role::RunOnApiServer) {
            clear(&plane).await?;
            let page_and_line = || format!("{}:{}", page.path.display(), block.line);
            let commands = format!("set -euxo pipefail\n{}", filled_in(&block.text));
            reader.run(commands).await.with_context(page_and_line)?;
        }
    }
    plane.stop().await
}

#[test]
fn words_in_capitals_are_replaced() {
    let text = "kubectl label node NODE a=b\nkubectl get node -l SELECTOR NODES # NODE\n";
    let filled =
        "kubectl label node gpu-1 a=b\nkubectl get node -l nvidia.com/gpu.present=true NODES # gpu-1\n";
    assert_eq!(filled_in(text), filled);
}
