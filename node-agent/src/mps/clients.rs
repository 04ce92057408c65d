//! How many clients the MPS server of a device accepts.

/// The most client processes that MPS takes on a whole GPU at once.
///
/// `capability` is the GPU's compute capability, `cuda` the driver's CUDA version, both as major and minor.
///
/// From NVIDIA's MPS guide ("Client-Server Connection Limits"): 16 before Volta (7.0); 48 from Volta on; 60 with CUDA
/// 13.1 and later.
#[must_use]
pub fn max_clients(capability: (u32, u32), cuda: (u32, u32)) -> u32 {
    match (capability >= (7, 0), cuda >= (13, 1)) {
        (false, _) => 16,
        (true, false) => 48,
        (true, true) => 60,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_limit_follows_architecture_and_cuda() {
        for (capability, cuda, most) in [
            ((6, 1), (12, 4), 16),
            ((6, 1), (13, 1), 16),
            ((7, 0), (12, 4), 48),
            ((9, 0), (13, 0), 48),
            ((9, 0), (13, 1), 60),
            ((10, 0), (14, 0), 60),
        ] {
            assert_eq!(max_clients(capability, cuda), most, "{capability:?} {cuda:?}");
        }
    }
}
