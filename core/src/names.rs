//! Names of things that other systems own, each its own type so that one is never passed for another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Takes the name as it is.
            pub fn new(name: impl Into<String>) -> Self {
                Self(name.into())
            }

            /// The name's text.
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

        /// A name is looked up by its text: it compares and hashes as the text does.
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self(name.to_owned())
            }
        }
    };
}

name!(
    /// A Kubernetes Node's name, which is also its GpuNode's.
    NodeName
);
name!(
    /// A GPU's UUID as NVML gives it (`GPU-…`).
    GpuUuid
);
name!(
    /// A slice's name in its node's [`GpuNodeSpec`](crate::contract::GpuNodeSpec): unique there, never used again.
    SliceId
);
name!(
    /// A device id as the kubelet sees it: `MIG-…` for a GPU instance, `GPU-…::n` for a share.
    DeviceId
);
name!(
    /// A pod's UID: what a reservation belongs to.
    PodUid
);

/// A pod's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey {
    /// The namespace.
    pub namespace: String,
    /// The name in it.
    pub name: String,
}

impl PodKey {
    /// The pod `name` of `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
