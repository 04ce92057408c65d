//! Tests `kerf policy` with the shipped policies and with bad ones.

#![expect(clippy::unwrap_used, reason = "a fault of a test's own shows where it is")]

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn kerf(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kerf")).current_dir(folder).arg("policy").args(args).output().unwrap()
}

fn said(folder: &Path, args: &[&str]) -> (String, bool) {
    let output = kerf(folder, args);
    let text = [output.stdout, output.stderr].map(|part| String::from_utf8(part).unwrap()).concat();
    (text, output.status.success())
}

fn shipped() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("policies/default.yaml")];
    for entry in std::fs::read_dir(root().join("policies/examples")).unwrap() {
        files.push(Path::new("policies/examples").join(entry.unwrap().file_name()));
    }
    files.sort();
    assert!(files.len() > 5, "{files:?}");
    files
}

#[test]
fn every_policy_that_is_shipped_is_good_and_names_its_schema() {
    for file in shipped() {
        let (text, good) = said(&root(), &["check", file.to_str().unwrap()]);
        assert!(good && !text.contains("warning"), "{text}");
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let schema = text.strip_prefix("# yaml-language-server: $schema=").unwrap().lines().next().unwrap();
        let schema = root().join(&file).parent().unwrap().join(schema);
        assert!(schema.exists(), "{}: {} is not there", file.display(), schema.display());
    }
    let (text, good) = said(&root(), &["check", "policies"]);
    assert!(good, "{text}");
}

fn folders_with_policies(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(root().join(folder)).unwrap() {
        let path = folder.join(entry.unwrap().file_name());
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml");
        if root().join(&path).is_dir() {
            folders_with_policies(&path, found);
        } else if is_yaml {
            let text = std::fs::read_to_string(root().join(&path)).unwrap();
            let is_kind = |line: &str| matches!(line, "kind: GpuPolicy" | "kind: GpuNodePolicy");
            found.extend(text.lines().any(is_kind).then(|| folder.to_owned()));
        }
    }
}

#[test]
fn every_folder_of_policies_that_is_shipped_is_good() {
    let mut folders = BTreeSet::new();
    for folder in ["policies", "deploy", "docs"] {
        folders_with_policies(Path::new(folder), &mut folders);
    }
    for known in ["policies", "policies/examples", "deploy/chart/files/policies", "docs/dialects"] {
        assert!(folders.contains(Path::new(known)), "{known} is not among {folders:?}");
    }
    for folder in &folders {
        let (text, good) = said(&root(), &["check", folder.to_str().unwrap()]);
        assert!(good, "{}: {text}", folder.display());
    }
    let all: Vec<&str> = folders.iter().map(|folder| folder.to_str().unwrap()).collect();
    let (text, good) = said(&root(), &[&["check"], &all[..]].concat());
    assert!(good, "{text}");
}

#[test]
fn skipped_files_are_listed_with_the_reason() {
    let paths = [
        "policies",
        "policies/kustomization.yaml",
        "policies/README.md",
        "policies/tests/teams/notebook.yaml",
    ];
    let (text, good) = said(&root(), &[&["check"], &paths[..]].concat());
    assert!(good, "{text}");
    for skipped in [
        "policies/README.md: skipped: its name does not end in",
        "policies/kustomization.yaml: skipped: a kustomization\n",
        "policies/examples: skipped: a folder; give it by itself\n",
        "policies/tests/teams/notebook.yaml: skipped: a case of kerf policy test",
    ] {
        assert!(text.contains(skipped), "{text}");
    }
    // A run that checks no file is a failure, because a wrong path would otherwise look like good policies.
    for (paths, why) in [
        (&["policies/tests/teams"][..], "policies/tests/teams: there is no policy in it"),
        (&["policies/README.md", "policies/kustomization.yaml"], "no policy was checked"),
        (&["policies", "policies/schema"], "policies/schema: there is no policy in it"),
    ] {
        let (text, good) = said(&root(), &[&["check"], paths].concat());
        assert!(!good && text.contains(why), "{paths:?}: {text}");
    }
}

#[test]
fn the_shipped_schemas_are_those_of_the_types() {
    for kind in ["gpupolicy", "gpunodepolicy"] {
        let (made, good) = said(&root(), &["schema", kind]);
        assert!(good, "{made}");
        let path = root().join(format!("policies/schema/{kind}.json"));
        let lies = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(lies, made, "make it anew: kerf policy schema {kind} > {}", path.display());
        let (yaml, good) = said(&root(), &["schema", kind, "-o", "yaml"]);
        assert!(good, "{yaml}");
        let [json, yaml] = [lies, yaml].map(|text| serde_saphyr::from_str::<Value>(&text).unwrap());
        assert_eq!(json, yaml);
    }
}

fn keys(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(parts) => {
            if let Some(Value::Object(properties)) = parts.get("properties") {
                found.extend(properties.keys().cloned());
            }
            parts.values().for_each(|part| keys(part, found));
        }
        Value::Array(parts) => parts.iter().for_each(|part| keys(part, found)),
        _ => {}
    }
}

