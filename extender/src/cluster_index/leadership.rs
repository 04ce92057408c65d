//! Whether this replica leads, and the epochs of leaders that it has seen.

/// The epochs of leaders, this replica's own included.
#[derive(Debug, Default)]
pub struct Leadership {
    epoch: u64,
    highest_epoch: u64,
    role: Role,
    /// Whether the epoch that a former leader wrote is still to be read.
    awaits_former_epoch: bool,
    is_deposed: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Role {
    #[default]
    Follows,
    /// Leads, but answers no requests yet.
    Begins,
    /// Leads and answers requests. From then on the epoch no longer rises.
    Answers,
}

impl Leadership {
    /// The leader of `epoch`, which answers no requests yet.
    #[cfg(test)]
    pub(super) fn new(epoch: u64) -> Self {
        Self { epoch, role: Role::Begins, ..Self::default() }
    }

    /// The leader's epoch. It may rise until requests are answered.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The highest epoch of a leader that this process has seen. A term of this replica gets a higher one.
    #[must_use]
    pub fn highest_epoch(&self) -> u64 {
        self.highest_epoch
    }

    #[must_use]
    pub fn leads(&self) -> bool {
        self.role != Role::Follows
    }

    /// Whether requests are answered, so that the epoch is final.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.role == Role::Answers
    }

    /// Begins a term in this epoch, or in one above every epoch that was seen.
    pub(super) fn begin(&mut self, epoch: u64) {
        self.epoch = epoch.max(self.highest_epoch.saturating_add(1));
        self.role = Role::Begins;
    }

    pub(super) fn answer(&mut self) {
        self.role = Role::Answers;
    }

    pub(super) fn end(&mut self) {
        let Self { epoch, highest_epoch, .. } = *self;
        *self = Self { epoch, highest_epoch, ..Self::default() };
    }

    /// Makes answers wait for the epoch that a former leader wrote.
    pub fn await_former_epoch(&mut self) {
        self.awaits_former_epoch = true;
    }

    pub(super) fn awaits_former_epoch(&self) -> bool {
        self.awaits_former_epoch
    }

    /// Raises the epoch over the one that a former leader wrote, if any. Agents that have received the same epoch may
    /// not be connected yet, so they cannot report it.
    pub(super) fn rise_over(&mut self, former: Option<u64>) {
        self.awaits_former_epoch = false;
        if let Some(former) = former {
            self.see_epoch(former);
        }
    }

    /// Records another leader's epoch. If it is newer, this replica's term ends. If this leader does not answer yet,
    /// the likely cause is that the record of epochs was lost, so its own epoch rises instead.
    pub fn see_epoch(&mut self, written: u64) {
        self.highest_epoch = self.highest_epoch.max(written);
        match self.role {
            Role::Begins if written >= self.epoch => self.epoch = written.saturating_add(1),
            Role::Answers if written > self.epoch => self.is_deposed = true,
            _ => {}
        }
    }

    /// Whether a leader of a newer epoch was seen since the last call.
    pub(super) fn take_deposed(&mut self) -> bool {
        std::mem::take(&mut self.is_deposed)
    }
}
