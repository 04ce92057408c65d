//! Keeps the places in the code that ARCHITECTURE.md and the glossary name. Files move, and a page with a dead path
//! sends its reader astray.
#![expect(clippy::unwrap_used, reason = "a page that cannot be read has failed")]

use kerf_tests::cluster::root;
use std::collections::BTreeSet;
use std::path::Path;

const PAGES: [&str; 2] = ["ARCHITECTURE.md", "docs/reference/glossary.md"];

/// Words with a slash that name no file: subresources of the Kubernetes API.
const SUBRESOURCES: [&str; 2] = ["pods/binding", "pods/eviction"];

/// The files and folders of the tree, by their paths from the root.
struct Tree(BTreeSet<String>);

impl Tree {
    fn read() -> Self {
        let mut paths = BTreeSet::new();
        let root = root().canonicalize().unwrap();
        collect(&root, &root, &mut paths);
        assert!(paths.len() > 500, "only {} paths were found", paths.len());
        Self(paths)
    }

    /// The places below `folder` that a path may mean: itself from the root, or each place that ends in it. A path
    /// may leave out the extension.
    fn places(&self, folder: &str, path: &str) -> BTreeSet<&str> {
        let path = path.trim_end_matches('/');
        if let Some(exact) = self.0.get(path) {
            return BTreeSet::from([exact.as_str()]);
        }
        let is_meant =
            |place: &str| place.strip_suffix(path).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
        let inside = self.0.iter().map(String::as_str).filter(|place| place.starts_with(folder));
        inside.filter_map(|place| [place, stem(place)].into_iter().find(|place| is_meant(place))).collect()
    }
}

fn collect(root: &Path, folder: &Path, paths: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().is_some_and(|name| name == "target" || name == ".git") {
            paths.insert(path.strip_prefix(root).unwrap().display().to_string());
            if path.is_dir() && !path.is_symlink() {
                collect(root, &path, paths);
            }
        }
    }
}

fn stem(path: &str) -> &str {
    path.rsplit_once('.').filter(|(_, extension)| !extension.contains('/')).map_or(path, |(stem, _)| stem)
}

/// The words in backticks, outside code blocks, each with its line.
fn code_words(text: &str) -> Vec<(usize, &str)> {
    let (mut words, mut is_block) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            words.extend(line.split('`').skip(1).step_by(2).map(|word| (number + 1, word)));
        }
    }
    words
}

/// The paths that a word names; none if it is a command, a type, a key like `kerf.dev/request`, or the like. A module
/// is its file: `core::offer` is `core/src/offer`.
fn paths(word: &str) -> Vec<String> {
    let is_sign = |sign: char| sign.is_ascii_alphanumeric() || "_-./:{,}".contains(sign);
    let is_key = word.split_once('/').is_some_and(|(domain, _)| domain.rfind('.') > Some(0));
    let is_type = word.contains("::") && word.contains(char::is_uppercase);
    let is_file = Path::new(word).extension().is_some_and(|extension| extension == "rs");
    let is_path = word.contains('/') || word.contains("::") || is_file || word.ends_with("_tests");
    if !is_path || !word.chars().all(is_sign) || is_key || is_type || SUBRESOURCES.contains(&word) {
        return Vec::new();
    }
    let word = match word.strip_prefix("core::") {
        Some(module) => format!("core/src/{module}"),
        None => word.to_owned(),
    };
    let word = word.replace("::", "/");
    let Some((before, rest)) = word.split_once('{') else { return vec![word] };
    let (names, after) = rest.split_once('}').unwrap();
    names.split(',').map(|name| format!("{before}{name}{after}")).collect()
}

#[test]
fn words_that_are_paths() {
    assert_eq!(paths("node/{a,b}.rs"), ["node/a.rs", "node/b.rs"]);
    assert_eq!(paths("core::offer"), ["core/src/offer"]);
    assert_eq!(paths("leader::election"), ["leader/election"]);
    for word in ["random_tests", "model.rs", "gpu/", ".githooks/commit-msg"] {
        assert_eq!(paths(word), [word]);
    }
    for word in
        ["kerf.dev/request", "nvidia.com/gpu=mps", "pods/binding", "Geometry::place", "cargo xtask test"]
    {
        assert!(paths(word).is_empty(), "{word}");
    }
}

/// A path leads from the root, or is the end of one place only.
#[test]
fn paths_in_backticks_exist() {
    let tree = Tree::read();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in PAGES {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        for (line, word) in code_words(&text) {
            for path in paths(word) {
                count += 1;
                let places = tree.places("", &path);
                if places.len() != 1 {
                    wrong.push(format!("{page}:{line}: `{path}` leads to {places:?}"));
                }
            }
        }
    }
    assert!(
        count > 100 && wrong.is_empty(),
        "{count} paths, of which dead or ambiguous:\n{}",
        wrong.join("\n")
    );
}

/// In the table of rooms a single word is a module or a folder of its row's rooms.
#[test]
fn rooms_have_the_modules_that_their_rows_name() {
    let tree = Tree::read();
    let text = std::fs::read_to_string(root().join(PAGES[0])).unwrap();
    let (_, table) = text.split_once("\n## Rooms\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let (rooms, text) = row.trim_start_matches("| ").split_once(" | ").unwrap();
        let rooms: Vec<&str> = code_words(rooms).into_iter().map(|(_, room)| room).collect();
        let is_module =
            |word: &str| word.chars().all(|sign| sign.is_ascii_lowercase() || "_-".contains(sign));
        for (_, word) in code_words(text).into_iter().filter(|(_, word)| is_module(word)) {
            count += 1;
            if rooms.iter().all(|room| tree.places(room, word).is_empty()) {
                wrong.push(format!("{rooms:?} have no `{word}`"));
            }
        }
    }
    assert!(count > 30 && wrong.is_empty(), "{count} modules, of which dead:\n{}", wrong.join("\n"));
}
