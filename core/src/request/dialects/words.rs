//! The keys of each dialect, for programs that must find pods of a dialect without reading their requests.

use super::{gpushare, hami, kai, nvidia};
use crate::nvidia_keys::MIG_PREFIX;
use crate::request::Dialect;

/// The keys of a dialect. A pod that asks in the dialect has at least one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// Resource names in limits or requests; an amount of 0 does not count.
    pub resources: &'static [&'static str],
    /// Prefixes of such resource names.
    pub prefixes: &'static [&'static str],
    /// Annotation keys; any value counts.
    pub annotations: &'static [&'static str],
}

const NOTHING: Words = Words { resources: &[], prefixes: &[], annotations: &[] };

impl Words {
    /// The keys by which pods ask in this dialect.
    #[must_use]
    pub const fn for_dialect(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Mig => Self { prefixes: &[MIG_PREFIX], ..NOTHING },
            Dialect::Nvidia => Self { resources: &nvidia::NAMES, ..NOTHING },
            Dialect::Hami => Self { resources: &hami::ASKING, ..NOTHING },
            Dialect::Gpushare => Self { resources: &gpushare::NAMES, ..NOTHING },
            Dialect::Kai => Self { annotations: &kai::ASKING, ..NOTHING },
            Dialect::Runai => Self { annotations: &kai::ASKING, resources: &[nvidia::GPU], ..NOTHING },
        }
    }
}
