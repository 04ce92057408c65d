//! What a decision about a share of a GPU costs over 5,000 nodes: not measured yet.

/// Measures and prints.
pub fn run() {}
