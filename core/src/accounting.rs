//! The memory of a GPU that shares may use together, and the memory that a pod's processes may use beside the pod's
//! share.
//!
//! A share of N GiB is all the memory that its pod may use of the GPU, including the CUDA contexts of its processes.
//! The driver counts like this under an MPS limit, on a MIG instance and on a whole GPU. Everything that no share is
//! charged with is kept free beside them: the memory that the driver reserves, the context of the MPS server, and what
//! each client uses over its limit.
//!
//! Measured on 2026-11-24 with driver 580.159.04, by NVML and `cuMemGetInfo`, in MiB:
//!
//! | | H100 80GB HBM3 | H200 |
//! |---|---|---|
//! | total; of it reserved by the driver | 81,559; 480 | 143,771; 616 |
//! | a process with a context and nothing else, by the process list | 518 | 518 |
//! | the MPS server, without clients | 75 | 75 |
//! | a client with a limit of 10,240 that has allocated all that it gets | 10,242 | 10,238 to 10,242 |
//! | of that its context, with 1, 25, 50 and 100 % of the threads | -; -; -; 514 | 58; 145; 271; 514 |

use crate::units::MemoryMib;

/// The memory kept free beside shares on every GPU: the context of the MPS server (75 MiB), and 3 MiB for each of up to
/// 60 clients, which exceed their limits by up to 2 MiB.
const SERVER: MemoryMib = MemoryMib(256);

/// The least memory that counts as reserved by the driver if it does not report how much. It is more than was measured
/// on any GPU with up to 80 GiB, so that shares never get memory that the driver uses.
const RESERVED_AT_LEAST: MemoryMib = MemoryMib(640);

/// The same for larger GPUs: one part in this many of their memory. The measured parts are 1/170 (H100) and 1/233
/// (H200).
const RESERVED_PART: u64 = 128;

/// The context of a process on a model that was not measured. Contexts grow with the multiprocessors: 518 MiB belong to
/// 132 of them. The model with the most (RTX PRO 6000) has 188, which would be 738 MiB.
const CONTEXT: MemoryMib = MemoryMib(768);

/// The context of a process that may use all multiprocessors, by model, as the driver's process list reports it.
const CONTEXTS: [(&str, MemoryMib); 2] = [("H100-80GB", MemoryMib(518)), ("H200-141GB", MemoryMib(518))];

/// The contexts of a pod's processes may use one part in this many of the share beside it.
const CONTEXTS_PART: u64 = 4;

/// The memory of a GPU that no share may use. `reserved` is what its driver reserves; `None` if it is unknown, for
/// example from an agent of an earlier version.
#[must_use]
pub fn beside_shares(total: MemoryMib, reserved: Option<MemoryMib>) -> MemoryMib {
    let unknown = || RESERVED_AT_LEAST.max(MemoryMib(total.0 / RESERVED_PART));
    MemoryMib(reserved.unwrap_or_else(unknown).0.saturating_add(SERVER.0))
}

/// The memory that a pod with a share of `given` may use on a GPU of this model, by the driver's process list, before
/// it counts as over its share: the share, and a context for each of its processes.
///
/// The contexts count up to a quarter of the share, and one of them always counts. So a pod with several processes does
/// not count as greedy, and a pod that starts more and more processes gains at most that quarter of its neighbours'
/// memory.
#[must_use]
pub fn tolerated(model: &str, given: MemoryMib, processes: u32) -> MemoryMib {
    let known = CONTEXTS.iter().find(|(name, _)| *name == model);
    let context = known.map_or(CONTEXT, |(_, context)| *context);
    let contexts = context.0.saturating_mul(u64::from(processes.max(1)));
    MemoryMib(given.0.saturating_add(contexts.min((given.0 / CONTEXTS_PART).max(context.0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SizeGb;

    #[test]
    fn memory_beside_shares_covers_the_driver_and_the_mps_server() {
        for (total, reserved, left) in [
            (81_559, Some(480), 80_823),
            (143_771, Some(616), 142_899),
            // Without a report the reserve counts as larger than on any measured GPU.
            (81_559, None, 80_663),
            (15_360, None, 14_464),
            (284_208, None, 281_732),
            (512, None, 0),
        ] {
            let beside = beside_shares(MemoryMib(total), reserved.map(MemoryMib));
            assert_eq!(MemoryMib(total).saturating_sub(beside), MemoryMib(left), "{total} {reserved:?}");
        }
    }

    /// The figures of the table above: seven clients of 10 GiB and the server, each at its limit.
    #[test]
    fn clients_at_their_limits_fit_beside_the_reserved_memory() {
        for (total, reserved) in [(81_559, 480), (143_771, 616)] {
            let for_shares =
                MemoryMib(total).saturating_sub(beside_shares(MemoryMib(total), Some(MemoryMib(reserved))));
            for (shares, size) in [(48, for_shares.0 / 48), (60, for_shares.0 / 60), (1, for_shares.0)] {
                assert!(75 + shares * (size + 3) <= total - reserved, "{shares} shares of {size} MiB");
            }
        }
    }

    #[test]
    fn each_process_may_have_a_context_up_to_a_quarter_of_the_share() {
        let ten = SizeGb(10).share_memory();
        for (given, processes, beside) in [
            (ten, 0, 518),
            (ten, 1, 518),
            (ten, 4, 4 * 518),
            (ten, 5, 2560),
            (ten, u32::MAX, 2560),
            // One context is more than a quarter of a small share.
            (SizeGb(1).share_memory(), 1, 518),
            (SizeGb(1).share_memory(), 100, 518),
        ] {
            let tolerated = tolerated("H100-80GB", given, processes);
            assert_eq!(tolerated.saturating_sub(given), MemoryMib(beside), "{processes} in {given}");
        }
        assert_eq!(tolerated("L4-24GB", ten, 1), MemoryMib(10_240 + 768), "of a model without measurements");
    }
}
