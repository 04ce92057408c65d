//! The settings of packing that an admin may change.

use crate::mig::Profile;
use std::collections::BTreeMap;

/// The admin's settings for the values of places.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// Whether kerf may evict pods to make room. Then a GPU on which one eviction makes room for a large request has a
    /// value.
    pub moves: bool,
    /// The weight of room for a profile, in percent of the weight of profiles that are not named.
    pub weights: BTreeMap<Profile, u32>,
}
