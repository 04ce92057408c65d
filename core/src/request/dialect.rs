//! The names of the ways to ask that other systems have.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Another system's way to ask, which kerf understands where a policy says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// `nvidia.com/mig-<profile>`, as NVIDIA's device plugin names MIG devices. It is on where a policy lists no dialects.
    Mig,
    /// `nvidia.com/gpu` and `nvidia.com/gpu.shared`, as NVIDIA's device plugin names them.
    Nvidia,
    /// `HAMi`: `nvidia.com/gpumem`, `nvidia.com/gpumem-percentage` and `nvidia.com/gpucores` beside `nvidia.com/gpu`.
    Hami,
    /// gpushare: `aliyun.com/gpu-mem`, `aliyun.com/gpu-count`.
    Gpushare,
    /// KAI scheduler: the annotations `gpu-fraction`, `gpu-memory` and `gpu-fraction-num-devices`.
    Kai,
    /// run:ai: its annotations and labels of the same meaning.
    Runai,
}

impl Dialect {
    /// All dialects that kerf can read.
    pub const ALL: [Self; 6] = [Self::Mig, Self::Nvidia, Self::Hami, Self::Gpushare, Self::Kai, Self::Runai];
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mig => "mig",
            Self::Nvidia => "nvidia",
            Self::Hami => "hami",
            Self::Gpushare => "gpushare",
            Self::Kai => "kai",
            Self::Runai => "runai",
        })
    }
}
