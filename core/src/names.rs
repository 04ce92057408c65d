//! Names that other systems define, each with a type of its own, so that one is never used as another.
//!
//! The clones of a name share its text, because all that is known of a large cluster repeats the same names many times.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps the name without a check.
            pub fn new(name: impl AsRef<str>) -> Self {
                Self(name.as_ref().into())
            }

            /// The text of the name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        /// Allows a lookup by text: a name compares and hashes like its text.
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self::new(name)
            }
        }
    };
}

name!(
    /// The name of a Kubernetes Node, which is also the name of its GpuNode.
    NodeName
);
name!(
    /// The UUID of a GPU as NVML reports it (`GPU-…`).
    GpuUuid
);
name!(
    /// The name of a slice in its node's [`GpuNodeSpec`](crate::contract::GpuNodeSpec): unique there and never used
    /// again.
    SliceId
);
name!(
    /// The ID of a device for the kubelet: `MIG-…` for a GPU instance, `GPU-…::n` for a share.
    DeviceId
);
name!(
    /// The UID of a pod, by which reservations belong to it.
    PodUid
);

/// The address of a GPU on the PCI bus, in the kernel's form: `0000:65:00.0`. Policies may name a GPU by it and not by
/// NVML's index, because indexes shift after a loss or a boot. Parsing also accepts capitals, and the domain of eight
/// digits that NVML and nvidia-smi write (`00000000:65:00.0`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciBusId(String);

impl PciBusId {
    /// The text of the address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PciBusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not a PCI bus address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no PCI bus id; write it as `kerf gpu list` and `lspci -D` do, like 0000:65:00.0")]
pub struct NoPciBusId(String);

impl FromStr for PciBusId {
    type Err = NoPciBusId;

    fn from_str(text: &str) -> Result<Self, NoPciBusId> {
        let read = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_one = (4..=8).contains(&domain.len())
                && (bus.len(), device.len(), function.len()) == (2, 2, 1)
                && [domain, bus, device, function].into_iter().all(hex);
            let domain = domain.trim_start_matches('0');
            is_one.then(|| Self(format!("{domain:0>4}:{bus}:{device}.{function}").to_ascii_lowercase()))
        };
        read().ok_or_else(|| NoPciBusId(text.to_owned()))
    }
}

impl TryFrom<String> for PciBusId {
    type Error = NoPciBusId;

    fn try_from(text: String) -> Result<Self, NoPciBusId> {
        text.parse()
    }
}

impl From<PciBusId> for String {
    fn from(id: PciBusId) -> Self {
        id.0
    }
}

/// The namespace and name of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name in the namespace.
    pub name: String,
}

impl PodKey {
    /// The key of pod `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_bus_id_is_read_as_the_kernel_and_as_nvml_write_it() {
        for (text, read) in [
            ("0000:65:00.0", "0000:65:00.0"),
            ("00000000:65:00.0", "0000:65:00.0"),
            ("00000000:1B:00.0", "0000:1b:00.0"),
            ("0000:1b:00.0", "0000:1b:00.0"),
            ("00010000:04:00.0", "10000:04:00.0"),
            ("10000:04:00.0", "10000:04:00.0"),
        ] {
            assert_eq!(text.parse::<PciBusId>().unwrap().as_str(), read, "{text}");
        }
        for text in [
            "",
            "0",
            "65:00.0",
            "0000:65:00",
            "0000:65:0.0",
            "0000:65:00.0.0",
            "000000000:65:00.0",
            "0000:6g:00.0",
            "GPU-1",
        ] {
            assert_eq!(text.parse::<PciBusId>().unwrap_err(), NoPciBusId(text.to_owned()));
        }
    }
}
