//! Several slices of one pod: they are of one node, however many all nodes have together.

use super::gpu::GpuSupply;
use super::{Asked, Supply};
use crate::kind::Kind;
use crate::packing::Spread;
use crate::request::GpuSelection;
use crate::resource::ResourceName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Slices of one name that a pod wants at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Several {
    /// How many.
    pub count: u32,
    /// How they lie on the node's GPUs.
    pub spread: Spread,
}

impl Several {
    /// Whether static nodes serve them: of what NVIDIA's device plugin gives, only whole GPUs are surely of different GPUs.
    fn is_fixed(self, name: ResourceName) -> bool {
        self.spread != Spread::DistinctGpus || name.kind() == Some(Kind::Whole)
    }
}

impl Supply {
    /// How many of them one node has room for now, as they must lie on its GPUs. What pods wait for is not taken off: on which
    /// node they will have it nobody knows.
    #[must_use]
    pub fn together(&self, name: ResourceName, asked: &Asked, gpus: &GpuSelection, wanted: Several) -> u32 {
        let room = |gpu: &GpuSupply| gpu.room_for(name, asked.compute);
        let fixed = self.fixed_rooms(name, asked, gpus).filter(|_| wanted.is_fixed(name)).max().unwrap_or(0);
        self.most(name, asked, gpus, wanted, room).max(fixed).min(wanted.count)
    }

    /// How many of them one node could have room for while nobody has anything of it. A static node of which no device is well
    /// may have any number.
    #[must_use]
    pub fn ever_together(
        &self,
        name: ResourceName,
        asked: &Asked,
        gpus: &GpuSelection,
        wanted: Several,
    ) -> u32 {
        let fixed = self.fixed_counts(name, asked, gpus).filter(|_| wanted.is_fixed(name));
        let fixed = fixed.map(|count| if count == 0 { wanted.count } else { count }).max().unwrap_or(0);
        let ever = |gpu: &GpuSupply| gpu.ever_for(name, asked.compute);
        self.most(name, asked, gpus, wanted, ever).max(fixed).min(wanted.count)
    }

    /// The most that a managed node has by `room`, which is asked once of GPUs that are alike. What is more than is wanted is not
    /// looked for.
    fn most(
        &self,
        name: ResourceName,
        asked: &Asked,
        gpus: &GpuSelection,
        wanted: Several,
        room: impl Fn(&GpuSupply) -> u32,
    ) -> u32 {
        let alike = self.gpus.alike.iter().map(|(gpu, _)| gpu).filter(|gpu| asked.is_worth(name, gpu.size));
        let rooms = alike.map(|gpu| (Arc::as_ptr(gpu).addr(), room(gpu))).filter(|(_, room)| *room > 0);
        let rooms: BTreeMap<usize, u32> = rooms.collect();
        let mut most = 0;
        for (_, node) in self.gpus.nodes.iter().filter(|_| !rooms.is_empty()) {
            let admitted = node.iter().filter(|(uuid, gpu)| gpus.admits(uuid, &gpu.model));
            let each = admitted.filter_map(|(_, gpu)| rooms.get(&Arc::as_ptr(gpu).addr()).copied());
            most = wanted.spread.sum(each).max(most);
            if most >= wanted.count {
                break;
            }
        }
        most
    }
}
