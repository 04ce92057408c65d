//! glibc's library cache (glibc: `sysdeps/generic/dl-cache.h`, `elf/cache.c`, `elf/dl-cache.c`).
//!
//! A cache is a header of 48 bytes, entries of 24, strings, and since glibc 2.33 extensions. All offsets count from the
//! header. The entries are sorted from the last name to the first in glibc's own order, because the loader finds them
//! by binary search. Of entries with one name the first that fits wins. Until glibc 2.31 a cache of an older format
//! stands before it. It is dropped, because no loader of this century reads it.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;
use thiserror::Error;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";

const OLD_HEADER: usize = 16;
const OLD_ENTRY: usize = 12;
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// Offsets of an entry's fields.
const NAME: usize = 4;
const PATH: usize = 8;

const COUNT: usize = 20;
const STRINGS: usize = 24;
const FLAGS: usize = 28;
const EXTENSIONS: usize = 32;

/// The header's flag for little-endian. Older caches have none, so its absence is accepted.
const LITTLE_ENDIAN: u8 = 2;
const ENDIANNESS: u8 = 3;

const EXTENSION_MAGIC: usize = 0xeaa4_2174;
const EXTENSION_HEADER: usize = 8;
const SECTION: usize = 16;
/// The section whose content is offsets of strings. They are the names of folders for newer processors.
const HWCAPS: usize = 1;
/// A limit, so that a broken count cannot make the hook loop. glibc itself defines two sections.
const SECTION_LIMIT: usize = 16;

/// The type of library in an entry: of glibc, for 64 bits of this processor. The loader skips entries of another type.
#[cfg(target_arch = "x86_64")]
const KIND: u32 = 0x0303;
#[cfg(target_arch = "aarch64")]
const KIND: u32 = 0x0a03;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("which flags does ldconfig give to libraries of this processor?");

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unknown {
    #[error("it is not in glibc's format")]
    Format,
    #[error("it is of a processor with another order of bytes")]
    Endianness,
    #[error("a part of it lies beyond its end")]
    Truncated,
}

/// The cache with these libraries in it, or `None` if it has them all. They come after entries of the same name, so
/// that an image loads the library of its own that it loaded before.
pub fn add(cache: Option<&[u8]>, libraries: &[String]) -> Result<Option<Vec<u8>>, Unknown> {
    let cache = cache.map_or_else(|| Ok(Cache::empty()), Cache::read)?;
    let mut known = cache.paths()?;
    let missing: Vec<&str> =
        libraries.iter().map(String::as_str).filter(|path| known.insert(path.as_bytes())).collect();
    if missing.is_empty() { Ok(None) } else { cache.extended(&missing).map(Some) }
}

struct Cache<'a> {
    header: [u8; HEADER],
    entries: Vec<&'a [u8]>,
    rest: &'a [u8],
    whole: &'a [u8],
}

impl<'a> Cache<'a> {
    fn empty() -> Self {
        let mut header = [0; HEADER];
        header[..MAGIC.len()].copy_from_slice(MAGIC);
        Self { header, entries: Vec::new(), rest: &[], whole: &[] }
    }

    fn read(bytes: &'a [u8]) -> Result<Self, Unknown> {
        let whole = newer(bytes)?;
        let header: [u8; HEADER] =
            whole.get(..HEADER).and_then(|header| header.try_into().ok()).ok_or(Unknown::Truncated)?;
        if !matches!(header[FLAGS] & ENDIANNESS, 0 | LITTLE_ENDIAN) {
            return Err(Unknown::Endianness);
        }
        let count = number(whole, COUNT)?;
        let length = count.checked_mul(ENTRY).ok_or(Unknown::Truncated)?;
        let (entries, rest) = whole[HEADER..].split_at_checked(length).ok_or(Unknown::Truncated)?;
        Ok(Self { header, entries: entries.chunks_exact(ENTRY).collect(), rest, whole })
    }