#[test]
fn the_guide_documents_every_field() {
    let guide = std::fs::read_to_string(root().join("docs/policies.md")).unwrap();
    let mut found = BTreeSet::new();
    for kind in ["gpupolicy", "gpunodepolicy"] {
        keys(&serde_json::from_str(&said(&root(), &["schema", kind]).0).unwrap(), &mut found);
    }
    // These are left out, because every Kubernetes document has some of them, and Kubernetes' tolerations have the
    // others.
    for known in ["apiVersion", "kind", "metadata", "spec", "key", "operator", "value", "effect"] {
        assert!(found.remove(known), "{known}");
    }
    assert!(found.len() > 40, "{found:?}");
    let missing: Vec<_> = found.iter().filter(|key| !guide.contains(key.as_str())).collect();
    assert!(missing.is_empty(), "docs/policies.md says nothing of {missing:?}");
}

const BAD: &str = "apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: a}
spec:
  defaultIsolation: memory
  isolation:
    memory: [mig, time-slicing]
  sizes: {minGb: 20, maxGb: 10}
---
apiVersion: kerf.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: n}
spec:
  gpus:
  - kinds: [mig]
    mps: {strict: true}
";

#[test]
fn every_mistake_is_reported_with_file_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let good = "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {name: b}\nspec:\n  defaultIsolation: memory\n  isolation: {memory: [mig]}\n";
    write("bad.yaml", BAD);
    write("typo.yaml", &good.replace("isolation: {", "isolatoin: {"));
    for name in ["never/1.yaml", "never/2.yaml", "twice/1.yaml", "twice/2.yaml"] {
        std::fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        let narrow = name.ends_with("2.yaml");
        let text =
            if narrow { good.replace("spec:", "spec:\n  match: {models: [H100]}") } else { good.to_owned() };
        let rename = narrow && name.starts_with("never");
        write(name, &if rename { text.replace("name: b", "name: c") } else { text });
    }
    let (text, is_good) =
        said(folder.path(), &["check", "bad.yaml", "typo.yaml", "never", "twice", "absent.yaml"]);
    assert!(!is_good);
    insta::assert_snapshot!(text);
    assert_eq!(kerf(folder.path(), &["check", "bad.yaml"]).status.code(), Some(1));
}

const PODS: &str = "apiVersion: v1
kind: Pod
metadata: {name: a, namespace: research-vision, annotations: {kerf.dev/gpu-memory: 10Gi}}
spec: {containers: [{name: main}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: b}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: main, resources: {limits: {kerf.dev/gpu-10gb: 1}}}]}}}}}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: d, namespace: research}
  spec: {template: {spec: {containers: [{name: main, resources: {limits: {kerf.dev/gpu-80gb: 1}}}]}}}
- {apiVersion: v1, kind: Pod, metadata: {name: e, namespace: research}, spec: {containers: [{name: main}]}}
";

#[test]
fn which_policy_matches_and_why_others_do_not_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let pods = folder.path().join("pods.yaml");
    std::fs::write(&pods, PODS).unwrap();
    let of_file = ["explain", "-f", pods.to_str().unwrap(), "-n", "web"];
    let (text, good) = said(&root(), &[&of_file[..], &["--policy", "policies/examples/teams.yaml"]].concat());
    assert!(good, "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn inherited_fields_are_shown_with_their_policy() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let namespace = |name: &str, tier: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{example.com/gpu-tier: {tier}}}}}\n---\n"
        )
    };
    let pod = |namespace: &str| {
        format!("{}---\n", PODS.split("---").next().unwrap().replace("research-vision", namespace))
    };
    let known = namespace("lab", "silver") + &namespace("big", "silver-plus");
    write("pods.yaml", &(known + &pod("lab") + &pod("big") + &pod("unknown")));
    let policies = root().join("policies/examples/bounds.yaml");
    let (text, good) =
        said(folder.path(), &["explain", "-f", "pods.yaml", "--policy", policies.to_str().unwrap()]);
    assert!(good, "{text}");
    insta::assert_snapshot!(text);
}

/// Earlier versions called the flag `--policies`, so that name must still work.
#[test]
fn the_policy_flag_also_has_its_earlier_name() {
    let explain = |flag: &str| {
        said(
            &root(),
            &["explain", "-f", "deploy/examples/mig-small.yaml", flag, "policies/examples/teams.yaml"],
        )
    };
    assert_eq!(explain("--policy"), explain("--policies"));
    assert!(explain("--policy").1);
}

#[test]
fn the_shipped_policies_do_what_their_tests_expect() {
    for (tests, policies) in [
        ("policies/tests/default", "policies"),
        ("policies/tests/teams", "policies/examples/teams.yaml"),
        ("policies/tests/dialects", "policies/examples/dialects.yaml"),
        ("policies/tests/bounds", "policies/examples/bounds.yaml"),
    ] {
        let (text, good) = said(&root(), &["test", tests, "--policy", policies]);
        assert!(good, "{text}");
    }
}

