//! Whether tenants leave each other undisturbed: the limit of what they may keep busy of a GPU together.
//!
//! It is packing's rule ([`Sharing::busy_limit`]), for tenants with a known workload.

use super::Workload;
use crate::packing::fraction::{Busy, Sharing};
use thiserror::Error;

/// Tenants that would slow each other down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the tenants would keep {} thousandths of the GPU busy, above {}; put fewer on it", busy.0, limit.0)]
pub struct Overload {
    /// The part of the GPU that they would keep busy together.
    pub busy: Busy,
    /// The part of the GPU that they may keep busy together.
    pub limit: Busy,
}

/// Whether a GPU that is shared in this way may have these tenants. Under MPS the sum of duties times need must stay
/// below the limit, under time slicing the sum of the duties. A single tenant may keep a whole GPU busy.
///
/// # Errors
///
/// If the sum exceeds the limit.
pub fn admits(sharing: Sharing, tenants: &[Workload]) -> Result<(), Overload> {
    let busy = tenants.iter().fold(0_u16, |sum, tenant| sum.saturating_add(tenant.busy(sharing).0));
    let (busy, limit) = (Busy(busy), sharing.busy_limit());
    if tenants.len() > 1 && busy > limit { Err(Overload { busy, limit }) } else { Ok(()) }
}
