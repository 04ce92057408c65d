//! The name of a set of programs: a hash of everything that determines their content, so that a change builds a new
//! set. It reads files and writes none.

use std::fs;

use anyhow::Context as _;

use super::catalog::{C, Set, linker_flags, tags};
use super::cgo;
use crate::workspace::Workspace;

pub fn for_set(workspace: &Workspace, set: &Set) -> anyhow::Result<String> {
    let mut hash = Fnv1a::default();
    for module in set.modules {
        let folder = workspace.go_module(module);
        let entries =
            fs::read_dir(&folder).with_context(|| format!("failed to read {}", folder.display()))?;
        let mut files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        // A folder's entries have no fixed order, and the same files must give the same key.
        files.sort();
        for path in files {
            let content = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
            hash.field(&content);
        }
        hash.field(linker_flags(module).as_bytes());
        if !tags(module).is_empty() {
            hash.field(tags(module).as_bytes());
        }
    }
    for c in [C::Static, C::OpensLibraries] {
        if set.programs.iter().any(|program| program.c == c) {
            hash.field(cgo::flags(c).as_bytes());
        }
    }
    Ok(format!("{:016x}", hash.0))
}

/// FNV-1a with 64 bits. The key of a cache needs no protection from forged collisions, so it is not worth a dependency.
struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv1a {
    /// Adds a field with its length, so that moving bytes from one field to the next changes the hash.
    fn field(&mut self, bytes: &[u8]) {
        self.bytes(&(bytes.len() as u64).to_le_bytes());
        self.bytes(bytes);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalog::{CONTROL_PLANE, NODE};
    use super::*;

    fn hash(fields: &[&str]) -> u64 {
        let mut hash = Fnv1a::default();
        for field in fields {
            hash.field(field.as_bytes());
        }
        hash.0
    }

    #[test]
    fn the_hash_agrees_with_the_published_test_vector() {
        let mut hash = Fnv1a::default();
        hash.bytes(b"foobar");
        assert_eq!(hash.0, 0x8594_4171_f739_67e8);
    }

    #[test]
    fn moving_bytes_between_fields_changes_the_key() {
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
    }

    #[test]
    fn the_key_is_a_stable_folder_name() {
        let workspace = Workspace::locate().unwrap();
        let key = for_set(&workspace, &CONTROL_PLANE).unwrap();
        assert_eq!(key, for_set(&workspace, &CONTROL_PLANE).unwrap());
        assert_ne!(key, for_set(&workspace, &NODE).unwrap());
        assert!(key.len() == 16 && key.chars().all(|c| c.is_ascii_hexdigit()));
    }
}
