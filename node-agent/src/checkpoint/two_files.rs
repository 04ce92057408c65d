//! Stores a document in two files that are written in turn, so that an interrupted write leaves the previous document.
//!
//! A file is overwritten in place. Once both exist, a write costs one `fdatasync`: no name changes, so the folder is
//! not written. The newest document with a correct checksum counts.
//!
//! ```text
//! 8 bytes  "kerfled1"
//! 8 bytes  the sequence number, which rises by one with each write (little endian, as all numbers here)
//! 8 bytes  the length of the document
//! 8 bytes  FNV-1a with 64 bits of the two numbers and the document
//!          the document, and zeros up to a whole block; what follows is of an earlier, longer document
//! ```

use super::{CheckpointError, failed, sync};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

pub(super) const NAMES: [&str; 2] = ["ledger.0", "ledger.1"];

const MAGIC: [u8; 8] = *b"kerfled1";

/// Files grow by whole blocks and never shrink. While the size stays the same the disk writes only the data, and even a
/// full disk has the space already.
const BLOCK: usize = 4096;

/// Offset and prime of FNV-1a with 64 bits (RFC 9923).
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

#[derive(Debug)]
pub(super) struct TwoFiles {
    folder: PathBuf,
    /// The file that is written next: it has the older document, or no whole one.
    next: usize,
    /// The sequence number of the newest document.
    sequence: u64,
    /// Whether the files' names are durable. An earlier process may have ended before it synced the folder.
    is_listed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Contents {
    /// Neither file exists: no agent has written here yet.
    Nothing,
    Document(Vec<u8>),
    /// A file exists, but no document is whole.
    Torn,
}

impl TwoFiles {
    /// Reads the files in `folder`. A file that the disk fails to read is an error, because it may be the newest.
    pub(super) fn open(folder: &Path) -> Result<(Self, Contents), CheckpointError> {
        let mut files = Self { folder: folder.to_owned(), next: 0, sequence: 0, is_listed: false };
        let mut contents = Contents::Nothing;
        for (number, name) in NAMES.into_iter().enumerate() {
            let path = folder.join(name);
            let bytes = read(&path)?.unwrap_or_default();
            match parse(&bytes) {
                Some((sequence, document)) if sequence > files.sequence => {
                    (files.next, files.sequence) = (1 - number, sequence);
                    contents = Contents::Document(document.to_vec());
                }
                None if !bytes.is_empty() => {
                    tracing::warn!(path = %path.display(), "a write of this file was cut short");
                    if contents == Contents::Nothing {
                        contents = Contents::Torn;
                    }
                }
                Some(_) | None => {}
            }
        }
        Ok((files, contents))
    }

    /// Writes a document, which is durable when this returns. After an error the disk has the previous document or this
    /// one.
    pub(super) fn write(&mut self, document: &[u8]) -> Result<(), CheckpointError> {
        let path = self.folder.join(NAMES[self.next]);
        let (file, is_new) = open_or_create(&path).map_err(failed("open", &path))?;
        self.is_listed &= !is_new;
        let bytes = frame(self.sequence + 1, document);
        // After an error the next write goes to this file again, because only the other one has a whole document.
        if let Err(error) = file.write_all_at(&bytes, 0).and_then(|()| file.sync_data()) {
            if is_new {
                // Free what a full disk has accepted of it.
                drop(fs::remove_file(&path));
            }
            return Err(failed("write", &path)(error));
        }
        if !self.is_listed {
            sync(&self.folder)?;
            self.is_listed = true;
        }
        self.sequence += 1;
        self.next = 1 - self.next;
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// The sequence number of a file's document.
#[cfg(test)]
pub(super) fn sequence_in(bytes: &[u8]) -> Option<u64> {
    parse(bytes).map(|(sequence, _)| sequence)
}

/// The content of a file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, CheckpointError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Opens the file for writing, and returns whether it was created.
fn open_or_create(path: &Path) -> io::Result<(File, bool)> {
    match File::options().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok((File::options().write(true).create_new(true).open(path)?, true))
        }
        opened => opened.map(|file| (file, false)),
    }
}

fn frame(sequence: u64, document: &[u8]) -> Vec<u8> {
    let sequence = sequence.to_le_bytes();
    let length = (document.len() as u64).to_le_bytes();
    let sum = sum([&sequence, &length, document]).to_le_bytes();
    let mut bytes = [MAGIC, sequence, length, sum].concat();
    bytes.extend_from_slice(document);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// The sequence number and the document, if the checksum is correct.
fn parse(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (sequence, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (stated, rest) = rest.split_first_chunk::<8>()?;
    let document = rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let is_whole = *magic == MAGIC && u64::from_le_bytes(*stated) == sum([sequence, length, document]);
    is_whole.then_some((u64::from_le_bytes(*sequence), document))
}

fn sum(parts: [&[u8]; 3]) -> u64 {
    parts.into_iter().flatten().fold(OFFSET, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(PRIME))
}