    fn string(&self, entry: &[u8], field: usize) -> Result<&'a [u8], Unknown> {
        let string = self.whole.get(number(entry, field)?..).ok_or(Unknown::Truncated)?;
        let end = string.iter().position(|byte| *byte == 0).ok_or(Unknown::Truncated)?;
        Ok(&string[..end])
    }

    fn name(&self, entry: &[u8]) -> Result<&'a [u8], Unknown> {
        self.string(entry, NAME)
    }

    fn paths(&self) -> Result<BTreeSet<&'a [u8]>, Unknown> {
        self.entries.iter().map(|entry| self.string(entry, PATH)).collect()
    }

    /// The new strings come last, so that all strings there are move by one length: that of the new entries.
    fn extended(&self, paths: &[&str]) -> Result<Vec<u8>, Unknown> {
        let moved = paths.len() * ENTRY;
        let mut strings = Vec::new();
        let mut entries: Vec<(&[u8], Vec<u8>)> = Vec::new();
        for entry in &self.entries {
            let mut entry = entry.to_vec();
            let name = self.name(&entry)?;
            raise(&mut entry, NAME, moved)?;
            raise(&mut entry, PATH, moved)?;
            entries.push((name, entry));
        }
        for path in paths {
            let value = HEADER + self.entries.len() * ENTRY + moved + self.rest.len() + strings.len();
            let name = name(path);
            let place =
                entries.partition_point(|(there, _)| compare(there, name.as_bytes()) != Ordering::Less);
            entries.insert(place, (name.as_bytes(), entry(value + path.len() - name.len(), value)?));
            strings.extend_from_slice(path.as_bytes());
            strings.push(0);
        }
        let mut made = self.header.to_vec();
        put(&mut made, COUNT, entries.len())?;
        put(&mut made, STRINGS, self.rest.len() + strings.len())?;
        made[FLAGS] |= LITTLE_ENDIAN;
        for (_, entry) in entries {
            made.extend(entry);
        }
        made.extend_from_slice(self.rest);
        if number(&made, EXTENSIONS)? != 0 {
            raise(&mut made, EXTENSIONS, moved)?;
            move_extensions(&mut made, moved)?;
        }
        made.extend(strings);
        Ok(made)
    }
}

fn newer(bytes: &[u8]) -> Result<&[u8], Unknown> {
    let newer = if bytes.starts_with(OLD_MAGIC) {
        let length = number(bytes, 12)?.checked_mul(OLD_ENTRY).ok_or(Unknown::Truncated)?;
        bytes.get((OLD_HEADER + length).next_multiple_of(8)..).ok_or(Unknown::Truncated)?
    } else {
        bytes
    };
    if newer.starts_with(MAGIC) { Ok(newer) } else { Err(Unknown::Format) }
}

fn entry(key: usize, value: usize) -> Result<Vec<u8>, Unknown> {
    let mut entry = vec![0; ENTRY];
    entry[..4].copy_from_slice(&KIND.to_le_bytes());
    put(&mut entry, NAME, key)?;
    put(&mut entry, PATH, value)?;
    Ok(entry)
}

fn move_extensions(cache: &mut [u8], moved: usize) -> Result<(), Unknown> {
    let start = number(cache, EXTENSIONS)?;
    let count = number(cache, start + 4)?;
    if number(cache, start)? != EXTENSION_MAGIC || count > SECTION_LIMIT {
        return Err(Unknown::Format);
    }
    for section in 0..count {
        let section = start + EXTENSION_HEADER + section * SECTION;
        let (tag, size) = (number(cache, section)?, number(cache, section + 12)?);
        raise(cache, section + 8, moved)?;
        let content = number(cache, section + 8)?;
        if tag == HWCAPS {
            for offset in (content..content + size).step_by(4) {
                raise(cache, offset, moved)?;
            }
        }
    }
    Ok(())
}

fn field(at: usize) -> Range<usize> {
    at..at.saturating_add(4)
}

fn number(bytes: &[u8], at: usize) -> Result<usize, Unknown> {
    let bytes = bytes.get(field(at)).and_then(|bytes| bytes.try_into().ok()).ok_or(Unknown::Truncated)?;
    usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| Unknown::Truncated)
}

fn put(bytes: &mut [u8], at: usize, number: usize) -> Result<(), Unknown> {
    let number = u32::try_from(number).map_err(|_| Unknown::Truncated)?;
    bytes.get_mut(field(at)).ok_or(Unknown::Truncated)?.copy_from_slice(&number.to_le_bytes());
    Ok(())
}

fn raise(bytes: &mut [u8], at: usize, by: usize) -> Result<(), Unknown> {
    put(bytes, at, number(bytes, at)? + by)
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// glibc's order of names (`_dl_cache_libcmp`): a run of digits counts as a number, and comes after anything else. Any
/// other order would hide entries from the loader's binary search.
fn compare(mut left: &[u8], mut right: &[u8]) -> Ordering {
    loop {
        let (first, second) = (left.first().copied().unwrap_or(0), right.first().copied().unwrap_or(0));
        match (first.is_ascii_digit(), second.is_ascii_digit()) {
            (true, true) => {
                let (a, b) = (take_number(&mut left), take_number(&mut right));
                if a != b {
                    return a.cmp(&b);
                }
            }
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            _ if first != second || left.is_empty() => return first.cmp(&second),
            _ => (left, right) = (&left[1..], &right[1..]),
        }
    }
}

fn take_number(text: &mut &[u8]) -> u64 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    number.iter().fold(0, |sum: u64, digit| sum.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
