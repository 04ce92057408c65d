//! Keeps rings of modules out of each crate, and a page of their edges. A ring is a set of modules each of which needs
//! all the others, so that none of them can be read, tested or moved alone.

use crate::tidy::{all_sources, code, is_test};
use kerf_tests::cluster::root;
use std::collections::{BTreeMap, BTreeSet};

/// For each module the modules that it names, and the files that name them.
type Edges = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

const CRATES: [&str; 9] =
    ["core", "runtime", "protocol", "nvml", "webhook", "extender", "node-agent", "cli", "cdi-hook"];

/// The page with every edge.
const PAGE: &str = "docs/reference/modules.md";

const INTRODUCTION: &str = "\
# Modules

Which module of a crate uses which, tests left out.
An arrow points to what a module uses; one that follows from two others is not drawn, and the tables have all.
No crate has a ring: whatever a module needs can be read before it.

A test writes this page, and fails for an edge that is not on it: `KERF_UPDATE=1 cargo xtask test system module_edges`.
So a new edge is seen in review.
";

#[test]
fn modules_form_no_cycles_and_have_the_documented_edges() {
    let sources = all_sources();
    let mut page = INTRODUCTION.to_owned();
    for name in CRATES {
        let edges = edges(&files(name, &sources));
        assert!(edges.len() > 3, "only {} modules of {name} were found", edges.len());
        let rings: Vec<_> = rings(&edges).iter().map(|ring| shown(ring, &edges)).collect();
        assert!(rings.is_empty(), "{name} has a ring\n{}", rings.join("\n"));
        page.push_str(&section(name, &edges));
    }
    let path = root().join(PAGE);
    if std::env::var_os("KERF_UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let new: Vec<_> = page.lines().filter(|line| !found.lines().any(|old| old == *line)).collect();
    assert!(
        page == found,
        "{PAGE} is of another version: KERF_UPDATE=1 cargo xtask test system module_edges\n{}",
        new.join("\n")
    );
}

/// A crate's drawing and table.
fn section(name: &str, edges: &Edges) -> String {
    let mut text = format!("\n## {name}\n\n```mermaid\nflowchart LR\n");
    for (from, targets) in edges {
        // An edge is left out if another target leads there.
        let implied: BTreeSet<&str> = targets.keys().flat_map(|to| reached_from(to, edges)).collect();
        let drawn = targets.keys().filter(|to| !implied.contains(to.as_str()));
        text.extend(drawn.map(|to| format!("  {from} --> {to}\n")));
    }
    text.push_str("```\n\n| module | uses |\n|---|---|\n");
    let rows = edges.iter().filter(|(_, targets)| !targets.is_empty());
    let names = |targets: &BTreeMap<String, _>| targets.keys().cloned().collect::<Vec<_>>().join(", ");
    text.extend(rows.map(|(from, targets)| format!("| {from} | {} |\n", names(targets))));
    text
}

/// The files of a crate that are no test code, by their paths from its `src`.
fn files<'s>(name: &str, sources: &'s [(String, String)]) -> Vec<(&'s str, &'s str)> {
    let folder = format!("{name}/src/");
    let own = |(path, text): &'s (String, String)| Some((path.strip_prefix(&folder)?, text.as_str()));
    let own: Vec<(&str, &str)> = sources.iter().filter_map(own).collect();
    let for_tests: BTreeSet<String> =
        own.iter().flat_map(|(path, text)| modules_for_tests(path, text)).collect();
    let is_for_tests = |path: &str| {
        let of_module = |module: &String| path.strip_prefix(module.as_str());
        for_tests.iter().filter_map(of_module).any(|rest| rest == ".rs" || rest.starts_with('/'))
    };
    // Only the whole path distinguishes a crate's own module `bench` from the folder `bench`.
    let is_test = |path: &str| is_test(&format!("{folder}{path}"));
    own.into_iter().filter(|(path, _)| !is_test(path) && !is_for_tests(path)).collect()
}

/// The modules in files of their own that a file declares for tests only, as paths without an extension.
fn modules_for_tests(path: &str, text: &str) -> Vec<String> {
    let stem = path.trim_end_matches(".rs");
    let folder = match stem.rsplit_once('/') {
        Some((folder, "mod")) => format!("{folder}/"),
        None if matches!(stem, "lib" | "main") => String::new(),
        _ => format!("{stem}/"),
    };
    let lines: Vec<&str> = text.lines().collect();
    let declared = lines.windows(2).filter(|pair| is_for_tests(pair[0]));
    let declared = declared.filter_map(|pair| pair[1].split_once("mod ")?.1.strip_suffix(';'));
    declared.map(|name| format!("{folder}{name}")).collect()
}

fn is_for_tests(attribute: &str) -> bool {
    attribute == "#[cfg(test)]" || attribute.starts_with("#[cfg(any(test,")
}

/// The code of a file before the module with its tests.
fn program(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let begins =
        |pair: &[&str]| is_for_tests(pair[0]) && pair[1].starts_with("mod ") && pair[1].ends_with('{');
    let end = lines.windows(2).position(begins).unwrap_or(lines.len());
    code(&lines[..end].join("\n")).collect::<Vec<_>>().join("\n")
}

