//! Makes UUIDs and serial numbers from text, so that the same configuration always has the same ones.
//!
//! They are not cryptographic: they only need to be distinct and look like NVML's.

/// FNV-1a over the text, then the finalizer of splitmix64, so that similar texts give very different numbers.
fn hash(text: &str, basis: u64) -> u64 {
    let folded =
        text.bytes().fold(basis, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
    let mut mixed = folded;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn uuid(text: &str, version: u64) -> String {
    let high = hash(text, 0xCBF2_9CE4_8422_2325);
    let low = hash(text, 0x9AE1_6A3B_2F90_404F);
    let third = (high & 0x0FFF) | (version << 12);
    let fourth = ((low >> 48) & 0x3FFF) | 0x8000;
    format!(
        "{:08x}-{:04x}-{third:04x}-{fourth:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xFFFF,
        low & 0xFFFF_FFFF_FFFF
    )
}

/// A UUID `GPU-…` for the GPU at `index` of the node with this `seed`.
pub(crate) fn gpu_uuid(seed: &str, index: u32) -> String {
    format!("GPU-{}", uuid(&format!("{seed}/{index}"), 4))
}

/// A UUID `MIG-…-5xxx-…` for the compute instance with that serial, which is never reused.
pub(crate) fn mig_uuid(gpu_uuid: &str, serial: u32) -> String {
    format!("MIG-{}", uuid(&format!("{gpu_uuid}#{serial}"), 5))
}

/// A board serial of thirteen digits, like an H200's.
pub(crate) fn board_serial(gpu_uuid: &str) -> String {
    format!("1{:012}", hash(gpu_uuid, 0xCBF2_9CE4_8422_2325) % 1_000_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_the_shape_that_nvml_gives() {
        let mig = mig_uuid(&gpu_uuid("node-a", 0), 7);
        assert_eq!((mig.len(), &mig[..4]), (40, "MIG-"));
        let groups: Vec<&str> = mig[4..].split('-').collect();
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(groups[2].starts_with('5'));
        assert!(matches!(groups[3].as_bytes()[0], b'8' | b'9' | b'a' | b'b'));
        assert_eq!(gpu_uuid("node-a", 0).len(), 40);
        assert_eq!(board_serial("GPU-x").len(), 13);
    }

    #[test]
    fn distinct_nodes_gpus_and_serials_get_distinct_uuids() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in ["node-a", "node-b", "node-aa", ""] {
            for index in 0..16 {
                let gpu = gpu_uuid(seed, index);
                assert!((0..64).all(|serial| seen.insert(mig_uuid(&gpu, serial))));
                assert!(seen.insert(gpu));
            }
        }
    }
}
