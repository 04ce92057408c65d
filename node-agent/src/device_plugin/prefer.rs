//! Chooses which of several equal devices a container should get together.

use crate::node::ListedDevice;
use kerf_core::closeness::Closeness;
use kerf_core::names::{GpuUuid, PodUid};
use std::collections::{BTreeMap, BTreeSet};

/// The devices of one GPU, and its place in the node.
struct Group<'a> {
    gpu: Option<GpuUuid>,
    closeness: Closeness,
    numa: Option<u32>,
    ids: Vec<&'a String>,
}

/// How suitable a device is for a container; the first variant is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rank {
    /// It is reserved for a pod that does not have it yet.
    Reserved,
    /// It is held as far as the agent has read. The kubelet has freed it, and the agent may find it idle at any moment.
    Held,
    /// It is no longer offered.
    Withdrawn,
}

impl Rank {
    const ALL: [Self; 3] = [Self::Reserved, Self::Held, Self::Withdrawn];

    fn from_device(device: Option<&ListedDevice>) -> Self {
        match device {
            Some(device) if device.healthy && !device.held => Self::Reserved,
            Some(device) if device.healthy => Self::Held,
            _ => Self::Withdrawn,
        }
    }
}

/// Returns `size` of the `available` devices, with the `required` ones among them. It prefers, in this order:
/// - devices that are reserved and not held, and those of one pod if that has enough;
/// - devices of one GPU if that has enough, else of GPUs that are close to each other;
/// - devices of one NUMA node if that has enough;
/// - the GPU or node on which the fewest devices are left over.
///
/// The kubelet does not say for which pod it asks. So the answer does not mix devices that are reserved for two pods,
/// because that would break up what was chosen for both.
///
/// It always returns an answer, because a kubelet that gets an error leaks devices (kubernetes#130145).
pub(super) fn prefer(
    list: &[ListedDevice],
    available: &[String],
    required: &[String],
    size: usize,
) -> Vec<String> {
    let device = |id: &String| list.iter().find(|d| d.id.as_str() == id);
    let mut preferred: Vec<&String> = required.iter().collect();
    for rank in Rank::ALL {
        let ids =
            available.iter().filter(|id| !required.contains(id) && Rank::from_device(device(id)) == rank);
        let owner = |id: &&String| device(id).filter(|_| rank == Rank::Reserved)?.reserved_for.as_ref();
        let wanted = size.saturating_sub(preferred.len());
        for ids in grouped_by_pod(ids, owner, required.first(), wanted) {
            let wanted = size.saturating_sub(preferred.len());
            let taken: Vec<&ListedDevice> = preferred.iter().filter_map(|id| device(id)).collect();
            let groups = ordered(groups(ids.into_iter(), device), &taken, wanted);
            preferred.extend(groups.into_iter().flat_map(|group| group.ids).take(wanted));
        }
    }
    preferred.into_iter().cloned().collect()
}

/// Groups the devices by the pods that they are reserved for: first the pod of a required device, then pods with
/// enough, tightest first.
fn grouped_by_pod<'a, 'l>(
    ids: impl Iterator<Item = &'a String>,
    pod: impl Fn(&&'a String) -> Option<&'l PodUid>,
    required: Option<&'a String>,
    wanted: usize,
) -> Vec<Vec<&'a String>> {
    let mut pods: BTreeMap<Option<&PodUid>, Vec<&String>> = BTreeMap::new();
    for id in ids {
        pods.entry(pod(&id)).or_default().push(id);
    }
    let known = required.and_then(|id| pod(&id));
    let mut pods: Vec<_> = pods.into_iter().collect();
    pods.sort_by_key(|(pod, ids)| (known.is_some() && *pod != known, fit(ids.len(), wanted)));
    pods.into_iter().map(|(_, ids)| ids).collect()
}

/// A sort key, smaller is better: first whether there are enough, then how many are left over or missing.
fn fit(count: usize, wanted: usize) -> (bool, usize) {
    match count.checked_sub(wanted) {
        Some(left) => (false, left),
        None => (true, wanted - count),
    }
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
        let closeness = || device.map(|device| device.closeness.clone()).unwrap_or_default();
        let new = || Group { gpu: gpu.cloned(), closeness: closeness(), numa, ids: Vec::new() };
        let group = groups.entry(gpu).or_insert_with(new);
        group.ids.push(id);
    }
    groups.into_values().collect()
}

/// Orders the groups: first GPUs close to those taken, then the GPU and the node of those taken, then GPUs with enough
/// devices, tightest first, else the largest first.
fn ordered<'a>(mut groups: Vec<Group<'a>>, taken: &[&ListedDevice], wanted: usize) -> Vec<Group<'a>> {
    let mut of_node: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for group in &groups {
        *of_node.entry(group.numa).or_default() += group.ids.len();
    }
    let close = closest(&groups, taken, wanted);
    let known = taken.first();
    groups.sort_by_cached_key(|group| {
        let far = !group.gpu.as_ref().is_some_and(|gpu| close.contains(gpu));
        let elsewhere = known.map(|known| (gpu(known) != group.gpu.as_ref(), known.numa != group.numa));
        let alone = fit(group.ids.len(), wanted);
        let together = fit(of_node.get(&group.numa).copied().unwrap_or_default(), wanted);
        // A GPU that suffices alone is better than a node. GPUs that do not suffice are kept together by node.
        let by_node = if alone.0 { (together, group.numa) } else { ((false, 0), None) };
        (far, elsewhere, alone.0, by_node, alone.1)
    });
    groups
}

