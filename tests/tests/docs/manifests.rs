//! Validates the manifests in the pages, and parts of manifests.

use anyhow::{Context as _, ensure};
use kerf_core::contract::NodePolicy;
use kerf_core::policy::NodePolicyDocument;
use kerf_runtime::policy_file;
use kerf_tests::chart::{objects, template};
use kerf_tests::cluster::{NAMESPACE, root};
use kerf_tests::control_plane::ControlPlane;
use kerf_tests::docs::{Block, Page, Role, Whole, pages};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A Pod with only the required fields.
fn pod() -> Value {
    let container = json!({"name": "main", "image": "none"});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shown"}, "spec": {"containers": [container]}})
}

fn policy(kind: &str, spec: &Value) -> Value {
    json!({"apiVersion": "kerf.dev/v1alpha1", "kind": kind, "metadata": {"name": "shown"}, "spec": spec})
}

fn merged(mut whole: Value, part: &Value) -> Value {
    json_patch::merge(&mut whole, part);
    whole
}

/// The whole objects that a block shows or shows a part of.
fn wholes(role: Role, text: &str) -> anyhow::Result<Vec<Value>> {
    let parts = objects(text)?;
    let Role::Part(whole) = role else { return Ok(parts) };
    let part = parts.first().context("the block is empty")?;
    let in_container = |part: &Value| {
        let mut pod = pod();
        json_patch::merge(&mut pod["spec"]["containers"][0], part);
        pod
    };
    Ok(vec![match whole {
        Whole::Pod => merged(pod(), part),
        Whole::Container => in_container(part),
        Whole::Env => in_container(&json!({"env": part})),
        Whole::GpuPolicySpec => {
            let spec = json!({"defaultIsolation": "memory", "isolation": {"memory": ["mig"]}});
            policy("GpuPolicy", &merged(spec, part))
        }
        Whole::GpuNodePolicy => merged(policy("GpuNodePolicy", &json!({})), part),
        Whole::PolicyTest => merged(part.clone(), &json!({"metadata": {"namespace": null}})),
        Whole::GpuNode | Whole::Kustomization | Whole::Values => part.clone(),
    }])
}

/// Whether its reader accepts it: core for kerf's own documents, Helm for values, file paths for the parts of a
/// kustomization, the API server for everything else.
async fn taken(plane: &ControlPlane, role: Role, object: Value) -> anyhow::Result<()> {
    match (role, object["kind"].as_str()) {
        (Role::Part(Whole::Values), _) => {
            let file = tempfile::NamedTempFile::new()?;
            std::fs::write(file.path(), object.to_string())?;
            template(NAMESPACE, &["--values", &file.path().display().to_string()])?;
        }
        (Role::Foreign, kind) => {
            ensure!(kind.is_some() && object["apiVersion"].is_string(), "it has no kind or no apiVersion");
        }
        (Role::Part(Whole::GpuNode), _) => {
            serde_json::from_value::<NodePolicy>(object["spec"]["policy"].clone())?;
        }
        (_, Some("GpuPolicy")) => {
            policies_are_taken(&object)?;
        }
        (_, Some("GpuNodePolicy")) => {
            let problems = serde_json::from_value::<NodePolicyDocument>(object)?.problems();
            ensure!(problems.is_empty(), "{problems:?}");
        }
        (_, Some("Kustomization")) => {
            let lists =
                ["resources", "components"].map(|list| object[list].as_array().cloned().unwrap_or_default());
            for path in lists.concat() {
                let path = path.as_str().context("a path is a text")?;
                ensure!(root().join(path).exists(), "{path} is not there");
            }
        }
        _ => {
            let dry_run = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
            let output = plane.kubectl_output(&dry_run, &object.to_string()).await?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    Ok(())
}

/// Whether the programs accept a policy. One that extends another is read beside the shipped ones.
fn policies_are_taken(object: &Value) -> anyhow::Result<()> {
    let mut texts = vec![(PathBuf::from("page.json"), object.to_string())];
    if !object["spec"]["extends"].is_null() {
        let shipped = root().join("policies/default.yaml");
        texts.push((shipped.clone(), std::fs::read_to_string(shipped)?));
    }
    policy_file::check_texts(Path::new("page"), texts).map_err(|mut errors| errors.remove(0))?;
    Ok(())
}

async fn block_is_taken(plane: &ControlPlane, block: &Block) -> anyhow::Result<()> {
    for object in wholes(block.role, &block.text)? {
        taken(plane, block.role, object).await?;
    }
    Ok(())
}

/// Every manifest of the pages, and every part of one, is accepted by the program that reads it.
pub async fn are_taken(plane: &ControlPlane) -> anyhow::Result<()> {
    let mut blocks = 0;
    for page in pages(&root())? {
        let Page { path, blocks: all, .. } = &page;
        let is_manifest =
            |block: &&Block| matches!(block.role, Role::Manifest | Role::Foreign | Role::Part(_));
        for block in all.iter().filter(is_manifest) {
            block_is_taken(plane, block)
                .await
                .with_context(|| format!("{}:{}", path.display(), block.line))?;
            blocks += 1;
        }
    }
    ensure!(blocks > 5, "only {blocks} manifests were found");
    Ok(())
}
