//! How a node policy shares GPU instances by time slicing.

use serde::{Deserialize, Serialize};

/// The most replicas of one GPU instance. It equals the client limit of MPS, because with more replicas the turns would come too
/// seldom.
const MIG_REPLICAS_LIMIT: u32 = 48;

/// How pods share a GPU instance whose only compute instance has full size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MigRule {
    /// The number of pods that may take turns on one instance. Each asks for `nvidia.com/mig-<profile>.shared`. Nothing
    /// isolates them from each other: each may use all of the instance's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_slicing: Option<MigReplicas>,
}

/// The number of pods that may take turns on one GPU instance: 2 to 48.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minimum" = 2, "maximum" = MIG_REPLICAS_LIMIT)))]
#[serde(try_from = "u32", into = "u32")]
pub struct MigReplicas(u8);

impl MigReplicas {
    /// The number of replicas, 2 to 48.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u32> for MigReplicas {
    type Error = String;

    fn try_from(replicas: u32) -> Result<Self, String> {
        let refused = || format!("mig.timeSlicing is {replicas}; write 2 to {MIG_REPLICAS_LIMIT}");
        let legal = (2..=MIG_REPLICAS_LIMIT).contains(&replicas);
        u8::try_from(replicas).ok().filter(|_| legal).map(Self).ok_or_else(refused)
    }
}

impl From<MigReplicas> for u32 {
    fn from(replicas: MigReplicas) -> Self {
        replicas.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_gpu_instance_has_2_to_48_replicas() {
        let read = |number: u32| serde_json::from_value::<MigRule>(json!({"timeSlicing": number}));
        for number in [0, 1, 49, 300] {
            let refusal = read(number).unwrap_err().to_string();
            assert!(refusal.contains(&format!("mig.timeSlicing is {number}; write 2 to 48")), "{refusal}");
        }
        for number in [2, 48] {
            let rule = read(number).unwrap();
            assert_eq!(rule.time_slicing.map(u32::from), Some(number));
            assert_eq!(json!(rule), json!({"timeSlicing": number}));
        }
        assert_eq!(json!(MigRule::default()), json!({}));
    }
}
