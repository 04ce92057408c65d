//! The part of a GPU instance that one slice is.

use crate::mig::ComputeInstance;
use serde::{Deserialize, Serialize};

/// The part of a GPU instance that a slice is. Documents leave it out for the whole instance, and have `{start,
/// compute}` for a compute instance and `{replica}` for a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MigPart {
    /// The whole instance, with one compute instance of full size.
    #[default]
    Whole,
    /// A compute instance beside others in the same GPU instance.
    Compute(ComputeInstance),
    /// A replica. All replicas take turns on one compute instance of full size.
    Replica {
        /// The replica's number, unique in its GPU instance.
        replica: u8,
    },
}

impl MigPart {
    /// Whether the slice is the whole GPU instance.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        *self == Self::Whole
    }

    /// The compute instance; `None` for a whole instance or a replica.
    #[must_use]
    pub fn compute(self) -> Option<ComputeInstance> {
        match self {
            Self::Compute(instance) => Some(instance),
            Self::Whole | Self::Replica { .. } => None,
        }
    }

    /// The replica's number; `None` for a whole or a compute instance.
    #[must_use]
    pub fn replica(self) -> Option<u8> {
        match self {
            Self::Replica { replica } => Some(replica),
            Self::Whole | Self::Compute(_) => None,
        }
    }

    /// Whether two such parts can be in one GPU instance: both must be compute instances, or both replicas.
    #[must_use]
    pub fn shares_with(self, other: Self) -> bool {
        !self.is_whole() && std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl From<Option<ComputeInstance>> for MigPart {
    fn from(part: Option<ComputeInstance>) -> Self {
        part.map_or(Self::Whole, Self::Compute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Shape;
    use serde_json::{Value, json};

    #[test]
    fn a_replica_is_written_by_its_number_and_other_parts_as_before() {
        let written = |part: Value| {
            let mut shape = json!({"kind": "mig", "profile": "1g.10gb", "start": 3, "size": 1});
            if !part.is_null() {
                shape["part"] = part;
            }
            let read: Shape = serde_json::from_value(shape.clone()).unwrap();
            assert_eq!(json!(read), shape);
            read.mig_part()
        };
        assert_eq!(written(Value::Null), MigPart::Whole);
        let part = ComputeInstance { start: 1, compute: 2 };
        assert_eq!(written(json!({"start": 1, "compute": 2})), MigPart::Compute(part));
        assert_eq!(written(json!({"replica": 2})), MigPart::Replica { replica: 2 });
    }

    #[test]
    fn only_parts_of_one_sort_share_an_instance() {
        let part = |start| MigPart::Compute(ComputeInstance { start, compute: 1 });
        let replica = |replica| MigPart::Replica { replica };
        assert!(part(0).shares_with(part(1)) && replica(0).shares_with(replica(1)));
        for other in [MigPart::Whole, part(0)] {
            assert!(!replica(0).shares_with(other) && !MigPart::Whole.shares_with(other));
        }
    }
}
