//! What an existing slice needs in order to be served.

use super::advertise::Advertised;
use super::daemons::MpsService;
use super::device_access::DeviceAccess;
use super::facts::Facts;
use super::orphaned;
use kerf_core::kind::Kind;
use kerf_core::offer::ExistingSlice;

pub(super) struct Service<'a> {
    pub(super) facts: &'a Facts,
    pub(super) advertised: &'a Advertised,
    pub(super) mps: MpsService<'a>,
    pub(super) access: &'a DeviceAccess,
}

/// Why a slice is not served.
pub(super) struct Trouble {
    pub(super) text: String,
    /// Whether it does not go by itself.
    pub(super) is_final: bool,
}

impl Service<'_> {
    /// Why no new pod can use the slice. Its holder keeps it, unless the GPU is at fault.
    pub(super) fn trouble(&self, slice: &ExistingSlice, is_orphaned: bool) -> Option<Trouble> {
        let lasting = self.facts.inventory.device_trouble(&slice.device).or_else(|| self.unnamed(slice));
        let lasting = lasting.or_else(|| self.cut_from_under(slice));
        let passing = || {
            let of_daemon = self.mps.trouble(&slice.device, slice.shape);
            let text = of_daemon.or_else(|| self.access.trouble(&slice.device));
            text.filter(|_| slice.held_as.is_none())
                .or_else(|| is_orphaned.then(|| orphaned::TEXT.to_owned()))
        };
        let is_final = lasting.is_some();
        lasting.or_else(passing).map(|text| Trouble { text, is_final })
    }

    /// Why a recorded share no longer exists: its GPU has come out of a reboot in MIG mode.
    fn cut_from_under(&self, slice: &ExistingSlice) -> Option<String> {
        let gpu = || self.facts.inventory.gpu_of(&slice.device);
        let is_in_mig_mode = || gpu().is_some_and(|gpu| gpu.mig.is_on());
        (slice.shape.kind() != Kind::Mig && is_in_mig_mode()).then(|| "its GPU is in MIG mode now".to_owned())
    }

    /// Why a slice can never be offered under the name of its reservation.
    fn unnamed(&self, slice: &ExistingSlice) -> Option<String> {
        let reservation = slice.reservation.as_ref().filter(|_| slice.held_as.is_none())?;
        let name = reservation.resource;
        (!self.advertised.serves(name)).then(|| format!("{name} is no name that this node serves"))
    }
}
