//! Writes a file system as an image's layer: a tar archive, compressed with gzip, which every runtime reads.

use std::io::Write;

use anyhow::Context as _;
use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::tree::{Node, Tree};

#[derive(Debug)]
pub struct Layer {
    pub compressed: Vec<u8>,
    /// The SHA-256 of the uncompressed archive, in hex.
    pub diff_id: String,
}

/// Writes the layer. All entries belong to root and have the same time, in seconds since 1970, so that the same tree
/// gives the same bytes.
pub fn write(tree: &Tree, time: u64, compression: Compression) -> anyhow::Result<Layer> {
    // The gzip header has no name and no time, so that the same tree gives the same bytes.
    let gzip = GzBuilder::new().write(Vec::new(), compression);
    let mut archive = Builder::new(Hashing { inner: gzip, hash: Sha256::new() });
    for (path, node) in tree.iter() {
        entry(&mut archive, path, node, time).with_context(|| format!("failed to add /{path}"))?;
    }
    let Hashing { inner, hash } = archive.into_inner()?;
    Ok(Layer { compressed: inner.finish()?, diff_id: hex(hash) })
}

pub fn entry<W: Write>(archive: &mut Builder<W>, path: &str, node: &Node, time: u64) -> std::io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mtime(time);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    match node {
        Node::Folder(mode) => {
            header.set_entry_type(EntryType::Directory);
            header.set_mode(*mode);
            archive.append_data(&mut header, format!("{path}/"), std::io::empty())
        }
        Node::File(mode, content) => {
            header.set_entry_type(EntryType::Regular);
            header.set_mode(*mode);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content.as_slice())
        }
        Node::Link(target) => {
            header.set_entry_type(EntryType::Symlink);
            header.set_mode(0o777);
            archive.append_link(&mut header, path, target)
        }
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}

fn hex(hash: Sha256) -> String {
    format!("{:x}", hash.finalize())
}

/// Hashes bytes on their way, because an image names the hash of the uncompressed archive.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.program("/usr/bin/a", b"content".to_vec()).unwrap();
        tree.link("/bin", "usr/bin").unwrap();
        tree.folder("/tmp", 0o1777).unwrap();
        tree
    }

    #[test]
    fn a_hash_equals_the_published_one() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn the_same_tree_gives_the_same_bytes() {
        let write = || write(&tree(), 1_000, Compression::default()).unwrap();
        assert_eq!(write().compressed, write().compressed);
    }

    #[test]
    fn entries_belong_to_root_and_have_one_time() {
        let layer = write(&tree(), 1_000, Compression::fast()).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(layer.compressed.as_slice()));
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!(
                (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()),
                (0, 0, 1_000)
            );
            seen.push((entry.path().unwrap().display().to_string(), header.mode().unwrap()));
        }
        let wanted =
            [("bin", 0o777), ("tmp/", 0o1777), ("usr/", 0o755), ("usr/bin/", 0o755), ("usr/bin/a", 0o755)];
        assert_eq!(seen, wanted.map(|(path, mode)| (path.to_owned(), mode)));
    }
}
