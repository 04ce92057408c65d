//! Rules of the codebase that a test enforces.
#![expect(clippy::unwrap_used, reason = "a rule that cannot be checked has failed")]

use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every Rust file of the workspace, with its path from the root.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !matches!(name.as_str(), "target" | ".git") {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let relative = path.strip_prefix(root()).unwrap().display().to_string();
            found.push((relative, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

pub(crate) fn all_sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    sources(&root(), &mut found);
    assert!(found.len() > 50, "only {} files were found", found.len());
    found
}

/// A file's lines without their comments.
pub(crate) fn code(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.filter_map(|line| line.split(" // ").next())
}

#[test]
fn comments_are_no_code() {
    let text = "//! a\n/// b\nc(); // d\n    // e\nf(\"https://g\");\n";
    assert_eq!(code(text).collect::<Vec<_>>(), ["c();", "f(\"https://g\");"]);
}

/// The folders of what tests, measures and shows the programs.
const WORKSHOP: [&str; 4] = ["bench/", "nvml-mock/", "tests/", "tools/"];

pub(crate) fn is_test(path: &str) -> bool {
    WORKSHOP.iter().any(|folder| path.starts_with(folder))
        || path.contains("/tests/")
        || path.ends_with("tests.rs")
}

/// Core only decides, so it may not do I/O, not even through a dependency.
#[test]
fn core_is_pure() {
    let manifest = std::fs::read_to_string(root().join("core/Cargo.toml")).unwrap();
    let section = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let dependencies: Vec<&str> =
        section.lines().filter_map(|l| l.split(['.', ' ', '=']).next()).filter(|d| !d.is_empty()).collect();
    // schemars comes with the feature `schema` only, which no program but `kerf` has.
    assert_eq!(dependencies, ["schemars", "serde", "serde_json", "strsim", "thiserror"]);
    assert!(section.contains("schemars = { workspace = true, optional = true }"));
    let forbidden = [
        "tokio",
        "kube::",
        "k8s_openapi",
        "std::fs",
        "std::env",
        "std::net",
        "std::process",
        "std::thread",
        "SystemTime",
        "Instant",
        "rand::",
        "tracing::",
        "std::io",
    ];
    for (path, text) in all_sources().iter().filter(|(p, _)| p.starts_with("core/src/")) {
        for word in forbidden {
            assert!(!code(text).any(|l| l.contains(word)), "{path} names {word}");
        }
    }
}

#[test]
fn files_stay_readable_in_one_go() {
    let long: Vec<String> = all_sources()
        .iter()
        .map(|(path, text)| (path, text.lines().count(), if is_test(path) { 800 } else { 500 }))
        .filter(|(_, lines, most)| lines > most)
        .map(|(path, lines, most)| format!("{path} has {lines} lines, more than {most}"))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    for (path, text) in all_sources().iter().filter(|(p, _)| !p.ends_with("tests.rs")) {
        assert!(text.starts_with("//!"), "{path} does not open with //!");
    }
}

#[test]
fn unsafe_code_lives_at_the_nvml_boundary_only() {
    let boundary = ["nvml/src/ffi.rs", "nvml-mock/"];
    let word = concat!("uns", "afe ");
    for (path, text) in all_sources() {
        let found = code(&text).any(|l| {
            l.contains(&format!("{word}{{"))
                || l.contains(&format!("{word}fn"))
                || l.contains(&format!("{word}extern"))
        });
        assert!(!found || boundary.iter().any(|b| path.starts_with(b)), "{path} has unsafe code");
    }
}

/// Keys are spelled in one place, so that a rename is one change.
#[test]
fn kubernetes_keys_are_spelled_in_core_keys_only() {
    let key = concat!("\"kerf", ".dev/");
    for (path, text) in all_sources().iter().filter(|(p, _)| !is_test(p) && *p != "core/src/keys.rs") {
        // A test module ends its file, so everything behind it is test code.
        let program = text.split("#[cfg(test)]").next().unwrap_or_default();
        let found: Vec<&str> = code(program).filter(|l| l.contains(key)).collect();
        assert!(found.is_empty(), "{path} spells a key: {found:?}");
    }
}

/// Where the extender may tell static nodes from managed ones. All other code asks both kinds in the same way.
const KNOW_STATIC_NODES: [&str; 9] = [
    "extender/src/app.rs",
    "extender/src/cluster_index/mod.rs",
    "extender/src/cluster_index/nodes.rs",
    "extender/src/cluster_index/reserving.rs",
    "extender/src/cluster_index/static_nodes/",
    "extender/src/cluster_index/terms.rs",
    "extender/src/controllers/fresh.rs",
    "extender/src/controllers/plugin_layout/",
    "extender/src/watch.rs",
];

#[test]
fn few_files_of_the_extender_know_static_nodes() {
    let is_listed = |path: &str| KNOW_STATIC_NODES.iter().any(|listed| path.starts_with(listed));
    for (path, text) in all_sources().iter().filter(|(p, _)| p.starts_with("extender/src/") && !is_test(p)) {
        let program = text.split("#[cfg(test)]").next().unwrap_or_default();
        let found: Vec<&str> = code(program).filter(|line| names_static_nodes(line)).collect();
        assert!(found.is_empty() || is_listed(path), "{path} knows static nodes: {found:?}");
    }
}

/// Whether a line has a name about static nodes. The language's own word and core's module are none.
fn names_static_nodes(line: &str) -> bool {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let others = ["static", "from_static", "static_node"];
    words.filter(|word| !others.contains(word)).any(|word| word.to_lowercase().contains("static"))
}

#[test]
fn a_name_about_static_nodes_is_recognized() {
    for (line, is_found) in [
        ("use super::static_nodes::StaticNodes;", true),
        ("if nodes.is_static(name) {", true),
        ("use kerf_core::static_node::Devices;", false),
        ("fn name() -> &'static str {", false),
        ("HeaderValue::from_static(\"close\")", false),
    ] {
        assert_eq!(names_static_nodes(line), is_found, "{line}");
    }
}

/// Dependencies that only generated code uses.
const USED_BY_GENERATED_CODE: [&str; 2] = ["prost", "tonic-prost"];

/// Everybody compiles an unused dependency too. The workspace need not pin what no crate names.
#[test]
fn every_dependency_is_used() {
    let sources = all_sources();
    let mut manifests = Vec::new();
    manifests_in(&root(), &mut manifests);
    let folders: Vec<String> = manifests.iter().map(|(folder, _)| folder.clone()).collect();
    let mut unused = Vec::new();
    for (folder, text) in &manifests {
        let is_inner = |path: &str| {
            folders.iter().any(|other| other.len() > folder.len() && path.starts_with(&format!("{other}/")))
        };
        let own: Vec<&String> = sources
            .iter()
            .filter(|(path, _)| path.starts_with(&format!("{folder}/")) && !is_inner(path))
            .map(|(_, text)| text)
            .collect();
        for name in dependencies(text) {
            let crate_name = if name == "kerf" { "kerf_cli".to_owned() } else { name.replace('-', "_") };
            let is_used = own.iter().any(|text| code(text).any(|line| names(line, &crate_name)));
            if !is_used && !USED_BY_GENERATED_CODE.contains(&name) {
                unused.push(format!("{folder}: {name}"));
            }
        }
    }
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let is_named = |name: &&str| manifests.iter().any(|(_, text)| dependencies(text).contains(name));
    unused.extend(dependencies(&workspace).into_iter().filter(|name| !is_named(name)).map(str::to_owned));
    assert!(folders.len() > 10 && unused.is_empty(), "{}", unused.join("\n"));
}

fn manifests_in(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !matches!(name.as_str(), "target" | ".git") {
            manifests_in(&path, found);
        } else if name == "Cargo.toml" && folder != root() {
            let relative = folder.strip_prefix(root()).unwrap().display().to_string();
            found.push((relative, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Names in the sections of dependencies, including those of tests and of build scripts.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_inside = line.ends_with("dependencies]");
        } else if let Some(name) =
            line.split(['.', ' ', '=']).next().filter(|name| is_inside && !name.is_empty())
        {
            found.push(name);
        }
    }
    found.into_iter().filter(|name| !name.starts_with('#')).collect()
}

/// Whether a line names a crate: in a path, or alone after `use`.
fn names(line: &str, name: &str) -> bool {
    let is_part = |sign: char| sign.is_alphanumeric() || sign == '_';
    line.match_indices(name).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + name.len()..]);
        let is_alone = before.ends_with("use ") && !after.starts_with(is_part);
        !before.ends_with(is_part) && (after.starts_with("::") || is_alone)
    })
}

#[test]
fn a_crate_is_used_by_a_path_or_by_its_name() {
    for (line, is_used) in [
        ("use pem::Pem;", true),
        ("pem::parse(text)", true),
        ("use pem;", true),
        ("let pem = text;", false),
        ("kube_pem::parse(text)", false),
        ("use pem_rfc7468;", false),
    ] {
        assert_eq!(names(line, "pem"), is_used, "{line}");
    }
}
