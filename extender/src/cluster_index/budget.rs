//! How many of the pods that wait their namespaces' quotas let take anything: those that came first.

use super::quotas::Quotas;
use crate::pod::KnownPod;
use hashbrown::HashMap;
use kerf_core::policy::Charge;
use std::sync::Arc;

/// What quotas leave to pods that are promised something one after the other.
#[derive(Debug)]
pub(super) struct Budget<'q> {
    quotas: &'q Quotas,
    /// What a namespace's pods under a policy come to with those that were let through.
    sums: HashMap<(String, Arc<str>), Charge>,
}

impl<'q> Budget<'q> {
    /// Nobody was let through yet.
    pub fn of(quotas: &'q Quotas) -> Self {
        Self { quotas, sums: HashMap::new() }
    }

    /// Whether a pod that is charged so is let through beside those before it.
    pub fn admits(&mut self, pod: &KnownPod, charge: Charge) -> bool {
        let Some(payer) = self.quotas.payer_of(pod) else { return true };
        let (held, cap) = (self.quotas.held(&payer), payer.cap);
        let sum = self.sums.entry((payer.namespace, payer.policy)).or_insert(held);
        let is_within = cap.admits(sum.plus(charge));
        if is_within {
            *sum = sum.plus(charge);
        }
        is_within
    }
}
