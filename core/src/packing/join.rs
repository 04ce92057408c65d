//! Brings the GPUs of an inventory into a fleet.

use super::{Fleet, FleetGpu};
use crate::inventory::GpuInventory;
use crate::kind::Kind;

impl GpuInventory {
    /// Adds the GPU to a fleet, or updates it there. The fleet has only GPUs that MIG can cut on demand, so others are
    /// removed.
    pub fn join(&self, fleet: &mut Fleet, known: Option<FleetGpu>) -> Option<FleetGpu> {
        if !self.kinds.contains(&Kind::Mig) || self.layout.is_some() {
            if let Some(known) = known {
                fleet.remove(known);
            }
            return None;
        }
        fleet.show(known, &self.table, self.taken_instances(), self.idle_instances())
    }
}
