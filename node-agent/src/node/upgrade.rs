//! The driver's upgrade without a reboot, by GPU Operator: the driver can be unloaded once nobody holds it. What pods hold is left
//! to who upgrades, who evicts them; the agent offers nothing new, ends the MPS daemons that no pod uses, and then lets go of NVML.

use super::share::{self, Share};
use super::{Kept, Node, Note};
use std::path::PathBuf;

/// That the agent may let go of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetGo {
    /// How the upgrade is known.
    pub evidence: String,
    /// The folder of the MPS daemons, where a daemon of an earlier process may still be.
    pub daemons: Option<PathBuf>,
}

impl Node {
    /// Takes whether the driver is being upgraded, and how that is known.
    pub fn on_upgrade(&mut self, upgrade: Option<String>) {
        let note = upgrade.iter().map(|text| Note::DriverUpgrade { text: text.clone() });
        self.tell_lasting(note.collect(), |note| matches!(note, Note::DriverUpgrade { .. }));
        self.upgrade = upgrade;
    }

    /// Whether nothing new is cut or offered on the node.
    pub(super) fn is_closed(&self) -> bool {
        self.upgrade.is_some() || self.is_contested()
    }

    /// What the status says of it.
    pub(super) fn upgrade_trouble(&self) -> Option<(String, String)> {
        let evidence = self.upgrade.as_ref()?;
        let text = format!(
            "the driver is being upgraded: {evidence}; nothing new is placed here until that is over"
        );
        Some(("DriverUpgrade".to_owned(), text))
    }

    /// Whether a pod has the share, or may get it at any moment: a pod that is bound for it.
    pub(super) fn is_share_in_use(&self, share: &Share) -> bool {
        let device = share::device_id(&share.gpu, &share.id);
        let wanted = self.desired().iter().find(|w| w.id == share.id && w.gpu == share.gpu);
        let promised = wanted.and_then(|wanted| wanted.reservation.as_ref());
        let is_bound = promised
            .is_some_and(|promised| self.pods.as_ref().is_none_or(|pods| pods.contains_key(&promised.uid)));
        is_bound || self.account.possible_holder(&device).is_some() || self.account.is_held(&device)
    }

    /// Whether nothing of the agent's needs the driver any more.
    pub(super) fn let_go(&self, kept: Option<&Kept>) -> Option<LetGo> {
        let evidence = self.upgrade.clone()?;
        let is_quiet = kept?.daemons.is_empty() && self.daemons.is_empty();
        is_quiet.then(|| LetGo { evidence, daemons: self.settings.mps.clone() })
    }
}
