//! What an admin may set of packing.

use crate::mig::Profile;
use std::collections::BTreeMap;

/// The terms on which places are valued.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// Whether pods may be moved: a GPU that lacks one small move for a big request is worth something then.
    pub moves: bool,
    /// How much room for a profile counts, in percent of what it counts for those that are not named.
    pub weights: BTreeMap<Profile, u32>,
}
