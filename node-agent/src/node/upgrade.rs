//! The driver's upgrade without a reboot, by GPU Operator. The driver can be unloaded once nothing holds it. The
//! upgrade evicts the pods itself. The agent offers nothing new, ends the MPS daemons that no pod uses, and then closes
//! NVML.

use super::share::{self, Share};
use super::{Kept, Node, NodeEvent};
use std::path::PathBuf;

/// The agent may release the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetGo {
    /// The evidence for the upgrade.
    pub evidence: String,
    /// The folder of the MPS daemons, where a daemon of an earlier process may still run.
    pub daemons: Option<PathBuf>,
}

impl Node {
    /// Takes the evidence for a driver upgrade; `None` if there is none.
    pub fn on_upgrade(&mut self, upgrade: Option<String>) {
        let note = upgrade.iter().map(|text| NodeEvent::DriverUpgrade { text: text.clone() });
        self.tell_lasting(note.collect(), |note| matches!(note, NodeEvent::DriverUpgrade { .. }));
        self.upgrade = upgrade;
    }

    /// Whether nothing new is cut or offered on the node.
    pub(super) fn is_closed(&self) -> bool {
        self.upgrade.is_some() || self.is_contested()
    }

    /// The reason and message of the upgrade for the status.
    pub(super) fn upgrade_trouble(&self) -> Option<(String, String)> {
        let evidence = self.upgrade.as_ref()?;
        let text = format!(
            "the driver is being upgraded: {evidence}; nothing new is placed here until that is over"
        );
        Some(("DriverUpgrade".to_owned(), text))
    }

    /// Whether a pod has the share, or may get it at any moment because it is bound.
    pub(super) fn is_share_in_use(&self, share: &Share) -> bool {
        let device = share::device_id(&share.gpu, &share.id);
        let wanted = self.desired().iter().find(|w| w.id == share.id && w.gpu == share.gpu);
        let promised = wanted.and_then(|wanted| wanted.reservation.as_ref());
        let is_bound = promised
            .is_some_and(|promised| self.pods.as_ref().is_none_or(|pods| pods.contains_key(&promised.uid)));
        is_bound || self.account.possible_holder(&device).is_some() || self.account.is_held(&device)
    }

    /// Returns how to release the driver, once the agent no longer needs it.
    pub(super) fn let_go(&self, kept: Option<&Kept>) -> Option<LetGo> {
        let evidence = self.upgrade.clone()?;
        let is_quiet = kept?.daemons.is_empty() && self.daemons.is_empty();
        is_quiet.then(|| LetGo { evidence, daemons: self.settings.mps.clone() })
    }
}
