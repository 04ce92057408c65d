//! How many clients a device's MPS server takes.

/// The most client processes that MPS takes on a device at once.
///
/// `capability` is the device's compute capability, `cuda` the driver's CUDA version, both as major and minor. `share` is
/// for a MIG device: its compute slices, and those of the whole GPU.
///
/// From NVIDIA's MPS guide ("Client-Server Connection Limits"): 16 before Volta (7.0); from Volta on 48, and 60 from CUDA
/// 13.1 on; on a MIG device the limit shrinks in proportion to its compute. Rounded down, and at least one.
#[must_use]
pub fn max_clients(capability: (u32, u32), cuda: (u32, u32), share: Option<(u32, u32)>) -> u32 {
    let most = match (capability >= (7, 0), cuda >= (13, 1)) {
        (false, _) => 16,
        (true, false) => 48,
        (true, true) => 60,
    };
    match share {
        Some((part, whole)) if whole > 0 => (most * part.min(whole) / whole).max(1),
        _ => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_limit_follows_architecture_cuda_and_share() {
        for (capability, cuda, share, most) in [
            ((6, 1), (12, 4), None, 16),
            ((6, 1), (13, 1), None, 16),
            ((7, 0), (12, 4), None, 48),
            ((7, 5), (13, 0), None, 48),
            ((9, 0), (13, 0), None, 48),
            ((9, 0), (13, 1), None, 60),
            ((10, 0), (14, 0), None, 60),
            ((9, 0), (13, 0), Some((1, 7)), 6),
            ((9, 0), (13, 0), Some((3, 7)), 20),
            ((9, 0), (13, 0), Some((7, 7)), 48),
            ((9, 0), (13, 1), Some((2, 7)), 17),
            ((9, 0), (13, 0), Some((1, 100)), 1),
            ((9, 0), (13, 0), Some((1, 0)), 48),
        ] {
            assert_eq!(max_clients(capability, cuda, share), most, "{capability:?} {cuda:?} {share:?}");
        }
    }
}
