//! What shows that a pod may ask in a dialect, by its keys alone: for whoever must find such pods without reading them.

use super::{gpushare, hami, kai, nvidia};
use crate::nvidia_keys::MIG_PREFIX;
use crate::policy::Dialect;

/// The keys of which a pod has at least one if it asks in a dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// Resources, in limits or requests, of which the pod wants more than 0.
    pub resources: &'static [&'static str],
    /// Beginnings of such resources' names.
    pub prefixes: &'static [&'static str],
    /// Annotations, whatever they say.
    pub annotations: &'static [&'static str],
}

const NOTHING: Words = Words { resources: &[], prefixes: &[], annotations: &[] };

impl Words {
    /// Those of `dialect`.
    #[must_use]
    pub const fn of(dialect: Dialect) -> Self {
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
