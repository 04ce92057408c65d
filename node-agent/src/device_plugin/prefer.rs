//! Which of several equal devices a container best gets together.

use crate::node::ListedDevice;
use kerf_core::names::GpuUuid;
use std::collections::BTreeMap;

/// Devices of one GPU, and the NUMA node that it is close to.
struct Group<'a> {
    gpu: Option<GpuUuid>,
    numa: Option<u32>,
    ids: Vec<&'a String>,
}

/// How good a device is for a container: the first is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rank {
    /// It was promised to a pod that does not have it yet.
    Promised,
    /// It is held, as far as the agent has heard: the kubelet has freed it, and the agent may take it for idle any moment.
    Held,
    /// It is not offered any more.
    Withdrawn,
}

impl Rank {
    const ALL: [Self; 3] = [Self::Promised, Self::Held, Self::Withdrawn];

    fn of(device: Option<&ListedDevice>) -> Self {
        match device {
            Some(device) if device.healthy && !device.held => Self::Promised,
            Some(device) if device.healthy => Self::Held,
            _ => Self::Withdrawn,
        }
    }
}

/// `size` of the `available` devices, `required` ones among them: those that are promised and not held where they suffice,
/// of one GPU where one has enough, else of one NUMA node where one has enough, and there of the GPU or the node on which
/// the fewest are left over.
///
/// It always answers: a kubelet that gets an error leaks devices (kubernetes#130145).
pub(super) fn prefer(
    list: &[ListedDevice],
    available: &[String],
    required: &[String],
    size: usize,
) -> Vec<String> {
    let device = |id: &String| list.iter().find(|d| d.id.as_str() == id);
    let mut preferred: Vec<&String> = required.iter().collect();
    for rank in Rank::ALL {
        let wanted = size.saturating_sub(preferred.len());
        let ids = available.iter().filter(|id| !required.contains(id) && Rank::of(device(id)) == rank);
        let known = preferred.first().and_then(|id| device(id));
        let groups = ordered(groups(ids, device), known, wanted);
        preferred.extend(groups.into_iter().flat_map(|group| group.ids).take(wanted));
    }
    preferred.into_iter().cloned().collect()
}

fn gpu(device: &ListedDevice) -> Option<&GpuUuid> {
    device.grant.as_ref().map(|grant| &grant.gpu)
}

fn groups<'a, 'l>(
    ids: impl Iterator<Item = &'a String>,
    device: impl Fn(&String) -> Option<&'l ListedDevice>,
) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<Option<&GpuUuid>, Group<'a>> = BTreeMap::new();
    for id in ids {
        let device = device(id);
        let gpu = device.and_then(gpu);
        let numa = device.and_then(|device| device.numa);
        let group = groups.entry(gpu).or_insert_with(|| Group { gpu: gpu.cloned(), numa, ids: Vec::new() });
        group.ids.push(id);
    }
    groups.into_values().collect()
}

/// The GPU of what must be taken and those beside it; then what suffices, the tightest first; else the largest first.
fn ordered<'a>(mut groups: Vec<Group<'a>>, known: Option<&ListedDevice>, wanted: usize) -> Vec<Group<'a>> {
    let mut of_node: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for group in &groups {
        *of_node.entry(group.numa).or_default() += group.ids.len();
    }
    // Less is better: first whether it suffices, then how much is left over or missing.
    let fit = |count: usize| match count.checked_sub(wanted) {
        Some(left) => (false, left),
        None => (true, wanted - count),
    };
    groups.sort_by_cached_key(|group| {
        let elsewhere = known.map(|known| (gpu(known) != group.gpu.as_ref(), known.numa != group.numa));
        let alone = fit(group.ids.len());
        let together = fit(of_node.get(&group.numa).copied().unwrap_or_default());
        // A GPU that suffices alone is better than a node; among GPUs that do not, those of one node go together.
        let by_node = if alone.0 { (together, group.numa) } else { ((false, 0), None) };
        (elsewhere, alone.0, by_node, alone.1)
    });
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AccessGrant;
    use crate::node::Grant;
    use kerf_core::names::DeviceId;

    fn device(id: &str, gpu: u32, numa: impl Into<Option<u32>>) -> ListedDevice {
        let gpu = GpuUuid::new(format!("GPU-{gpu}"));
        let grant = Grant { gpu, slice: id.to_owned(), share: None, access: AccessGrant::default() };
        ListedDevice {
            id: DeviceId::new(id),
            healthy: true,
            held: false,
            grant: Some(grant),
            numa: numa.into(),
        }
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn what_nobody_has_is_preferred_to_what_is_held_and_that_to_what_is_withdrawn() {
        let mut list = [device("a", 0, None), device("b", 1, None), device("c", 2, None)];
        list[0].healthy = false;
        list[1].held = true;
        let all = ids(&["a", "b", "c"]);
        assert_eq!(prefer(&list, &all, &[], 1), ["c"]);
        assert_eq!(prefer(&list, &all, &[], 2), ["c", "b"]);
        assert_eq!(prefer(&list, &all, &[], 3), ["c", "b", "a"]);
    }

    #[test]
    fn devices_of_one_gpu_are_preferred_and_the_tightest_one_first() {
        let list = [("a", 0), ("b", 1), ("c", 1), ("d", 2), ("e", 2), ("f", 2)]
            .map(|(id, gpu)| device(id, gpu, None));
        let all = ids(&["a", "b", "c", "d", "e", "f"]);
        assert_eq!(prefer(&list, &all, &[], 1), ["a"]);
        assert_eq!(prefer(&list, &all, &[], 2), ["b", "c"]);
        assert_eq!(prefer(&list, &all, &ids(&["d"]), 2), ["d", "e"]);
        assert_eq!(prefer(&list, &all, &[], 4), ["d", "e", "f", "b"], "no GPU has four: the largest first");
        assert_eq!(prefer(&list, &ids(&["x"]), &[], 1), ["x"], "an unknown id is no reason to refuse");
    }

    /// Four GPUs: two on node 0 with three devices, two on node 1 with four.
    fn two_nodes() -> [ListedDevice; 7] {
        [("a", 0, 0), ("b", 1, 0), ("c", 1, 0), ("d", 2, 1), ("e", 2, 1), ("f", 3, 1), ("g", 3, 1)]
            .map(|(id, gpu, numa)| device(id, gpu, numa))
    }

    #[test]
    fn where_no_gpu_suffices_devices_of_one_numa_node_are_preferred() {
        let all = ids(&["a", "b", "c", "d", "e", "f", "g"]);
        for (size, expected) in [
            (2, ["b", "c"].as_slice()),
            (3, &["b", "c", "a"]),
            (4, &["d", "e", "f", "g"]),
            (5, &["d", "e", "f", "g", "b"]),
        ] {
            assert_eq!(prefer(&two_nodes(), &all, &[], size), expected, "{size} devices");
        }
    }

    #[test]
    fn beside_a_required_device_its_gpu_comes_first_and_then_its_numa_node() {
        let all = ids(&["a", "b", "c", "d", "e", "f", "g"]);
        let one = ids(&["a"]);
        assert_eq!(prefer(&two_nodes(), &all, &one, 3), ["a", "b", "c"]);
        let one = ids(&["d"]);
        assert_eq!(prefer(&two_nodes(), &all, &one, 2), ["d", "e"]);
        assert_eq!(
            prefer(&two_nodes(), &all, &one, 3),
            ["d", "e", "f"],
            "not b and c, though they are of one GPU"
        );
    }
}
