//! The driver's limits on the GPU memory of pods' cgroups (R615 and later).

use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;

/// Memory limits by GPU and cgroup.
pub type Limits = BTreeMap<(GpuUuid, String), MemoryMib>;

/// The format of limits in the checkpoint: by GPU, and by the cgroup's path from the hierarchy's root.
pub mod by_gpu {
    use super::{BTreeMap, GpuUuid, Limits, MemoryMib};
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    type ByGpu = BTreeMap<GpuUuid, BTreeMap<String, MemoryMib>>;

    pub(crate) fn serialize<S: Serializer>(limits: &Limits, serializer: S) -> Result<S::Ok, S::Error> {
        let mut by_gpu = ByGpu::new();
        for ((gpu, cgroup), limit) in limits {
            by_gpu.entry(gpu.clone()).or_default().insert(cgroup.clone(), *limit);
        }
        by_gpu.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Limits, D::Error> {
        let by_gpu = ByGpu::deserialize(deserializer)?.into_iter();
        let of_gpu = |(gpu, limits): (GpuUuid, BTreeMap<String, MemoryMib>)| {
            limits.into_iter().map(move |(cgroup, limit)| ((gpu.clone(), cgroup), limit))
        };
        Ok(by_gpu.flat_map(of_gpu).collect())
    }
}
