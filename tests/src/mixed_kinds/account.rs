//! The results of a play.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::ensure;
use kerf_core::kind::Kind;

#[derive(Debug, Default)]
pub struct Account {
    /// Pods that ran. Each was compared with its assignment.
    pub ran: usize,
    /// Slices that they held, by name and kind.
    pub slices: BTreeMap<String, BTreeMap<Kind, usize>>,
    /// Pods that held equivalent slices instead of the assigned ones.
    pub equal: usize,
    /// Containers that were killed, restarted, and compared again.
    pub restarted: usize,
    pub agent_restarts: usize,
    /// Pods that were deleted before they ran.
    pub withdrawn: usize,
    /// Pods that the kubelet rejected, with the reason.
    pub refused: Vec<String>,
    /// Differences of what a pod held and its assignment. There must be none.
    pub otherwise: BTreeSet<String>,
}

impl Account {
    /// Counts a pod that has run with slices of these kinds.
    pub(super) fn has_run(&mut self, resource: &str, kinds: impl IntoIterator<Item = Kind>) {
        self.ran += 1;
        let of_name = self.slices.entry(resource.to_owned()).or_default();
        for kind in kinds {
            *of_name.entry(kind).or_default() += 1;
        }
    }

    /// Fails if a pod held something else than assigned, or if the play has shown too little: one name must
    /// have had all kinds. A pod that the kubelet rejected held nothing.
    pub fn is_sound(&self) -> anyhow::Result<()> {
        let otherwise: Vec<&str> = self.otherwise.iter().map(String::as_str).collect();
        ensure!(otherwise.is_empty(), "held otherwise:\n{}\n{self}", otherwise.join("\n"));
        let kinds = |of_name: &BTreeMap<Kind, usize>| of_name.keys().copied().collect::<BTreeSet<_>>();
        let all: BTreeSet<Kind> = [Kind::Mig, Kind::Mps, Kind::TimeSlicing, Kind::Whole].into();
        ensure!(self.slices.values().any(|of_name| kinds(of_name) == all), "no name had all kinds: {self}");
        Ok(())
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pods ran (", self.ran)?;
        let names = self.slices.iter().map(|(name, kinds)| {
            let kinds = kinds.iter().map(|(kind, count)| format!("{count} {kind}"));
            format!("{name}: {}", kinds.collect::<Vec<_>>().join(", "))
        });
        write!(f, "{}), ", names.collect::<Vec<_>>().join("; "))?;
        write!(
            f,
            "{} held otherwise than assigned, {} an equal slice of another place or GPU; {} containers and {} agents \
             were restarted, {} pods deleted before they ran, {} refused by the kubelet",
            self.otherwise.len(),
            self.equal,
            self.restarted,
            self.agent_restarts,
            self.withdrawn,
            self.refused.len()
        )?;
        self.refused.iter().try_for_each(|why| write!(f, "\n  refused: {why}"))
    }
}
