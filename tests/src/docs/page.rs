//! A page: its blocks, its links, and its anchors.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::Block;

#[derive(Debug)]
pub struct Page {
    /// Its path from the repository's root.
    pub path: PathBuf,
    pub blocks: Vec<Block>,
    /// Targets of its links and pictures, as they are written.
    pub links: Vec<String>,
    /// Its headings, as links name them.
    pub anchors: BTreeSet<String>,
}

/// All pages of the repository: those at the root, and all below `docs/`, `deploy/` and `policies/`.
pub fn pages(root: &Path) -> anyhow::Result<Vec<Page>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root).with_context(|| format!("failed to list {}", root.display()))? {
        paths.extend(Some(entry?.path()).filter(|path| is_page(path)));
    }
    for folder in ["docs", "deploy", "policies"] {
        collect(&root.join(folder), &mut paths)?;
    }
    paths.sort();
    paths.iter().map(|path| Page::read(root, path)).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else if is_page(&path) {
            paths.push(path);
        }
    }
    Ok(())
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

impl Page {
    fn read(root: &Path, path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        let path = path.strip_prefix(root)?.to_owned();
        Self::parse(&text, path.clone()).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str, path: PathBuf) -> anyhow::Result<Self> {
        let mut page = Self { path, blocks: Vec::new(), links: Vec::new(), anchors: BTreeSet::new() };
        let (mut heading, mut in_block) = (None::<String>, false);
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let line = text[..range.start].lines().count() + 1;
                    let info = match kind {
                        CodeBlockKind::Fenced(info) => info.to_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    let role = info.parse().with_context(|| format!("line {line}"))?;
                    page.blocks.push(Block { line, role, text: String::new() });
                    in_block = true;
                }
                Event::End(TagEnd::CodeBlock) => in_block = false,
                Event::Text(part) if in_block => {
                    if let Some(block) = page.blocks.last_mut() {
                        block.text.push_str(&part);
                    }
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.extend(heading.take().map(|title| anchor(&title)));
                }
                Event::Text(part) | Event::Code(part) => {
                    if let Some(title) = &mut heading {
                        title.push_str(&part);
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.to_string());
                }
                _ => {}
            }
        }
        Ok(page)
    }
}

/// GitHub's anchor for a heading: lower case, words joined by hyphens, other signs dropped.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|sign| sign.is_alphanumeric() || matches!(sign, ' ' | '-' | '_'));
    kept.map(|sign| if sign == ' ' { '-' } else { sign.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs::Role;

    #[test]
    fn a_pages_blocks_links_and_headings_are_found() {
        let text = "# When `kerf` waits, why\n\nSee [a](b.md#c), ![p](p.svg).\n\n```sh\nkerf check\n```\n\n| a |\n|---|\n| [x](y.md) |\n";
        let page = Page::parse(text, PathBuf::from("page.md")).unwrap();
        assert_eq!(page.links, ["b.md#c", "p.svg", "y.md"]);
        assert_eq!(page.anchors, ["when-kerf-waits-why".to_owned()].into());
        assert_eq!(page.blocks, [Block { line: 5, role: Role::Run, text: "kerf check\n".to_owned() }]);
    }

    #[test]
    fn a_block_that_says_nothing_is_named_with_its_line() {
        let error = Page::parse("text\n\n```\nkerf check\n```\n", PathBuf::from("page.md")).unwrap_err();
        assert_eq!(format!("{error:#}"), "line 3: the fence \"\" is not known: see tests/src/docs");
    }
}
