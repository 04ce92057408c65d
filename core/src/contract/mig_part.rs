//! What of a GPU instance one slice is.

use crate::mig::ComputeInstance;
use serde::{Deserialize, Serialize};

/// What of a GPU instance a slice is. In documents it is absent for the whole, `{start, compute}` for a compute instance and
/// `{replica}` for a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MigPart {
    /// All of it: its one compute instance, of full size.
    #[default]
    Whole,
    /// A compute instance that shares the GPU instance with others.
    Compute(ComputeInstance),
    /// A replica: its one compute instance, of full size, by turns with the other replicas.
    Replica {
        /// Its number, by which replicas of one GPU instance are told apart.
        replica: u8,
    },
}

impl MigPart {
    /// Whether it is all of the GPU instance.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        *self == Self::Whole
    }

    /// The compute instance that has a part of the GPU instance's compute slices.
    #[must_use]
    pub fn compute(self) -> Option<ComputeInstance> {
        match self {
            Self::Compute(instance) => Some(instance),
            Self::Whole | Self::Replica { .. } => None,
        }
    }

    /// The number of a replica.
    #[must_use]
    pub fn replica(self) -> Option<u8> {
        match self {
            Self::Replica { replica } => Some(replica),
            Self::Whole | Self::Compute(_) => None,
        }
    }

    /// Whether slices of both sorts can be of one GPU instance.
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
    fn a_whole_instance_and_a_part_are_written_as_before_and_a_replica_by_its_number() {
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
