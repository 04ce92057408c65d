//! The reasons to close the node: conflicting managers of its GPUs, and the driver's upgrade without a reboot, by GPU
//! Operator. Nothing new is cut or offered meanwhile.
//!
//! The driver can be unloaded once nothing holds it. The upgrade evicts the pods itself. The agent ends the MPS daemons
//! that no pod uses, and then closes NVML.

use super::{NodeEvent, Restored};
use crate::conflicting::Who;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The agent may release the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetGo {
    /// The evidence for the upgrade.
    pub evidence: String,
    /// The folder of the MPS daemons, where a daemon of an earlier process may still run.
    pub daemons: Option<PathBuf>,
}

#[derive(Debug, Default)]
pub(super) struct Conflicts {
    is_enabled: bool,
    /// Conflicting managers of the GPUs; `None` until they were looked for, and meanwhile nothing new is cut or
    /// offered.
    managers: Option<Vec<String>>,
    /// When the last conflicting manager disappeared.
    gone_since: Option<Instant>,
    /// When the kubelet was asked for the newest list of holders.
    holders_asked: Option<Instant>,
    /// The evidence for a driver upgrade; `None` if there is none.
    upgrade: Option<String>,
    /// Whether NVIDIA's device plugin was here, by the checkpoint.
    had_plugin: bool,
}

impl Conflicts {
    pub(super) fn new(is_enabled: bool) -> Self {
        Self { is_enabled, ..Self::default() }
    }

    pub(super) fn restore(&mut self, restored: &Restored) {
        self.had_plugin = restored.plugin;
    }

    /// Writes what a restart needs into the checkpoint.
    pub(super) fn save(&self, record: &mut Restored) {
        let is_plugin = |manager: &String| manager.contains(&Who::DevicePlugin.to_string());
        let managers = self.managers.as_ref();
        record.plugin = managers.map_or(self.had_plugin, |managers| managers.iter().any(is_plugin));
    }

    /// Takes the conflicting managers. Returns what to report of them.
    pub(super) fn take(&mut self, managers: Vec<String>, now: Instant) -> Vec<NodeEvent> {
        // The last list of holders may lack what they have allocated until now, so a newer one is needed.
        if managers.is_empty() && self.may_manage() {
            self.gone_since = Some(now);
        }
        let contested = managers.iter().map(|text| NodeEvent::Contested { text: text.clone() });
        let contested = contested.take(1).collect();
        self.managers = Some(managers);
        contested
    }

    /// Takes when the kubelet was asked for the newest list of holders.
    pub(super) fn take_holders(&mut self, asked: Instant) {
        self.holders_asked = Some(asked);
    }

    /// Takes the evidence for a driver upgrade. Returns what to report of it.
    pub(super) fn take_upgrade(&mut self, upgrade: Option<String>) -> Vec<NodeEvent> {
        let event = upgrade.iter().map(|text| NodeEvent::DriverUpgrade { text: text.clone() }).collect();
        self.upgrade = upgrade;
        event
    }

    /// Whether the agent has checked for conflicting managers.
    pub(super) fn are_known(&self) -> bool {
        self.managers.is_some()
    }

    /// Whether the agent has checked for conflicting managers, or does not check.
    pub(super) fn is_checked(&self) -> bool {
        self.are_known() || !self.is_enabled
    }

    /// Whether another manager serves the node's GPUs, or that is not known yet.
    fn may_manage(&self) -> bool {
        self.managers.as_ref().map_or(self.is_enabled, |managers| !managers.is_empty())
    }

    /// Whether no list of holders was requested since the last other manager disappeared.
    pub(super) fn awaits_holders(&self) -> bool {
        self.gone_since.is_some_and(|since| self.holders_asked.is_none_or(|asked| asked < since))
    }

    /// Whether the node's GPUs are contested: another manager serves them, or its allocations are not known yet.
    pub(super) fn is_contested(&self) -> bool {
        self.may_manage() || self.awaits_holders()
    }

    /// Whether nothing new is cut or offered on the node.
    pub(super) fn is_closed(&self) -> bool {
        self.is_upgrading() || self.is_contested()
    }

    /// Whether the GPUs are contested by managers that are not known, or by their unknown allocations.
    pub(super) fn is_unclear(&self) -> bool {
        self.managers.as_ref().is_none_or(Vec::is_empty) && self.is_contested()
    }

    /// Which conflicting managers serve the node's GPUs.
    pub(super) fn text(&self) -> Option<String> {
        let managers = self.managers.as_deref().unwrap_or_default();
        let unknown = if self.may_manage() {
            "kerf checks whether another manager serves the node's GPUs"
        } else {
            "kerf reads which of the node's GPUs another manager has allocated"
        };
        if managers.is_empty() {
            self.is_contested().then(|| unknown.to_owned())
        } else {
            Some(managers.join("; "))
        }
    }

    pub(super) fn is_upgrading(&self) -> bool {
        self.upgrade.is_some()
    }

    /// The reason and message of the upgrade for the status.
    pub(super) fn upgrade_trouble(&self) -> Option<(String, String)> {
        let evidence = self.upgrade.as_ref()?;
        let text = format!(
            "the driver is being upgraded: {evidence}; nothing new is placed here until that is over"
        );
        Some(("DriverUpgrade".to_owned(), text))
    }

    /// Returns how to release the driver for its upgrade, once no MPS daemon is desired or runs.
    pub(super) fn let_go(&self, is_quiet: bool, daemons: Option<&Path>) -> Option<LetGo> {
        let evidence = self.upgrade.clone().filter(|_| is_quiet)?;
        Some(LetGo { evidence, daemons: daemons.map(Path::to_path_buf) })
    }
}
