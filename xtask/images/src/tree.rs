//! A file system as a value: an image's content, in the order in which it is written.

use std::collections::BTreeMap;

use anyhow::bail;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Folder(u32),
    File(u32, Vec<u8>),
    Link(String),
}

/// Paths from the root, without a leading slash. A folder sorts before its content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree(BTreeMap<String, Node>);

const FOLDER: u32 = 0o755;
const FILE: u32 = 0o644;
const PROGRAM: u32 = 0o755;

impl Tree {
    pub fn folder(&mut self, path: &str, mode: u32) -> anyhow::Result<()> {
        self.add(path, Node::Folder(mode))
    }

    pub fn file(&mut self, path: &str, content: Vec<u8>) -> anyhow::Result<()> {
        self.add(path, Node::File(FILE, content))
    }

    pub fn program(&mut self, path: &str, content: Vec<u8>) -> anyhow::Result<()> {
        self.add(path, Node::File(PROGRAM, content))
    }

    pub fn link(&mut self, path: &str, target: &str) -> anyhow::Result<()> {
        self.add(path, Node::Link(target.to_owned()))
    }

    /// All paths in order. A folder comes before its content, because a runtime unpacks them in this order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(path, node)| (path.as_str(), node))
    }

    fn add(&mut self, path: &str, node: Node) -> anyhow::Result<()> {
        let path = path.trim_matches('/');
        let mut parent = path;
        while let Some((above, _)) = parent.rsplit_once('/') {
            match self.0.entry(above.to_owned()).or_insert(Node::Folder(FOLDER)) {
                Node::Folder(_) => parent = above,
                _ => bail!("/{above} is no folder, and /{path} is to be in it"),
            }
        }
        match self.0.insert(path.to_owned(), node) {
            None => Ok(()),
            Some(_) => bail!("/{path} is in the image twice"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_their_content() {
        let mut tree = Tree::default();
        tree.file("/usr/lib64/a", vec![]).unwrap();
        tree.file("/usr/lib/b", vec![]).unwrap();
        let paths: Vec<&str> = tree.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["usr", "usr/lib", "usr/lib/b", "usr/lib64", "usr/lib64/a"]);
    }

    #[test]
    fn no_entry_is_replaced_or_put_into_a_file_or_a_link() {
        let mut tree = Tree::default();
        tree.file("/etc/passwd", vec![]).unwrap();
        tree.link("/lib", "usr/lib").unwrap();
        assert!(tree.file("etc/passwd", vec![]).is_err());
        assert!(tree.file("/etc/passwd/x", vec![]).is_err());
        assert!(tree.file("/lib/x", vec![]).is_err());
    }
}