#[test]
fn a_pod_with_an_unexpected_decision_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {kerf.dev/gpu-memory: 10Gi}}\nspec: {containers: [{name: main}]}\n";
    write(
        "1-wrong.yaml",
        &format!(
            "{pod}---\nexpect:\n  policy: other\n  containers: {{main: nvidia.com/gpu-10gb}}\n  refused: x\n  warning: w\n  untouched: true\n"
        ),
    );
    write("2-typo.yaml", &format!("{pod}---\nexpect:\n  polcy: default\n"));
    write("3-nothing.yaml", pod);
    write("4-good.yaml", pod);
    write("4-good.expected.yaml", "policy: default\n");
    write("5-refused.yaml", &format!("{}---\nexpect: {{policy: default}}\n", pod.replace("10Gi", "10Ti")));
    let policies = root().join("policies");
    let (text, good) = said(folder.path(), &["test", ".", "--policy", policies.to_str().unwrap()]);
    assert!(!good);
    insta::assert_snapshot!(text);
}

#[test]
fn each_template_of_an_object_is_explained_under_its_path() {
    for name in ["pytorchjob", "workflow"] {
        let file = format!("cli/src/policy/testdata/{name}.yaml");
        let (text, good) = said(&root(), &["explain", "-f", &file]);
        assert!(good, "{text}");
        insta::assert_snapshot!(name, text);
    }
    let (text, good) = said(&root(), &["explain", "-f", "cli/src/policy/testdata/none.yaml"]);
    assert!(
        !good && text.contains("there is no pod in it") && text.contains("looked for objects of kind Pod"),
        "{text}"
    );
}

#[test]
fn each_template_of_an_object_is_tested_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let job = std::fs::read_to_string(root().join("cli/src/policy/testdata/mpijob.yaml")).unwrap();
    let launcher = "---\nexpect: {template: spec.mpiReplicaSpecs.Launcher.template, untouched: true}\n";
    let worker = "---\nexpect: {template: spec.mpiReplicaSpecs.Worker.template, containers: {worker: kerf.dev/gpu-10gb}}\n";
    write("1-good.yaml", &format!("{job}{launcher}{worker}"));
    write("2-wrong.yaml", &format!("{job}{launcher}{}", worker.replace("gpu-10gb", "gpu-20gb")));
    write("3-one-is-missing.yaml", &format!("{job}{worker}"));
    write("4-without-path.yaml", &format!("{job}---\nexpect: {{policy: default}}\n"));
    write("5-twice.yaml", &format!("{job}{worker}{worker}"));
    write("6-no-pod.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\nexpect: {}\n");
    write("7-two-objects.yaml", &format!("{job}---\n{}---\nexpect: {{}}\n", job.replace("allreduce", "b")));
    let policies = root().join("policies");
    let (text, good) = said(folder.path(), &["test", ".", "--policy", policies.to_str().unwrap()]);
    assert!(!good);
    insta::assert_snapshot!(text);
}

fn json(args: &[&str]) -> Value {
    let output = kerf(&root(), &[args, &["-o", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn programs_read_the_same_policies_as_people() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("bad.yaml"), BAD).unwrap();
    let checked = json(&["check", "-f", "policies/default.yaml", &at("bad.yaml"), "policies/README.md"]);
    assert_eq!(checked["good"], false);
    let paths = checked["paths"].as_array().unwrap();
    let goods: Vec<&Value> = paths.iter().map(|path| &path["good"]).collect();
    assert_eq!(goods, [true, false, true]);
    assert_eq!(paths[0]["policies"][0]["kind"], "GpuPolicy");
    assert_eq!(paths[1]["problems"][0]["severity"], "error");
    assert!(paths[2]["skipped"][0]["why"].as_str().unwrap().contains("does not end in"));

    std::fs::write(at("pods.yaml"), PODS).unwrap();
    let explained = json(&["explain", "-f", &at("pods.yaml"), "--policy", "policies"]);
    let outcomes: Vec<&Value> =
        explained["pods"].as_array().unwrap().iter().map(|pod| &pod["outcome"]).collect();
    assert_eq!(outcomes, ["served", "served", "served", "untouched"]);
    assert_eq!(explained["pods"][0]["request"]["containers"][0]["name"], "main");

    let tested = json(&["test", "-f", "policies/tests/default", "--policy", "policies"]);
    assert_eq!(tested["good"], true);
    assert!(tested["cases"].as_array().unwrap().iter().all(|case| case["result"] == "ok"), "{tested:#}");
}

#[test]
fn a_policy_is_checked_from_standard_input() {
    use std::io::Write as _;
    let mut kerf = Command::new(env!("CARGO_BIN_EXE_kerf"));
    kerf.args(["policy", "check", "-f", "-"]).stdin(std::process::Stdio::piped());
    let mut kerf =
        kerf.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    kerf.stdin.take().unwrap().write_all(BAD.as_bytes()).unwrap();
    let output = kerf.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("standard input:"), "{text}");
}
