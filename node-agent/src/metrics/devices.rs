//! Metrics of each GPU and each slice: as many series as the node has of them, removed with them.

use kerf_core::contract::{GpuNodeStatus, Holder, SliceStatus};
use kerf_core::inventory::by_state;
use kerf_core::names::{GpuUuid, PodKey};
use kerf_core::units::MemoryMib;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

type Ratio = Gauge<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GpuLabel {
    gpu: String,
}

/// The GPU's index on its node and its model, for people who identify it by these.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GpuInfo {
    gpu: String,
    index: u32,
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GpuMemory {
    gpu: String,
    state: &'static str,
}

/// One slice and its holder; without a holder those labels are empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SliceLabel {
    gpu: String,
    slice: String,
    device: String,
    kind: &'static str,
    namespace: String,
    pod: String,
    container: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodLabel {
    gpu: String,
    namespace: String,
    pod: String,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Devices {
    used: Family<SliceLabel, Gauge>,
    size: Family<SliceLabel, Gauge>,
    requested: Family<SliceLabel, Gauge>,
    over_use: Family<PodLabel, Gauge>,
    busy: Family<SliceLabel, Ratio>,
    healthy: Family<GpuLabel, Gauge>,
    outside: Family<GpuLabel, Gauge>,
    busy_gpus: Family<GpuLabel, Ratio>,
    info: Family<GpuInfo, Gauge>,
    states: Family<GpuMemory, Gauge>,
}

/// What the metrics show of a slice besides its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SliceUse {
    pub(crate) used: MemoryMib,
    /// What its holder's pod requested.
    pub(crate) requested: Option<MemoryMib>,
    /// How busy it was, in percent.
    pub(crate) busy: Option<u32>,
}

impl Devices {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Memory that a slice's processes use: zero for an idle slice";
        registry.register("slice_memory_used_bytes", help, self.used.clone());
        registry.register("slice_memory_bytes", "Memory that a slice has", self.size.clone());
        let help = "Memory that a slice's pod asked for";
        registry.register("slice_memory_requested_bytes", help, self.requested.clone());
        let help =
            "Memory that a pod uses beyond its slices of the GPU, where that is more than kerf tolerates";
        registry.register("memory_over_use_bytes", help, self.over_use.clone());
        let help =
            "Part of the time in which the pod's processes ran on the GPU, or anything on its MIG instance";
        registry.register("slice_utilization_ratio", help, self.busy.clone());
        let help = "Part of the time in which anything ran on the GPU; not reported in MIG mode";
        registry.register("gpu_utilization_ratio", help, self.busy_gpus.clone());
        registry.register("gpu_healthy", "Whether slices of the GPU are offered", self.healthy.clone());
        let help = "Memory of the GPU in use by processes that hold no slice";
        registry.register("gpu_memory_outside_bytes", help, self.outside.clone());
        registry.register(
            "gpu_info",
            "The GPU's number on the node and its model; always 1",
            self.info.clone(),
        );
        let help = "Memory of the GPU by its state";
        registry.register("gpu_memory_bytes", help, self.states.clone());
    }

    /// Sets which pods exceed their share, and by how much.
    pub(super) fn set_over_use(&self, pods: impl Iterator<Item = (GpuUuid, PodKey, MemoryMib)>) {
        self.over_use.clear();
        for (gpu, pod, over) in pods {
            let PodKey { namespace, name } = pod;
            let label = PodLabel { gpu: gpu.to_string(), namespace, pod: name };
            self.over_use.get_or_create(&label).set(bytes(over));
        }
    }

    /// Replaces the series of all slices and GPUs, so that those of vanished ones end.
    pub(super) fn set(
        &self,
        status: &GpuNodeStatus,
        of_slice: impl Fn(&SliceStatus) -> SliceUse,
        busy_gpu: impl Fn(&GpuUuid) -> Option<u32>,
    ) {
        self.used.clear();
        self.size.clear();
        self.requested.clear();
        self.busy.clear();
        for slice in status.slices.iter().filter(|slice| slice.device.is_some()) {
            let (label, SliceUse { used, requested, busy }) = (slice_label(slice), of_slice(slice));
            self.used.get_or_create(&label).set(bytes(used));
            self.size.get_or_create(&label).set(bytes(slice.memory));
            if let Some(requested) = requested {
                self.requested.get_or_create(&label).set(bytes(requested));
            }
            if let Some(percent) = busy {
                self.busy.get_or_create(&label).set(f64::from(percent) / 100.0);
            }
        }
        self.busy_gpus.clear();
        self.healthy.clear();
        self.outside.clear();
        self.info.clear();
        self.states.clear();
        for gpu in &status.gpus {
            let uuid = gpu.uuid.to_string();
            let info = GpuInfo { gpu: uuid.clone(), index: gpu.index, model: gpu.model.clone() };
            self.info.get_or_create(&info).set(1);
            for (state, memory) in by_state(gpu, &status.slices) {
                let label = GpuMemory { gpu: uuid.clone(), state: state.as_str() };
                self.states.get_or_create(&label).set(bytes(memory));
            }
            let label = GpuLabel { gpu: uuid };
            if let Some(percent) = busy_gpu(&gpu.uuid) {
                self.busy_gpus.get_or_create(&label).set(f64::from(percent) / 100.0);
            }
            self.healthy.get_or_create(&label).set(gpu.message.is_none().into());
            self.outside.get_or_create(&label).set(bytes(gpu.outside));
        }
    }
}

fn bytes(memory: MemoryMib) -> i64 {
    i64::try_from(memory.0.saturating_mul(1 << 20)).unwrap_or(i64::MAX)
}

fn slice_label(slice: &SliceStatus) -> SliceLabel {
    let text = |of: fn(&Holder) -> &String| slice.holder.as_ref().map(of).cloned().unwrap_or_default();
    SliceLabel {
        gpu: slice.gpu.to_string(),
        slice: slice.id.as_ref().map(ToString::to_string).unwrap_or_default(),
        device: slice.device.as_ref().map(ToString::to_string).unwrap_or_default(),
        kind: slice.shape.kind().as_str(),
        namespace: text(|h| &h.namespace),
        pod: text(|h| &h.pod),
        container: text(|h| &h.container),
    }
}
