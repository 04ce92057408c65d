//! The overlays and examples of `deploy/` build, and contain what their texts say. The layouts of managed nodes do
//! what the demos show, on the local control plane.

use anyhow::{Context as _, ensure};
use clap::Parser;
use kerf_cli::policy;
use kerf_tests::binaries;
use kerf_tests::chart::name_of;
use kerf_tests::cluster::root;
use kerf_tests::overlays::{Layout, MANAGED, STATIC};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

mod managed;

/// What `kubectl kustomize` builds from a folder below `deploy`.
fn built(folder: &str) -> anyhow::Result<Vec<Value>> {
    let path = root().join("deploy").join(folder);
    let output = Command::new(binaries::tool("kubectl")?).arg("kustomize").arg(&path).output()?;
    ensure!(output.status.success(), "{folder}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).with_context(|| folder.to_owned())?;
    ensure!(!documents.is_empty(), "{folder} is empty");
    Ok(documents)
}

fn of_kind<'d>(documents: &'d [Value], kind: &str) -> Vec<&'d Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

fn named<'d>(documents: &'d [Value], kind: &str, name: &str) -> anyhow::Result<&'d Value> {
    let found = of_kind(documents, kind).into_iter().find(|document| document["metadata"]["name"] == name);
    found.with_context(|| format!("there is no {kind} {name}"))
}

/// The policy files of an overlay, by their names.
fn policies(documents: &[Value]) -> anyhow::Result<BTreeMap<String, String>> {
    let data = named(documents, "ConfigMap", "kerf-policies")?["data"].clone();
    Ok(serde_json::from_value(data)?)
}

