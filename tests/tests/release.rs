//! The workflows on GitHub are well-formed, run existing commands, and run third-party code by digest only.

#![expect(clippy::unwrap_used, reason = "a fault of a test's own shows where it is")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use kerf_tests::binaries;
use serde_json::Value;

use crate::tidy::root;

fn workflows() -> Vec<(String, Value)> {
    let folder = root().join(".github/workflows");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let document: Value = serde_saphyr::from_str(&text).expect(&name);
        (name, document)
    };
    let found: Vec<_> = files.map(read).collect();
    assert!(found.len() >= 2, "{found:?}");
    found
}

fn jobs(workflow: &Value) -> Vec<(&String, &Value)> {
    workflow["jobs"].as_object().unwrap().iter().collect()
}

/// All steps of a workflow.
fn steps(workflow: &Value) -> Vec<&Value> {
    jobs(workflow).into_iter().filter_map(|(_, job)| job["steps"].as_array()).flatten().collect()
}

#[test]
fn jobs_wait_for_jobs_that_exist_and_ask_for_their_rights() {
    for (name, workflow) in workflows() {
        assert!(workflow["on"].is_object(), "{name}");
        assert_eq!(workflow["permissions"], serde_json::json!({"contents": "read"}), "{name}");
        let names: Vec<&str> = jobs(&workflow).iter().map(|(name, _)| name.as_str()).collect();
        for (job, content) in jobs(&workflow) {
            let needs = match &content["needs"] {
                Value::Array(all) => all.iter().map(|one| one.as_str().unwrap()).collect(),
                Value::String(one) => vec![one.as_str()],
                _ => vec![],
            };
            for one in needs {
                assert!(names.contains(&one), "{name}: {job} waits for {one}");
            }
            let called = content["uses"].as_str().map(|path| root().join(path).is_file());
            assert_ne!(called, Some(false), "{name}: {job} calls a workflow that is not there");
            assert!(called.is_some() || content["runs-on"].is_string(), "{name}: {job} runs nowhere");
        }
    }
}

#[test]
fn each_step_runs_a_command_or_a_pinned_action() {
    for (name, workflow) in workflows() {
        let steps = steps(&workflow);
        assert!(!steps.is_empty(), "{name}");
        for step in steps {
            let Some(action) = step["uses"].as_str() else {
                assert!(step["run"].is_string(), "{name}: {step} does nothing");
                continue;
            };
            let (_, digest) = action.split_once('@').unwrap();
            let is_digest = digest.len() == 40 && digest.bytes().all(|b| b.is_ascii_hexdigit());
            assert!(is_digest, "{name}: {action} may become another");
        }
    }
}

#[test]
fn the_xtasks_of_the_workflows_exist() {
    let output = Command::new(binaries::ours("xtask").unwrap()).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let tasks: Vec<&str> =
        help.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()).collect();
    let mut run = 0;
    for (name, workflow) in workflows() {
        let commands: Vec<&str> =
            steps(&workflow).into_iter().filter_map(|step| step["run"].as_str()).collect();
        for command in &commands {
            for called in command.split("cargo xtask ").skip(1) {
                let task = called.split_whitespace().next().unwrap();
                assert!(tasks.contains(&task), "{name}: cargo xtask {task} is none of {tasks:?}");
                run += 1;
            }
            if command.starts_with(".ci/") {
                assert!(root().join(command.trim()).is_file(), "{name}: {command}");
                run += 1;
            }
        }
    }
    assert!(run >= 2, "the gate and the images are run");
}

/// cargo-deny's advisories depend on the day, so the gate leaves them to a job of their own.
#[test]
fn advisories_are_checked_each_week_by_the_gates_version_of_cargo_deny() {
    let (_, ci) = workflows().into_iter().find(|(name, _)| name == "ci.yml").unwrap();
    assert!(ci["on"]["schedule"][0]["cron"].is_string());
    let steps = ci["jobs"]["advisories"]["steps"].as_array().unwrap();
    let commands: Vec<&str> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
    assert_eq!(commands.last(), Some(&"cargo deny check advisories"));
    let gate = fs::read_to_string(root().join("xtask/src/test.rs")).unwrap();
    let version = gate.split('"').find(|text| text.starts_with("cargo-deny@")).unwrap();
    assert!(commands[0].contains(&format!(" {version} ")), "{} and {version}", commands[0]);
}

/// Each image that exists is released.
#[test]
fn every_image_is_released() {
    let output = Command::new(binaries::ours("kerf-images").unwrap()).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let (_, release) = workflows().into_iter().find(|(name, _)| name == "release.yml").unwrap();
    let released = release["jobs"]["images"]["strategy"]["matrix"]["image"].as_array().unwrap();
    let known: Vec<&str> = help
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- ")?.split_once(':').map(|(name, _)| name))
        .filter(|name| name.starts_with("kerf-"))
        .collect();
    assert_eq!(released, &known, "{help}");
}