/// The GPUs that go best with each other and with those taken. Only for groups of one device each, as whole GPUs have.
fn closest(groups: &[Group<'_>], taken: &[&ListedDevice], wanted: usize) -> BTreeSet<GpuUuid> {
    let Some(closeness) = groups.first().map(|group| &group.closeness) else { return BTreeSet::new() };
    if groups.iter().any(|group| group.ids.len() > 1) {
        return BTreeSet::new();
    }
    let number = |gpu: &GpuUuid| closeness.number(gpu);
    let taken: Vec<usize> = taken.iter().filter_map(|device| gpu(device)).filter_map(number).collect();
    let gpus = groups.iter().filter_map(|group| group.gpu.clone());
    let gpus: BTreeMap<usize, GpuUuid> = gpus.filter_map(|gpu| Some((number(&gpu)?, gpu))).collect();
    let candidates: Vec<usize> = gpus.keys().copied().collect();
    closeness
        .closest(&taken, &candidates, wanted)
        .iter()
        .filter_map(|number| gpus.get(number))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AccessGrant;
    use crate::node::Grant;
    use kerf_core::contract::Peer;
    use kerf_core::names::DeviceId;
    use kerf_core::testing::node_status;

    fn device(id: &str, gpu: u32, numa: impl Into<Option<u32>>) -> ListedDevice {
        let gpu = GpuUuid::new(format!("GPU-{gpu}"));
        let grant = Grant { gpu, slice: id.to_owned(), share: None, access: AccessGrant::default() };
        ListedDevice {
            id: DeviceId::new(id),
            healthy: true,
            held: false,
            grant: Some(grant),
            reserved_for: None,
            numa: numa.into(),
            closeness: Closeness::default(),
        }
    }

    /// Whole GPUs 0 to 3. GPUs 0 and 2 are linked by NVLink, and so are 1 and 3.
    fn linked() -> [ListedDevice; 4] {
        let mut gpus = node_status(&["T4-16GB"; 4]).gpus;
        for index in [0, 1] {
            gpus[index].peers = vec![Peer { index: gpus[index + 2].index, nvlinks: 4, pcie: None }];
        }
        let closeness = Closeness::from_gpus(&gpus);
        [("a", 0), ("b", 1), ("c", 2), ("d", 3)]
            .map(|(id, gpu)| ListedDevice { closeness: closeness.clone(), ..device(id, gpu, None) })
    }

    #[test]
    fn whole_gpus_with_nvlinks_are_preferred_together() {
        let all = ids(&["a", "b", "c", "d"]);
        assert_eq!(prefer(&linked(), &all, &[], 2), ["a", "c"]);
        assert_eq!(prefer(&linked(), &ids(&["a", "b", "d"]), &[], 2), ["b", "d"]);
        assert_eq!(prefer(&linked(), &ids(&["a", "b", "d"]), &[], 1), ["a"], "b and d stay together");
        assert_eq!(prefer(&linked(), &all, &ids(&["d"]), 2), ["d", "b"]);
    }

    #[test]
    fn devices_reserved_for_one_pod_are_preferred_to_close_devices() {
        let mut list = linked();
        for (device, pod) in list.iter_mut().zip(["p", "p", "q", "r"]) {
            device.reserved_for = Some(PodUid::new(pod));
        }
        let all = ids(&["a", "b", "c", "d"]);
        assert_eq!(prefer(&list, &all, &[], 2), ["a", "b"]);
        assert_eq!(prefer(&list, &all, &[], 1), ["c"], "a pod for one GPU leaves the pair");
        assert_eq!(prefer(&list, &all, &ids(&["b"]), 2), ["b", "a"]);
        list[3].reserved_for = Some(PodUid::new("p"));
        assert_eq!(prefer(&list, &all, &[], 2), ["b", "d"], "of three the closest");
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn free_devices_are_preferred_to_held_ones_and_those_to_withdrawn_ones() {
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

    /// Four GPUs: two on NUMA node 0 with three devices, two on node 1 with four.
    fn two_nodes() -> [ListedDevice; 7] {
        [("a", 0, 0), ("b", 1, 0), ("c", 1, 0), ("d", 2, 1), ("e", 2, 1), ("f", 3, 1), ("g", 3, 1)]
            .map(|(id, gpu, numa)| device(id, gpu, numa))
    }

    #[test]
    fn devices_of_one_numa_node_are_preferred_if_no_gpu_suffices() {
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
    fn the_gpu_of_a_required_device_is_preferred_and_then_its_numa_node() {
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
