//! Containers that ask, in a dialect, for several GPUs: one slice on each, on different GPUs.
//!
//! A process talks to one MPS daemon, which serves one GPU. It sees one MIG instance, however many its container has.
//! So only whole GPUs and time slices can serve these containers.

use super::{Choosing, Denied, Warning, join};
use crate::kind::{IsolationClass, Kind};
use crate::request::ContainerAsk;
use std::borrow::Cow;

/// Whether a process can use several slices of this kind, each on another GPU.
fn spans_gpus(kind: Kind) -> bool {
    match kind {
        Kind::Whole | Kind::TimeSlicing => true,
        Kind::Mig | Kind::Mps => false,
    }
}

impl<'c> Choosing<'c> {
    /// The kinds of the class that can serve a container, in the policy's order.
    pub(super) fn kinds_for(&self, container: &ContainerAsk) -> Result<Cow<'c, [Kind]>, Denied> {
        if !container.distinct_gpus {
            return Ok(Cow::Borrowed(self.kinds));
        }
        // A share of compute needs whole GPUs, because a time slice guarantees none.
        let has_compute = |kind: Kind| container.compute.is_none() || kind == Kind::Whole;
        let kinds = self.kinds.iter().copied().filter(|kind| spans_gpus(*kind) && has_compute(*kind));
        let kinds: Vec<Kind> = kinds.collect();
        if kinds.is_empty() {
            return Err(self.no_distinct(container));
        }
        Ok(Cow::Owned(kinds))
    }

    fn no_distinct(&self, container: &ContainerAsk) -> Denied {
        Denied::DistinctGpus {
            container: container.name.as_str().into(),
            count: container.count,
            by: container.by.as_str().into(),
            class: self.class,
            policy: self.policy.name().into(),
            kinds: join(self.kinds).into(),
            compute: if container.compute.is_some() {
                ", and a time slice has no share of compute"
            } else {
                ""
            },
            instead: self.instead(container).into(),
            missing: match (self.class, container.compute) {
                (IsolationClass::None, None) => "whole or time-slicing",
                _ => "whole",
            },
        }
    }

    /// The warning for a container that is pending because no node has several GPUs for it.
    pub(super) fn distinct_warning(&self, container: &ContainerAsk) -> Option<Warning> {
        let warning = || Warning::DistinctGpus(container.name.clone(), self.instead(container));
        container.distinct_gpus.then(warning)
    }

    /// The request that a pod which needs several GPUs may make instead.
    fn instead(&self, container: &ContainerAsk) -> String {
        let weakest = IsolationClass::None;
        let has_slices = self.policy.kinds(weakest).is_some_and(|kinds| kinds.contains(&Kind::TimeSlicing));
        let slices = match (self.class == weakest, container.compute.is_some()) {
            _ if !has_slices => "",
            (true, false) => "",
            (true, true) => "for no share of compute, or ",
            (false, false) => "for kerf.dev/isolation: none, or ",
            (false, true) => "for kerf.dev/isolation: none and no share of compute, or ",
        };
        let count = container.count;
        format!(
            "ask {slices}for one GPU, or by kerf.dev/gpu-memory with kerf.dev/gpu-count: {count} for slices that may be of one GPU"
        )
    }
}