/// The step's own script, on a copy of the chart. It fails if an image is not one of those that are pushed.
#[test]
fn a_releases_chart_names_the_images_that_are_pushed() {
    let (_, release) = workflows().into_iter().find(|(name, _)| name == "release.yml").unwrap();
    let build = release["jobs"]["build"]["steps"].as_array().unwrap();
    let script = build.iter().find(|step| step["name"] == "Chart").unwrap()["run"].as_str().unwrap();
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("deploy")).unwrap();
    let mut copying = Command::new("cp");
    copying.arg("-r").arg(root().join("deploy/chart")).arg(copy.path().join("deploy"));
    assert!(copying.status().unwrap().success());
    let tools = binaries::admin_tool("helm").unwrap().parent().unwrap().display().to_string();
    let path = format!("{tools}:{}", std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-eo", "pipefail", "-c", script])
        .envs([("VERSION", "1.2.3"), ("REPOSITORY", "ghcr.io/owner/repo"), ("PATH", &path)])
        .env("HOME_PAGE", "https://github.com/owner/repo")
        .env("HOME", copy.path())
        .current_dir(copy.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let made = fs::read_to_string(copy.path().join("chart.yaml")).unwrap();
    assert!(made.contains("image: ghcr.io/owner/repo/kerf-webhook:1.2.3"), "{made}");
    let chart = fs::read_to_string(copy.path().join("deploy/chart/Chart.yaml")).unwrap();
    let chart: Value = serde_saphyr::from_str(&chart).unwrap();
    assert_eq!(chart["home"], "https://github.com/owner/repo");
    let images = chart["annotations"]["artifacthub.io/images"].as_str().unwrap();
    assert_eq!(images.matches("image: ghcr.io/owner/repo/kerf-").count(), 4, "{images}");
    let links: Vec<Value> =
        serde_saphyr::from_str(chart["annotations"]["artifacthub.io/links"].as_str().unwrap()).unwrap();
    assert_eq!(links[0]["url"], "https://github.com/owner/repo/tree/v1.2.3/docs");
}

/// The step's own script, on archives of every platform that the workflow builds for.
#[test]
fn krews_manifest_names_every_archive_with_its_checksum() {
    let (_, release) = workflows().into_iter().find(|(name, _)| name == "release.yml").unwrap();
    let build = release["jobs"]["build"]["steps"].as_array().unwrap();
    let script =
        build.iter().find(|step| step["name"] == "krew's manifest").unwrap()["run"].as_str().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let path = |name: &str| copy.path().join(name);
    fs::create_dir_all(path("deploy/krew")).unwrap();
    fs::create_dir(path("dist")).unwrap();
    fs::copy(root().join("deploy/krew/kerf.yaml"), path("deploy/krew/kerf.yaml")).unwrap();
    let mut archives = Vec::new();
    for (job, system) in [("programs", "linux"), ("darwin", "darwin")] {
        for made in release["jobs"][job]["strategy"]["matrix"]["include"].as_array().unwrap() {
            let name = format!("kubectl-kerf-{system}-{}", made["arch"].as_str().unwrap());
            fs::write(path(&format!("dist/{name}.tar.gz")), &name).unwrap();
            archives.push((system, made["arch"].as_str().unwrap(), name));
        }
    }
    let output = Command::new("bash")
        .args(["-eo", "pipefail", "-c", script])
        .envs([("VERSION", "1.2.3"), ("HOME_PAGE", "https://github.com/owner/repo")])
        .current_dir(copy.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let plugin: Value = serde_saphyr::from_str(&fs::read_to_string(path("dist/kerf.yaml")).unwrap()).unwrap();
    assert_eq!(plugin["spec"]["version"], "v1.2.3");
    let platforms = plugin["spec"]["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), archives.len());
    for (system, arch, name) in archives {
        let selector = serde_json::json!({"os": system, "arch": arch});
        let platform = platforms.iter().find(|one| one["selector"]["matchLabels"] == selector).expect(&name);
        let archive = format!("https://github.com/owner/repo/releases/download/v1.2.3/{name}.tar.gz");
        assert_eq!(platform["uri"], archive);
        let sum = Command::new("sha256sum").arg(path(&format!("dist/{name}.tar.gz"))).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        assert_eq!(platform["sha256"], sum.split_whitespace().next().unwrap());
        assert_eq!(platform["bin"], "kubectl-kerf");
    }
}

/// The release's notes are a section of the changelog.
#[test]
fn the_changelog_has_an_unreleased_section_and_dated_releases() {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let heads: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(heads.first(), Some(&"[Unreleased]"));
    for head in &heads[1..] {
        let (version, date) = head.split_once("] - ").unwrap();
        let numbers: Vec<_> = version.trim_start_matches('[').split('.').map(str::parse::<u32>).collect();
        assert!(numbers.len() == 3 && numbers.iter().all(Result::is_ok), "{head}");
        assert!(date.parse::<jiff::civil::Date>().is_ok(), "{head}");
    }
}
