//! What of a GPU's memory shares may come to, and what a pod's processes may use beside the pod's share.
//!
//! A share of N GiB is all that its pod may use of the GPU, the CUDA context of its process included: so the driver counts under
//! an MPS limit, and so a MIG instance and a whole GPU count. What no share is charged with is kept free beside them: the memory
//! that the driver reserves, the context of the MPS server, and what each client uses over its limit.
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

/// What is kept free beside shares on every GPU: the context of the MPS server (75 MiB), and the 3 MiB by which each of up to
/// 60 clients exceeds its limit.
const SERVER: MemoryMib = MemoryMib(256);

/// What the driver reserves at least, where it does not say how much: more than it was seen to reserve on any GPU with up to
/// 80 GiB.
const RESERVED_AT_LEAST: MemoryMib = MemoryMib(640);

/// On larger GPUs that is one part in so many. It was seen to be one in 170 (H100) and one in 233 (H200).
const RESERVED_PART: u64 = 128;

/// The context of a process, where nobody measured the model. A context grows with the multiprocessors: 518 MiB are for 132 of
/// them, and the model with the most (RTX PRO 6000) has 188.
const CONTEXT: MemoryMib = MemoryMib(768);

/// The context of a process that may use all multiprocessors, by model, as the process list counts it.
const CONTEXTS: [(&str, MemoryMib); 2] = [("H100-80GB", MemoryMib(518)), ("H200-141GB", MemoryMib(518))];

/// The contexts of a pod's processes may come to one part in so many of its share.
const CONTEXTS_PART: u64 = 4;

/// The memory of a GPU that no share may have: `reserved` is what its driver reserves, absent where that is not known, as from
/// an agent of an earlier version.
#[must_use]
pub fn beside_shares(total: MemoryMib, reserved: Option<MemoryMib>) -> MemoryMib {
    let unknown = || RESERVED_AT_LEAST.max(MemoryMib(total.0 / RESERVED_PART));
    MemoryMib(reserved.unwrap_or_else(unknown).0.saturating_add(SERVER.0))
}

/// What a pod with a share of `given` may use of a GPU of this model, by the driver's process list, before it counts as over its
/// share: a context for each of its processes beside what it was given.
///
/// The contexts count up to a quarter of the share, and one of them in any case. So a pod of several processes is not taken for a
/// greedy one, and a pod that starts more and more processes gains no more than that quarter of its neighbours' memory.
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
    fn what_no_share_may_have_holds_the_reserved_memory_and_the_mps_server() {
        for (total, reserved, left) in [
            (81_559, Some(480), 80_823),
            (143_771, Some(616), 142_899),
            // Nobody says what is reserved: it is taken for more than on any GPU that was measured.
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
    fn clients_at_their_limits_and_their_server_have_room_beside_what_is_reserved() {
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
            // Of a small share one context is more than a quarter.
            (SizeGb(1).share_memory(), 1, 518),
            (SizeGb(1).share_memory(), 100, 518),
        ] {
            let tolerated = tolerated("H100-80GB", given, processes);
            assert_eq!(tolerated.saturating_sub(given), MemoryMib(beside), "{processes} in {given}");
        }
        assert_eq!(tolerated("L4-24GB", ten, 1), MemoryMib(10_240 + 768), "of a model that nobody measured");
    }
}
