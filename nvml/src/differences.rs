//! Logs where the catalog differs from NVML. It changes nothing, because NVML is right.

use kerf_core::mig::catalog::{Disagreement, by_product, compare};
use kerf_core::mig::{ComputeProfile, MigTable, Profile};
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;

/// Warns once for each difference between `table`, which NVML returned, and the catalog's entry for such a GPU. The
/// catalog matters all the same: plans off the node and the scheduler's list of resource names use it.
///
/// Returns whether NVML lists every profile that the catalog has of the GPU.
pub(super) fn warn_of_differences(gpu: &GpuUuid, product: &str, memory: MemoryMib, table: &MigTable) -> bool {
    let Some(model) = by_product(product, memory) else {
        tracing::warn!(%gpu, product, %memory, "this GPU is not in the catalog; NVML's MIG table is used");
        return true;
    };
    let differences = compare(model, table);
    for what in &differences {
        let model = model.name;
        tracing::warn!(%gpu, model, %what, "the catalog and NVML disagree; NVML's MIG table is used");
    }
    !differences.iter().any(|what| matches!(what, Disagreement::Missing(_)))
}

/// Warns where core and the driver disagree on the places of compute instances. kerf makes none at a place that the
/// driver lacks, and offers none that only the driver has.
pub(super) fn warn_of_places(gpu: &GpuUuid, of: Profile, starts: &BTreeMap<u32, Vec<u32>>) {
    for part in ComputeProfile::all(of) {
        let Some(listed) = starts.get(&u32::from(part.compute())) else { continue };
        if !listed.iter().copied().eq(part.starts().iter().copied().map(u32::from)) {
            let known = part.starts();
            tracing::warn!(%gpu, %part, ?listed, ?known, "kerf and NVML disagree on the places of compute instances");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::mig::catalog::by_name;
    use std::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    #[derive(Clone, Default)]
    struct Warnings(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    impl Visit for Warnings {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if matches!(field.name(), "model" | "product" | "what") {
                self.0.lock().unwrap().push(format!("{value:?}"));
            }
        }
    }

    fn heard(product: &str, memory: u64, table: &MigTable) -> (Vec<String>, bool) {
        let heard = Warnings::default();
        let lists_all = tracing::subscriber::with_default(heard.clone(), || {
            warn_of_differences(&GpuUuid::new("GPU-0"), product, MemoryMib(memory), table)
        });
        (heard.0.lock().unwrap().clone(), lists_all)
    }

    #[test]
    fn the_log_names_the_model_and_each_difference() {
        let table = by_name("H200-141GB").unwrap().mig_table().unwrap();
        assert_eq!(heard("NVIDIA H200", 143_771, &table), (Vec::new(), true));
        let mut entries = table.entries().to_vec();
        entries.pop();
        let (heard, lists_all) = heard("NVIDIA H200", 143_771, &MigTable::new(entries));
        assert!(!lists_all);
        assert_eq!(heard, ["\"H200-141GB\"", "NVML does not list 7g.141gb"]);
    }

    #[test]
    fn a_gpu_that_the_catalog_does_not_know_is_named() {
        let heard = heard("NVIDIA X100", 100_000, &MigTable::default());
        assert_eq!(heard, (vec!["\"NVIDIA X100\"".to_owned()], true));
    }
}
