//! The connections between the node's GPUs, pair by pair.

use crate::gpu::{Gpu, Topology};
use kerf_core::contract::{PcieAncestor, Peer};
use kerf_core::names::PciBusId;

/// For each GPU, its connections to the GPUs after it. A value that all pairs share is left out, because it
/// distinguishes none. So is what the NUMA nodes show.
pub(super) fn peers(gpus: &[Gpu]) -> Vec<Vec<Peer>> {
    let pair = |one: &Gpu, other: &Gpu| Peer {
        index: other.index,
        nvlinks: nvlinks(one, other, gpus),
        pcie: ancestor(&one.topology, &other.topology),
    };
    let after = |(n, one): (usize, &Gpu)| gpus.iter().skip(n + 1).map(|other| pair(one, other)).collect();
    let mut peers: Vec<Vec<Peer>> = gpus.iter().enumerate().map(after).collect();
    let all: Vec<Peer> = peers.iter().flatten().copied().collect();
    let same_links = all.iter().all(|peer| peer.nvlinks == all[0].nvlinks);
    let same_pcie = all.iter().all(|peer| peer.pcie == all[0].pcie);
    for peers in &mut peers {
        for peer in peers.iter_mut() {
            peer.nvlinks = if same_links { 0 } else { peer.nvlinks };
            peer.pcie = peer.pcie.filter(|_| !same_pcie);
        }
        peers.retain(|peer| peer.nvlinks > 0 || peer.pcie.is_some());
    }
    peers
}

/// The NVLinks of a pair: those that end at the other GPU, and those by which both reach the same switch.
fn nvlinks(one: &Gpu, other: &Gpu, gpus: &[Gpu]) -> u32 {
    let ends = |from: &Gpu, to: Option<&PciBusId>| to.and_then(|to| from.topology.nvlinks.get(to)).copied();
    let is_gpu = |end: &PciBusId| gpus.iter().any(|gpu| gpu.pci_bus_id.as_ref() == Some(end));
    let switches = one.topology.nvlinks.iter().filter(|(end, _)| !is_gpu(end));
    let through_switches = switches.filter_map(|(end, links)| Some(ends(other, Some(end))?.min(*links)));
    // One of the two GPUs may not have reported its links.
    let direct = ends(one, other.pci_bus_id.as_ref()).max(ends(other, one.pci_bus_id.as_ref()));
    direct.unwrap_or(0) + through_switches.sum::<u32>()
}

/// The nearest common ancestor of both, as in the legend of `nvidia-smi topo`.
fn ancestor(one: &Topology, other: &Topology) -> Option<PcieAncestor> {
    let common = one.bridges.iter().zip(&other.bridges).take_while(|(one, other)| one == other).count();
    // Each GPU is below its own port of the switch, so one bridge lies in between.
    let below = one.bridges.len().max(other.bridges.len()) - common;
    match common {
        0 => None,
        1 => Some(PcieAncestor::HostBridge),
        _ if below <= 1 => Some(PcieAncestor::SingleSwitch),
        _ => Some(PcieAncestor::MultipleSwitches),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::fake::FakeGpus;
    use std::collections::BTreeMap;

    const SWITCH: &str = "ffffffff:ff:ff.0";

    /// GPUs with NVLinks to these ends, behind these bridges.
    fn gpus(topologies: &[(&[(&str, u32)], &str)]) -> Vec<Gpu> {
        let mut gpus = FakeGpus::new(&vec!["H100-80GB"; topologies.len()]).gpus();
        for (gpu, (ends, bridges)) in gpus.iter_mut().zip(topologies) {
            let nvlinks: BTreeMap<_, _> =
                ends.iter().map(|(end, links)| (end.parse().unwrap(), *links)).collect();
            let bridges = bridges.split_whitespace().map(str::to_owned).collect();
            gpu.topology = Topology { numa: None, bridges, nvlinks };
        }
        gpus
    }

    fn links(gpus: &[Gpu]) -> Vec<Vec<(u32, u32)>> {
        let links = |peers: &Vec<Peer>| peers.iter().map(|peer| (peer.index, peer.nvlinks)).collect();
        peers(gpus).iter().map(links).collect()
    }

    #[test]
    fn the_links_of_a_pair_are_reported_once_by_either_gpu() {
        let bus = |gpu: u32| format!("0000:{gpu:02x}:00.0");
        let (first, third) = (bus(0), bus(2));
        let three = gpus(&[(&[(&third, 4)], ""), (&[], ""), (&[(&first, 4)], "")]);
        assert_eq!(links(&three), [vec![(2, 4)], vec![], vec![]]);
        let unreported = gpus(&[(&[], ""), (&[], ""), (&[(&first, 4)], "")]);
        assert_eq!(links(&unreported), links(&three));
    }

    #[test]
    fn gpus_reach_each_other_through_switches() {
        let (full, half) = (&[(SWITCH, 18_u32)][..], &[(SWITCH, 9)][..]);
        assert_eq!(links(&gpus(&[(full, ""); 3])), [vec![], vec![], vec![]], "all alike");
        let degraded = gpus(&[(full, ""), (half, ""), (full, "")]);
        assert_eq!(links(&degraded), [vec![(1, 9), (2, 18)], vec![(2, 9)], vec![]]);
    }

    #[test]
    fn the_nearest_common_bridge_is_named_as_nvidia_smi_does() {
        let paths = [
            "pci0000:15 15:01.0 16:00.0 17:01.0",
            "pci0000:15 15:01.0 16:00.0 17:02.0",
            "pci0000:15 15:01.0 16:00.0 17:03.0 18:00.0 19:01.0",
            "pci0000:15 15:02.0 20:00.0 21:01.0",
            "pci0000:80 80:01.0 81:00.0 82:01.0",
            "",
        ];
        let all = peers(&gpus(&paths.map(|path| (&[][..], path))));
        let named = |peers: &Vec<Peer>| peers.iter().map(|peer| (peer.index, peer.pcie)).collect::<Vec<_>>();
        let (single, multiple, bridge) =
            (PcieAncestor::SingleSwitch, PcieAncestor::MultipleSwitches, PcieAncestor::HostBridge);
        let some = |pairs: &[(u32, PcieAncestor)]| -> Vec<(u32, Option<PcieAncestor>)> {
            pairs.iter().map(|(index, ancestor)| (*index, Some(*ancestor))).collect()
        };
        assert_eq!(named(&all[0]), some(&[(1, single), (2, multiple), (3, bridge)]));
        assert_eq!(named(&all[1]), some(&[(2, multiple), (3, bridge)]));
        assert_eq!(named(&all[2]), some(&[(3, bridge)]));
        assert!(all[3..].iter().all(Vec::is_empty), "of another host bridge, or unknown");
        let in_a_virtual_machine = gpus(&[(&[][..], "pci0000:00"); 2]);
        assert!(peers(&in_a_virtual_machine).iter().all(Vec::is_empty), "all alike");
        assert!(peers(&gpus(&[(&[][..], "")])).iter().all(Vec::is_empty));
    }
}