fn edges(files: &[(&str, &str)]) -> Edges {
    let top = |path: &str| path.split(['/', '.']).next().unwrap_or_default().to_owned();
    let is_root = |path: &str| matches!(path, "lib.rs" | "main.rs");
    let imported: BTreeMap<String, String> = files
        .iter()
        .filter(|(path, _)| is_root(path))
        .flat_map(|(_, text)| imports(&program(text)))
        .collect();
    let files: Vec<_> = files.iter().filter(|(path, _)| !is_root(path)).collect();
    let mut edges: Edges = files.iter().map(|(path, _)| (top(path), BTreeMap::new())).collect();
    let modules: BTreeSet<String> = edges.keys().cloned().collect();
    for (path, text) in files {
        let from = top(path);
        // A name that the root imports leads to the module that defines it.
        let module = |name: String| {
            if modules.contains(&name) { name } else { imported.get(&name).cloned().unwrap_or(name) }
        };
        let targets = named(&program(text)).into_iter().map(module);
        for to in targets.filter(|to| *to != from && modules.contains(to)) {
            edges.entry(from.clone()).or_default().entry(to).or_default().insert((*path).to_owned());
        }
    }
    edges
}

/// The first names after `crate::`, alone or in braces.
fn named(program: &str) -> Vec<String> {
    let paths = program.split("crate::").skip(1);
    paths.flat_map(|rest| rest.strip_prefix('{').map_or_else(|| vec![rest], parts)).map(first_name).collect()
}

/// The names that a crate's root imports from its modules, each with its module: every module can name them by
/// `crate::`, whether or not the root exports them.
fn imports(root: &str) -> Vec<(String, String)> {
    let used = root.split(';').filter_map(|item| item.rsplit_once("use ")?.1.split_once("::"));
    let names = |path: &str| match path.split_once('{') {
        Some((_, group)) => parts(group).into_iter().map(last_name).collect(),
        None => vec![last_name(path)],
    };
    used.flat_map(|(module, path)| names(path).into_iter().map(|name| (name, first_name(module)))).collect()
}

fn first_name(path: &str) -> String {
    path.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The name by which a `use` offers what it names.
fn last_name(path: &str) -> String {
    path.rsplit([':', ' ']).next().unwrap_or_default().trim().to_owned()
}

/// The parts of a group that begins after its brace, split at its own commas and not at those of groups inside.
fn parts(group: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, sign) in group.char_indices() {
        match sign {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                parts.push(&group[begin..at]);
                begin = at + 1;
                if sign == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    parts
}

/// The rings of a graph, the largest first: sets of modules each of which reaches all the others.
fn rings(edges: &Edges) -> Vec<BTreeSet<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|from| (from.as_str(), reached_from(from, edges))).collect();
    let is_reached = |from: &str, to: &str| reached.get(from).is_some_and(|found| found.contains(to));
    let mut rings = BTreeSet::new();
    for from in edges.keys() {
        let ring: BTreeSet<&str> = edges
            .keys()
            .map(String::as_str)
            .filter(|to| is_reached(from, to) && is_reached(to, from))
            .collect();
        if ring.len() > 1 {
            rings.insert(ring);
        }
    }
    let mut rings = Vec::from_iter(rings);
    rings.sort_by_key(|ring| std::cmp::Reverse(ring.len()));
    rings
}

fn reached_from<'e>(from: &str, edges: &'e Edges) -> BTreeSet<&'e str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(next) = open.pop() {
        for to in edges.get(next).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(to.as_str()) {
                open.push(to);
            }
        }
    }
    reached
}

/// The edges of a ring, each with the files that make it.
fn shown(ring: &BTreeSet<&str>, edges: &Edges) -> String {
    let mut lines = Vec::new();
    for (from, targets) in edges.iter().filter(|(from, _)| ring.contains(from.as_str())) {
        for (to, files) in targets.iter().filter(|(to, _)| ring.contains(to.as_str())) {
            let files = files.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            lines.push(format!("  {from} -> {to}: {files}"));
        }
    }
    lines.join("\n")
}

#[test]
fn a_cycle_is_reported_with_its_edges_and_a_chain_is_not() {
    let files = [
        ("lib.rs", "use crate::a::A;\npub use y::{Y, YY as Other};\npub use x::X;\nuse e::{Hidden};\n"),
        ("a.rs", "use crate::b::{B, c};\n"),
        ("b/mod.rs", "pub use inner::I;\n"),
        ("b/inner.rs", "use crate::{d::{self, e}, c};\n// crate::e\n"),
        ("c.rs", "fn f() {\n    crate::a::f();\n}\n#[cfg(test)]\nmod tests {\n    use crate::e;\n}\n"),
        ("d.rs", "use crate::e::E;\n"),
        ("e.rs", ""),
        ("x.rs", "use crate::Other;\n"),
        ("y.rs", "use crate::{X, Hidden};\n"),
    ];
    let edges = edges(&files);
    let found = rings(&edges);
    assert_eq!(found, [BTreeSet::from(["a", "b", "c"]), BTreeSet::from(["x", "y"])]);
    assert_eq!(shown(&found[0], &edges), "  a -> b: a.rs\n  b -> c: b/inner.rs\n  c -> a: c.rs");
    assert!(edges["d"].contains_key("e") && !edges["b"].contains_key("e") && !edges["c"].contains_key("e"));
    assert!(edges["y"].contains_key("e"), "by a private import of the root");
}

#[test]
fn modules_for_tests_are_ignored() {
    let sources = [
        ("core/src/lib.rs", "#[cfg(any(test, feature = \"testing\"))]\npub mod testing;\nmod a;\n"),
        ("core/src/a/mod.rs", "#[cfg(test)]\nmod world;\nmod b;\n"),
        ("core/src/a/b.rs", "#[cfg(test)]\nmod made;\n"),
        ("core/src/a/b/made.rs", ""),
        ("core/src/a/world.rs", ""),
        ("core/src/testing/nodes.rs", ""),
        ("core/src/a/b_tests.rs", ""),
    ];
    let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let paths: Vec<_> = files("core", &sources).into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["lib.rs", "a/mod.rs", "a/b.rs"]);
}
