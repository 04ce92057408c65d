//! Checks the links of the pages and their headings.

use kerf_tests::cluster::root;
use kerf_tests::docs::pages;

/// A link inside the repository names an existing file, and a heading of that file.
#[test]
fn links_have_targets() -> anyhow::Result<()> {
    let root = root();
    let pages = pages(&root)?;
    let mut dead = Vec::new();
    for page in &pages {
        let folder = page.path.parent().unwrap_or(&page.path);
        for link in page.links.iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { root.join(&page.path) } else { root.join(folder).join(file) };
            let target = target.canonicalize().ok();
            let leads = target.as_ref().is_some_and(|target| {
                let of = pages
                    .iter()
                    .find(|page| root.join(&page.path).canonicalize().ok().as_ref() == Some(target));
                heading.is_empty() || of.is_some_and(|page| page.anchors.contains(heading))
            });
            if !leads {
                dead.push(format!("{}: {link}", page.path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "these links lead nowhere:\n{}", dead.join("\n"));
    Ok(())
}

/// Readers cannot find a page that no other page links to.
#[test]
fn every_page_is_linked_from_another() -> anyhow::Result<()> {
    let root = root();
    let pages = pages(&root)?;
    let linked: Vec<_> = pages
        .iter()
        .flat_map(|page| {
            let folder = root.join(page.path.parent().unwrap_or(&page.path));
            page.links.iter().map(move |link| folder.join(link.split('#').next().unwrap_or(link)))
        })
        .filter_map(|target| target.canonicalize().ok())
        .collect();
    let lost = pages.iter().filter(|page| page.path != std::path::Path::new("README.md"));
    let lost: Vec<_> = lost
        .filter(|page| root.join(&page.path).canonicalize().is_ok_and(|path| !linked.contains(&path)))
        .map(|page| page.path.display().to_string())
        .collect();
    assert!(lost.is_empty(), "no page leads to:\n{}", lost.join("\n"));
    Ok(())
}
