//! The slices of a fixed layout, and their places on a GPU.

use super::are_within;
use super::placement::place;
use crate::contract::{GpuRule, LaidOut, Shape};
use crate::kind::Kind;
use crate::mig::{MigTable, Profile};
use crate::resource::ResourceName;
use crate::units::MemoryMib;

/// The slices of a rule's layout on a GPU with this much memory. Shares may not use the part `beside` of it. `None` if
/// the rule has no layout, or if the GPU cannot have all of its slices.
///
/// Each MIG profile gets a fixed place, the same on every GPU with this table.
#[must_use]
pub fn laid_out(
    rule: &GpuRule,
    table: &MigTable,
    memory: MemoryMib,
    beside: MemoryMib,
    mps_shares: Option<u32>,
) -> Option<Vec<Shape>> {
    let kind = rule.layout.kind()?;
    if kind == Kind::Mig {
        let profiles = rule.layout.iter().filter_map(profile);
        return Some(place(table, &profiles.collect::<Vec<_>>())?.into_iter().map(Shape::mig).collect());
    }
    let mut shapes = Vec::new();
    for LaidOut { resource, count } in rule.layout.iter() {
        let shape = match resource {
            ResourceName::Mig(_)
            | ResourceName::Compute(_)
            | ResourceName::MigReplica(_)
            | ResourceName::Neutral(_)
            | ResourceName::Plugin(..) => return None,
            ResourceName::Whole => Shape::Whole { size_gb: memory.nominal() },
            ResourceName::Mps(size) => Shape::mps(size),
            ResourceName::TimeSlicing(size_gb) => Shape::TimeSlicing { size_gb },
            ResourceName::Replica | ResourceName::MpsReplica => {
                rule.replica(kind, memory.saturating_sub(beside))?
            }
        };
        // No GPU has more than one share for each GiB. The check comes before the allocation, so that a mistyped count
        // takes no memory.
        if u64::from(count) > rule.mps.memory_percent.limit_for(memory).0 / 1024 {
            return None;
        }
        shapes.extend((0..count).map(|_| shape));
    }
    let is_whole = kind == Kind::Whole;
    (is_whole || are_within(rule, kind, memory, beside, mps_shares, &shapes)).then_some(shapes)
}

fn profile(laid_out: LaidOut) -> Option<(Profile, u32)> {
    match laid_out.resource {
        ResourceName::Mig(profile) => Some((profile, laid_out.count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_a_share_for_each_gib_at_most() {
        let shares = |count: u32| {
            let layout = format!(r#"[{{"resource": "nvidia.com/gpu-1gb.shared", "count": {count}}}]"#);
            let rule: GpuRule = serde_json::from_str(&format!(r#"{{"layout": {layout}}}"#)).unwrap();
            let shapes = laid_out(&rule, &MigTable::new(vec![]), MemoryMib(4096), MemoryMib(0), None);
            shapes.map(|shapes| shapes.len())
        };
        assert_eq!((shares(4), shares(5)), (Some(4), None));
    }
}
