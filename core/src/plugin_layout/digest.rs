//! A short fingerprint of a text, to detect a change.

/// Offset and prime of 64-bit FNV-1a (RFC 9923).
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// Returns eight hexadecimal digits. They suffice, because one policy has dozens of successive texts and not millions.
pub(super) fn digest<'t>(parts: impl IntoIterator<Item = &'t str>) -> String {
    let bytes = parts.into_iter().flat_map(|part| part.bytes().chain([0]));
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_parts_have_different_digests() {
        let all = [vec!["a", "b"], vec!["ab"], vec!["a", "b", ""], vec!["a", "c"]];
        let digests: std::collections::BTreeSet<_> =
            all.iter().map(|parts| digest(parts.iter().copied())).collect();
        assert_eq!(digests.len(), all.len());
        assert!(digests.iter().all(|digest| digest.len() == 8));
    }
}