/// All folders below `deploy/<under>` whose kustomization builds by itself.
fn kustomizations(under: &str) -> anyhow::Result<Vec<String>> {
    let (mut found, deploy) = (Vec::new(), root().join("deploy"));
    let mut folders = vec![deploy.join(under)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.ends_with("kustomization.yaml")
                && std::fs::read_to_string(&path)?.contains("kind: Kustomization")
            {
                found.push(folder.strip_prefix(&deploy)?.display().to_string());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// `kerf policy`, in this process.
#[derive(Parser)]
struct KerfPolicy {
    #[command(subcommand)]
    command: policy::Command,
}

fn check(folder: &Path) -> anyhow::Result<()> {
    let folder = folder.display().to_string();
    let mut said = Vec::new();
    let result = policy::run(&KerfPolicy::try_parse_from(["policy", "check", &folder])?.command, &mut said);
    result.with_context(|| String::from_utf8_lossy(&said).into_owned())
}

/// A layout of NVIDIA's plugin, by the decided form, which `kerf policy check` reads too.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "what is read is the form")]
struct PluginPolicy {
    api_version: String,
    kind: String,
    metadata: Name,
    spec: PluginSpec,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "what is read is the form")]
struct Name {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginSpec {
    r#match: BTreeMap<String, BTreeMap<String, String>>,
    plugin: Plugin,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Plugin {
    mig_strategy: String,
    #[serde(default)]
    mig_config: Option<String>,
    #[serde(default)]
    time_slicing: Option<Shares>,
    #[serde(default)]
    mps: Option<Shares>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Shares {
    replicas: u32,
    #[serde(default)]
    rename_by_default: bool,
    #[serde(default)]
    fail_requests_greater_than_one: Option<bool>,
}

#[test]
fn each_overlay_adds_the_layout_of_its_name_to_the_base() -> anyhow::Result<()> {
    for Layout { overlay, .. } in STATIC.iter().chain(&MANAGED) {
        let documents = built(&format!("overlays/{overlay}"))?;
        for program in ["kerf-webhook", "kerf-extender", "kerf-scheduler"] {
            named(&documents, "Deployment", program)?;
        }
        named(&documents, "DaemonSet", "kerf-node-agent")?;
        let policies = policies(&documents)?;
        let layout = format!("node-layout-{overlay}.yaml");
        let files: Vec<&str> = policies.keys().map(String::as_str).collect();
        assert_eq!(files, ["default.yaml", layout.as_str(), "partitioning.yaml"], "{overlay}");
        let text = &policies[&layout];
        let policy: Value = serde_saphyr::from_str(text)?;
        // A layout may not have the name of what the plugin uses without a layout.
        let name = if *overlay == "default" { "whole" } else { overlay };
        assert_eq!(policy["metadata"]["name"], name, "{overlay}");
    }
    Ok(())
}

#[test]
fn the_layouts_of_nvidias_plugin_do_what_their_names_say() -> anyhow::Result<()> {
    for Layout { overlay, allocatable, .. } in STATIC {
        let policies = policies(&built(&format!("overlays/{overlay}"))?)?;
        let policy: PluginPolicy = serde_saphyr::from_str(&policies[&format!("node-layout-{overlay}.yaml")])
            .with_context(|| overlay.to_owned())?;
        let plugin = policy.spec.plugin;
        let shares = plugin.time_slicing.as_ref().or(plugin.mps.as_ref()).map_or(1, |shares| shares.replicas);
        let strategy = overlay.strip_prefix("mig-").unwrap_or("none");
        assert_eq!(plugin.mig_strategy, strategy, "{overlay}");
        assert_eq!(plugin.mig_config.is_some(), strategy != "none", "{overlay}");
        assert_eq!(plugin.time_slicing.is_some(), overlay.starts_with("time-sliced"), "{overlay}");
        assert_eq!(plugin.mps.is_some(), overlay.starts_with("mps"), "{overlay}");
        if strategy == "none" {
            assert_eq!(allocatable, [("nvidia.com/gpu", shares)], "{overlay}");
        }
    }
    let together = std::fs::read_to_string(root().join("deploy/components/layouts/node-layouts.yaml"))?;
    let together: Vec<PluginPolicy> = serde_saphyr::from_multiple(&together)?;
    let names: BTreeSet<&str> = together
        .iter()
        .filter_map(|policy| policy.spec.r#match["labels"].get("kerf.dev/layout"))
        .map(|s| &**s)
        .collect();
    assert_eq!(names, STATIC.iter().map(|layout| layout.overlay).collect());
    for policy in &together {
        let name = &policy.spec.r#match["labels"]["kerf.dev/layout"];
        let path = root().join(format!("deploy/components/{name}/node-layout-{name}.yaml"));
        let alone: PluginPolicy = serde_saphyr::from_str(&std::fs::read_to_string(path)?)?;
        assert_eq!(policy.spec.plugin, alone.spec.plugin, "{name}");
    }
    Ok(())
}

#[test]
fn the_layouts_are_valid_policies() -> anyhow::Result<()> {
    for Layout { overlay, .. } in STATIC.iter().chain(&MANAGED) {
        let folder = tempfile::tempdir()?;
        for (name, text) in policies(&built(&format!("overlays/{overlay}"))?)? {
            std::fs::write(folder.path().join(name), text)?;
        }
        check(folder.path()).with_context(|| (*overlay).to_owned())?;
    }
    let folder = tempfile::tempdir()?;
    let together = root().join("deploy/components/layouts/node-layouts.yaml");
    std::fs::copy(together, folder.path().join("node-layouts.yaml"))?;
    check(folder.path())
}

#[test]
fn every_overlay_has_its_expectation_and_every_example_builds() -> anyhow::Result<()> {
    let known: BTreeSet<String> =
        STATIC.iter().chain(&MANAGED).map(|l| format!("overlays/{}", l.overlay)).collect();
    let mut found: BTreeSet<String> = kustomizations("overlays")?.into_iter().collect();
    assert!(found.remove("overlays/monitoring"), "the one that is no layout");
    assert_eq!(found, known);
    let images = std::fs::read_to_string(root().join("deploy/examples/images.yaml"))?;
    for folder in kustomizations("examples")? {
        for deployment in of_kind(&built(&folder)?, "Deployment") {
            for container in
                deployment["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten()
            {
                let image = container["image"].as_str().context("an image")?;
                ensure!(
                    images.contains(&format!("- name: {image}\n")),
                    "{folder}: {image} is not in the list"
                );
            }
        }
    }
    Ok(())
}

/// What kustomize builds from the base with one component.
fn with_component(component: &str) -> anyhow::Result<Vec<Value>> {
    let folder = tempfile::tempdir()?;
    // kustomize accepts relative paths only.
    let here = folder.path().canonicalize()?;
    let up = "../".repeat(here.components().count() - 1);
    let deploy = format!("{up}{}", root().join("deploy").canonicalize()?.strip_prefix("/")?.display());
    let text = format!("resources: [{deploy}/base]\ncomponents: [{deploy}/components/{component}]\n");
    std::fs::write(here.join("kustomization.yaml"), text)?;
    built(&here.display().to_string()).with_context(|| component.to_owned())
}

/// `kubectl apply` without `--prune` leaves an object that a component removes, and the rights that it gives.
#[test]
fn a_component_removes_no_object_of_the_base() -> anyhow::Result<()> {
    let base = built("base")?;
    for entry in std::fs::read_dir(root().join("deploy/components"))? {
        let component = entry?.file_name().into_string().ok().context("a name in UTF-8")?;
        let built = with_component(&component)?;
        let names: BTreeSet<String> = built.iter().map(name_of).collect();
        let gone: Vec<String> = base.iter().map(name_of).filter(|name| !names.contains(name)).collect();
        assert_eq!(gone, Vec::<String>::new(), "{component}");
        if component == "extender-no-moves" {
            assert_eq!(named(&built, "ClusterRole", "kerf-extender-moves")?["rules"], serde_json::json!([]));
        }
    }
    Ok(())
}

#[test]
fn each_workload_has_as_many_pods_as_its_layout_shows() -> anyhow::Result<()> {
    for Layout { overlay, workload, running, pending, allocatable, .. } in STATIC.iter().chain(&MANAGED) {
        let documents = built(&format!("examples/validation/{workload}"))?;
        let deployment = named(&documents, "Deployment", "nvidia-plugin-test")?;
        assert_eq!(deployment["metadata"]["namespace"], "demo");
        assert_eq!(deployment["spec"]["replicas"], running + pending, "{overlay}");
        let limits = &deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"];
        let asked: Vec<&String> = limits.as_object().context("limits")?.keys().collect();
        let offered =
            allocatable.iter().any(|(name, count)| *name == asked[0] && *running as u64 <= u64::from(*count));
        assert!(
            offered || workload.starts_with("kerf/") && asked[0].starts_with("kerf.dev/gpu-"),
            "{overlay}: {asked:?}"
        );
    }
    Ok(())
}

/// `OpenShift` admits the agent's pod by what it asks for, and nothing else is granted.
#[test]
fn openshifts_constraints_allow_what_the_agent_needs() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root().join("deploy/components/openshift/agent.yaml"))?;
    let constraints: Value = serde_saphyr::from_str(&text)?;
    let documents = built("base")?;
    let agent = &named(&documents, "DaemonSet", "kerf-node-agent")?["spec"]["template"]["spec"];
    for (granted, asked) in
        [("allowHostPID", "hostPID"), ("allowHostIPC", "hostIPC"), ("allowHostNetwork", "hostNetwork")]
    {
        assert_eq!(
            constraints[granted].as_bool(),
            Some(agent[asked].as_bool().unwrap_or(false)),
            "{granted}"
        );
    }
    let privileged = &agent["containers"][0]["securityContext"]["privileged"];
    assert_eq!(constraints["allowPrivilegedContainer"], *privileged);
    let volumes = agent["volumes"].as_array().context("volumes")?;
    let mut kinds: BTreeSet<&str> = volumes
        .iter()
        .filter_map(|v| v.as_object()?.keys().map(String::as_str).find(|key| *key != "name"))
        .collect();
    kinds.insert("projected");
    let granted: BTreeSet<&str> =
        constraints["volumes"].as_array().context("volumes")?.iter().filter_map(Value::as_str).collect();
    assert_eq!(granted, kinds);
    let account = format!(
        "system:serviceaccount:kerf-system:{}",
        agent["serviceAccountName"].as_str().unwrap_or_default()
    );
    assert_eq!(constraints["users"], serde_json::json!([account]));
    Ok(())
}

/// Every folder and file that the table names exists, and every overlay and example has its line.
#[test]
fn the_table_of_the_reference_demos_is_complete() -> anyhow::Result<()> {
    let table = std::fs::read_to_string(root().join("docs/reference-demos.md"))?;
    let named: BTreeSet<PathBuf> = table
        .split(['`', ' ', '(', ')', '|'])
        .filter(|word| ["deploy/", "docs/", "core/", "tests/"].iter().any(|start| word.starts_with(start)))
        .map(|word| PathBuf::from(word.trim_end_matches('/')))
        .collect();
    for path in &named {
        ensure!(root().join(path).exists(), "{} is not there", path.display());
    }
    for folder in kustomizations("overlays")?.into_iter().chain(kustomizations("examples")?) {
        let path = Path::new("deploy").join(&folder);
        // A base is no overlay of its own; other overlays use it.
        if path.ends_with("base") {
            continue;
        }
        let reported = named.iter().any(|named| path.starts_with(named) && named.components().count() > 2);
        ensure!(reported, "{} is not in docs/reference-demos.md", path.display());
    }
    Ok(())
}
