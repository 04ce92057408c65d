//! Shares of GPUs without MIG, and whole GPUs. No GPU reports a share, so shares exist as long as the agent says.

use super::Slices;
use crate::node::device_ids::{replica_of, share_slice};
use crate::node::holders::{Account, Held};
use crate::node::inventory::Inventory;
use crate::node::names::is_kept_by;
use crate::node::reservations::Reservations;
use kerf_core::accounting::beside_shares;
use kerf_core::contract::{GpuRule, Shape, WantedSlice};
use kerf_core::names::{GpuUuid, SliceId};
use kerf_core::resource::ResourceName;
use kerf_core::units::{MemoryMib, SizeGb};

/// A share that is served. It is identified by its device id, because the numbers of slices start again after the loss
/// of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) gpu: GpuUuid,
    /// Its name in the ledger that desired it.
    pub(crate) id: SliceId,
    pub(crate) shape: Shape,
}

/// The shape of a share that a container holds under this name.
pub(in crate::node) fn shape_of(
    gpu: &GpuUuid,
    name: ResourceName,
    inventory: &Inventory,
    reservations: &Reservations,
) -> Option<Shape> {
    let gpu = inventory.gpu(gpu)?;
    let usable = gpu.memory.saturating_sub(beside_shares(gpu.memory, Some(gpu.reserved)));
    shape_from_name(name, gpu.memory, usable, &reservations.rule(gpu))
}

/// The shape of a share on a GPU with this total and usable memory. A share counts as the whole GPU if its name does
/// not determine the kind, or if the policy no longer says how many equal shares there are.
fn shape_from_name(
    name: ResourceName,
    memory: MemoryMib,
    usable: MemoryMib,
    rule: &GpuRule,
) -> Option<Shape> {
    match name {
        ResourceName::Mig(_)
        | ResourceName::Compute(_)
        | ResourceName::MigReplica(_)
        | ResourceName::Plugin(..) => None,
        ResourceName::Whole | ResourceName::Neutral(_) => Some(Shape::Whole { size_gb: memory.nominal() }),
        ResourceName::Replica | ResourceName::MpsReplica => {
            let kind = name.kind()?;
            let all = || Shape::share(kind, SizeGb(u32::try_from(memory.0 / 1024).unwrap_or(1).max(1)));
            rule.replica(kind, usable).or_else(all)
        }
        ResourceName::Mps(size) | ResourceName::TimeSlicing(size) => Shape::share(name.kind()?, size),
    }
}

/// Whether a held device with the name of a desired slice is that slice. The numbers of slices start again after the
/// loss of a ledger, and a neutral name cannot distinguish the two slices, but the pod can.
fn may_be(wanted: &WantedSlice, held: &Held) -> bool {
    let is_its =
        || wanted.reservation.as_ref().is_none_or(|reservation| reservation.key() == held.holder.key());
    is_kept_by(held.name, wanted.shape) && (!held.name.is_neutral() || is_its())
}

impl Slices {
    /// Makes the shares of an earlier process exist again once their GPUs are seen. If only an init container holds a
    /// share, the kubelet does not list it either.
    pub(in crate::node) fn restore_shares(&mut self, inventory: &Inventory) {
        for (device, shape) in std::mem::take(&mut self.unseen_shares) {
            // A replica goes with its MIG device, which may be another after a reload of the driver.
            if replica_of(&device).is_some() && !inventory.gpus().is_empty() {
                if let Some(replica) = super::replica::replica(&device, inventory) {
                    self.shares.entry(device).or_insert(replica);
                }
                continue;
            }
            match share_slice(&device).filter(|(gpu, _)| inventory.gpu(gpu).is_some()) {
                Some((gpu, id)) => drop(self.shares.entry(device).or_insert(Share { gpu, id, shape })),
                None => drop(self.unseen_shares.insert(device, shape)),
            }
        }
    }

    /// Makes shares exist that containers hold, whatever is desired and whether or not the agent was restarted.
    pub(in crate::node) fn adopt_shares(
        &mut self,
        account: &Account,
        inventory: &Inventory,
        reservations: &Reservations,
    ) {
        for (device, held) in account.devices() {
            let Some((gpu, id)) = share_slice(device) else { continue };
            let known = self.shares.get(device).map(|s| s.shape);
            let by_name = shape_of(&gpu, held.name, inventory, reservations);
            // The name does not determine everything, so the ledger's shape takes precedence.
            if known.is_some() && known != by_name {
                continue;
            }
            let wanted = reservations.wanted(&gpu, &id);
            let wanted = wanted.filter(|wanted| may_be(wanted, held)).map(|wanted| wanted.shape);
            let Some(shape) = wanted.or(known).or(by_name) else { continue };
            self.shares.insert(device.clone(), Share { gpu, id, shape });
        }
    }
}
