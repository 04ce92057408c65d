//! The images that the examples and the pages name are those of the list, and the list has no others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kerf_tests::chart::objects;
use kerf_tests::cluster::root;
use kerf_tests::docs::{Role, pages};
use serde::Deserialize;
use serde_json::Value;

const LIST: &str = "deploy/examples/images.yaml";

#[derive(Deserialize)]
struct List {
    images: Vec<Listed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    name: String,
    used: Vec<String>,
    pulled: bool,
    date: String,
    #[serde(default)]
    reason: Option<String>,
}

/// An image, and the file that names it.
type Use = (String, String);

/// The values of all fields `image` of a document.
fn images(document: &Value, found: &mut Vec<String>) {
    match document {
        Value::Object(fields) => {
            found.extend(fields.get("image").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| images(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| images(item, found)),
        _ => {}
    }
}

fn of_text(text: &str, path: &Path, uses: &mut BTreeSet<Use>) -> anyhow::Result<()> {
    let mut found = Vec::new();
    let documents = objects(text).with_context(|| path.display().to_string())?;
    for document in &documents {
        images(document, &mut found);
    }
    uses.extend(found.into_iter().map(|image| (image, path.display().to_string())));
    Ok(())
}

/// The manifests below a folder.
fn manifests(folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            manifests(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml") && !path.ends_with(LIST) {
            found.push(path);
        }
    }
    Ok(())
}

/// What Helm prints after an installation.
const NOTES: &str = "deploy/chart/templates/NOTES.txt";

/// The images of the manifests of `deploy/examples` and `docs`, of the manifests in the pages there and in `README.md`,
/// and of the commands in the chart's notes.
fn uses() -> anyhow::Result<BTreeSet<Use>> {
    let (root, mut paths, mut uses) = (root(), Vec::new(), BTreeSet::new());
    for folder in ["deploy/examples", "docs"] {
        manifests(&root.join(folder), &mut paths)?;
    }
    for path in paths {
        of_text(&std::fs::read_to_string(&path)?, path.strip_prefix(&root)?, &mut uses)?;
    }
    let is_meant = |path: &Path| {
        path.starts_with("deploy/examples") || path.starts_with("docs") || path == Path::new("README.md")
    };
    for page in pages(&root)?.into_iter().filter(|page| is_meant(&page.path)) {
        for block in page.blocks.iter().filter(|block| matches!(block.role, Role::Manifest | Role::Part(_))) {
            of_text(&block.text, &page.path, &mut uses)?;
        }
    }
    let notes = std::fs::read_to_string(root.join(NOTES))?;
    let named = notes.split_whitespace().filter_map(|word| word.strip_prefix("--image="));
    uses.extend(named.map(|image| (image.to_owned(), NOTES.to_owned())));
    Ok(uses)
}

#[test]
fn every_image_is_listed_and_pinned() -> anyhow::Result<()> {
    let list: List = serde_saphyr::from_str(&std::fs::read_to_string(root().join(LIST))?)?;
    let mut listed = BTreeSet::new();
    for Listed { name, used, pulled, date, reason } in list.images {
        let (_, tag) = name.rsplit_once(':').with_context(|| format!("{name} has no tag"))?;
        assert!(tag != "latest" && !tag.contains('/'), "{name} may become another image");
        assert!(pulled || reason.is_some_and(|reason| !reason.is_empty()), "{name}: why was it not pulled?");
        assert!(date.parse::<jiff::civil::Date>().is_ok(), "{name}: {date} is no date");
        for file in used {
            assert!(listed.insert((name.clone(), file.clone())), "{name} has {file} twice");
        }
    }
    let found = uses()?;
    assert!(found.len() > 30, "{found:?}");
    let missing: Vec<_> = found.difference(&listed).collect();
    let too_many: Vec<_> = listed.difference(&found).collect();
    assert!(
        missing.is_empty() && too_many.is_empty(),
        "{LIST} lacks {missing:?}, and has {too_many:?} in vain"
    );
    Ok(())
}
