//! The desired slices of a node, their owners and the epoch, from the agent's checkpoint on disk.
//!
//! The agent writes the checkpoint before it confirms a reservation. The GpuNode shows the same later,
//! because the agent publishes it at intervals, for people. `checkpoint/two_files.rs` of the agent defines
//! the format; this code reads the files while the agent runs.

use std::path::Path;

use anyhow::Context as _;
use kerf_core::contract::WantedSlice;
use serde_json::Value;

const FILES: [&str; 2] = ["ledger.0", "ledger.1"];

/// The desired slices of the newest intact checkpoint in this folder; empty if there is none.
pub fn wanted_slices(folder: &Path) -> anyhow::Result<Vec<WantedSlice>> {
    let Some(record) = newest(folder)? else { return Ok(Vec::new()) };
    Ok(serde_json::from_value(record["ledger"]["desired"]["slices"].clone())?)
}

/// The highest epoch in the newest intact checkpoint in this folder.
pub fn epoch(folder: &Path) -> anyhow::Result<u64> {
    let record = newest(folder)?.context("there is no record")?;
    record["ledger"]["epoch"].as_u64().context("the record has no epoch")
}

fn newest(folder: &Path) -> anyhow::Result<Option<Value>> {
    let files = FILES.iter().filter_map(|name| std::fs::read(folder.join(name)).ok());
    let documents: Vec<Vec<u8>> = files.collect();
    let newest = documents.iter().filter_map(|bytes| whole(bytes)).max_by_key(|(sequence, _)| *sequence);
    newest.map(|(_, document)| serde_json::from_slice(document).context("the record is no JSON")).transpose()
}

/// The sequence number and document of a file, or `None` if its checksum is wrong because a write is under
/// way.
fn whole(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (_magic, rest) = bytes.split_first_chunk::<8>()?;
    let (numbers, rest) = rest.split_first_chunk::<16>()?;
    let (sum, rest) = rest.split_first_chunk::<8>()?;
    let (sequence, length) = numbers.split_first_chunk::<8>()?;
    let length = u64::from_le_bytes(length.try_into().ok()?);
    let document = rest.get(..usize::try_from(length).ok()?)?;
    let fnv = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let found = numbers.iter().chain(document).fold(0xcbf2_9ce4_8422_2325, fnv);
    (found == u64::from_le_bytes(*sum)).then_some((u64::from_le_bytes(*sequence), document))
}
