//! Decides which XIDs make a GPU unhealthy.
//!
//! The lists have the meaning of `DP_DISABLE_HEALTHCHECKS` and `DP_ENABLE_HEALTHCHECKS` in NVIDIA's device plugin
//! (k8s-device-plugin, `internal/rm/health.go`). Every XID counts except those of applications and those that are
//! disabled; an enabled one counts in any case. A word that the plugin skips is an error here.

use std::collections::BTreeSet;
use std::str::FromStr;
use thiserror::Error;

/// The XID of an uncorrectable ECC error.
const DOUBLE_BIT_ECC: u64 = 48;

/// XIDs of an application's mistake, which the plugin ignores.
const OF_APPLICATIONS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// XIDs that only report: 63, a row was remapped or a page retired; 92, many corrected errors; 94, a contained error,
/// whose program has ended (NVIDIA's list of XIDs). The GPU's counters show what is left to repair.
const REPORTS: [u64; 3] = [63, 92, 94];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XidList {
    /// The word `all`, or `xids`.
    All,
    These(BTreeSet<u64>),
}

/// A word that is neither a number nor `all`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no XID; write numbers with commas between them, like 48,63, or all")]
pub struct UnknownXid(String);

impl Default for XidList {
    fn default() -> Self {
        Self::These(BTreeSet::new())
    }
}

impl FromStr for XidList {
    type Err = UnknownXid;

    fn from_str(text: &str) -> Result<Self, UnknownXid> {
        let words = || text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let is_all = |word: &str| word.eq_ignore_ascii_case("all") || word.eq_ignore_ascii_case("xids");
        let numbers = words().filter(|word| !is_all(word));
        let numbers = numbers.map(|word| word.parse().map_err(|_| UnknownXid(word.to_owned())));
        let numbers = numbers.collect::<Result<_, _>>()?;
        Ok(if words().any(is_all) { Self::All } else { Self::These(numbers) })
    }
}

impl XidList {
    fn has(&self, xid: u64) -> bool {
        match self {
            Self::All => true,
            Self::These(xids) => xids.contains(&xid),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Xids {
    /// XIDs that do not count, in addition to those that never do by default.
    pub disabled: XidList,
    /// XIDs that count in any case.
    pub enabled: XidList,
}

impl Xids {
    /// Whether this XID makes a GPU unhealthy. `contains` is whether the GPU contains errors of its memory.
    pub(super) fn count(&self, xid: u64, contains: bool) -> bool {
        let is_report = REPORTS.contains(&xid) || contains && xid == DOUBLE_BIT_ECC;
        let is_ignored = self.disabled.has(xid) || OF_APPLICATIONS.contains(&xid) || is_report;
        self.enabled.has(xid) || !is_ignored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_the_meaning_of_nvidias_plugin() {
        // Disabled, enabled, and which of 31 (an application's), 48, 63 (a report) and 79 count.
        let table = [
            ("", "", [false, true, false, true]),
            ("48", "", [false, false, false, true]),
            (" 48 , 79,", "79", [false, false, false, true]),
            ("all", "", [false; 4]),
            ("48,XIDS", "", [false; 4]),
            ("all", "79,31", [true, false, false, true]),
            ("", "31,63", [true; 4]),
            ("all", "all", [true; 4]),
            ("48", "xids", [true; 4]),
        ];
        for (disabled, enabled, counted) in table {
            let xids = Xids { disabled: disabled.parse().unwrap(), enabled: enabled.parse().unwrap() };
            let counts = |contains| [31, 48, 63, 79].map(|xid| xids.count(xid, contains));
            assert_eq!(counts(false), counted, "{disabled:?} {enabled:?}");
            let is_enabled = enabled == "all" || enabled == "xids";
            assert_eq!(counts(true)[1], is_enabled, "{disabled:?} {enabled:?}: 48 on a GPU that contains it");
        }
    }

    #[test]
    fn an_invalid_xid_is_an_error_with_the_remedy() {
        for wrong in ["x", "48;79", "all,x", "-1", "ecc"] {
            let error = wrong.parse::<XidList>().unwrap_err().to_string();
            assert!(error.contains("write numbers"), "{error}");
        }
    }
}
