//! Whether tenants leave each other in peace: together they may keep so much of a GPU busy, and no more.
//!
//! It is the rule that packing keeps ([`Sharing::busy_limit`]), asked for tenants whose workload is known.

use super::Workload;
use crate::packing::fraction::{Busy, Sharing};
use thiserror::Error;

/// Tenants that would feel each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the tenants would keep {} thousandths of the GPU busy, above {}; put fewer on it", busy.0, limit.0)]
pub struct Overload {
    /// What they would keep busy together.
    pub busy: Busy,
    /// What they may.
    pub limit: Busy,
}

/// Whether a GPU that is shared so may have these tenants: the sum of duty times need stays below the limit under MPS, the
/// sum of the duties where they take turns. Who is alone may keep a whole GPU busy.
///
/// # Errors
/// When they come to more.
pub fn admits(sharing: Sharing, tenants: &[Workload]) -> Result<(), Overload> {
    let busy = tenants.iter().fold(0_u16, |sum, tenant| sum.saturating_add(tenant.busy(sharing).0));
    let (busy, limit) = (Busy(busy), sharing.busy_limit());
    if tenants.len() > 1 && busy > limit { Err(Overload { busy, limit }) } else { Ok(()) }
}
