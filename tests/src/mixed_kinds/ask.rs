//! The requests of the pods. They use three neutral names, each with several sizes and several kinds of
//! slice.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_core::resource::{ResourceName, neutral_size};
use kerf_core::units::SizeGb;
use serde_json::{Value, json};

use crate::random::Random;

/// The container that every pod has, and that is killed.
pub const MAIN: &str = "main";

/// A second container of some pods.
const SIDE: &str = "side";

/// The variable that identifies the processes of [`MAIN`]. Its value is the pod's name.
pub const POD_VARIABLE: &str = "MIXED_KINDS_POD";

/// Lines that a container prints before and after its environment.
pub const BEGIN: &str = "BEGIN ENVIRONMENT";
pub const END: &str = "END ENVIRONMENT";

/// The trap is needed because `sh` is the container's first process, to which the kernel delivers no SIGTERM
/// without a handler.
const PRINT_AND_WAIT: &str = "trap 'exit 0' TERM; echo BEGIN ENVIRONMENT; /usr/bin/env; echo END ENVIRONMENT; \
                              /usr/bin/sleep 3600 & wait";

/// Sizes in GB and classes, by neutral name. On an H200 a MIG instance has 18, 35, 71 or 141 GB, and a whole
/// GPU serves more than 70. So 35 and 40 are two profiles of one name, and every kind serves 71 and 80.
const BUCKETS: [&[(u32, Class)]; 3] = [
    &[(13, Class::Memory), (14, Class::Memory), (13, Class::None), (14, Class::None)],
    &[(35, Class::Memory), (40, Class::Memory), (35, Class::None), (40, Class::None)],
    &[
        (71, Class::Hardware),
        (80, Class::Hardware),
        (71, Class::Memory),
        (80, Class::Memory),
        (71, Class::None),
    ],
];

/// The bucket of each of eight draws. Small slices are requested more often, because more of them fit.
const DRAWS: [usize; 8] = [0, 0, 0, 0, 1, 1, 2, 2];

pub const LARGEST_GB: u32 = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// MIG first, then the whole GPU.
    Hardware,
    /// MIG first, then an MPS share, then the whole GPU.
    Memory,
    /// A time slice before all other kinds.
    None,
}

impl Class {
    fn as_str(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Memory => "memory",
            Self::None => "none",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    pub name: String,
    pub class: Class,
    /// The size in GB of an init container, whose device the main container reuses.
    pub init: Option<u32>,
    /// Size in GB and number of slices of each container.
    pub containers: Vec<(u32, u32)>,
}

impl Ask {
    #[must_use]
    pub fn one(name: String, gb: u32, class: Class) -> Self {
        Self { name, class, init: None, containers: vec![(gb, 1)] }
    }

    /// A random pod. Most have one slice; the others have two in one container, one in each of two
    /// containers, or one that an init container passes to the main one. All slices of a pod have the same
    /// neutral name, but may differ in size.
    #[must_use]
    pub fn draw(name: String, random: &mut Random) -> Self {
        let bucket = BUCKETS[DRAWS[random.below(DRAWS.len())]];
        let (gb, class) = bucket[random.below(bucket.len())];
        let (other, _) = bucket[random.below(bucket.len())];
        let one = Self::one(name, gb, class);
        match random.below(10) {
            0 => Self { containers: vec![(gb, 2)], ..one },
            1 => Self { containers: vec![(gb, 1), (other, 1)], ..one },
            2 => Self { init: Some(other), ..one },
            _ => one,
        }
    }

    /// The neutral name of all its slices.
    pub fn resource(&self) -> anyhow::Result<String> {
        let (gb, _) = self.containers.first().context("a pod has containers")?;
        let size = neutral_size(SizeGb(*gb)).context("the size has a neutral name")?;
        Ok(ResourceName::Neutral(size).to_string())
    }

    /// The names of its running containers.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [MAIN, SIDE].into_iter().take(self.containers.len())
    }

    /// The pod, merged with what the node requires of every pod and container. It runs as a user who may have
    /// an MPS share without a user namespace.
    pub fn pod(&self, of_spec: &Value, of_container: &Value) -> anyhow::Result<Pod> {
        let container = |name: &str, gb: u32, count: u32, command: Value| {
            let mut container = json!({
                "name": name,
                "command": command,
                "securityContext": {"allowPrivilegeEscalation": false},
                "resources": {"limits": {format!("{}{gb}gb", keys::SIZE_PREFIX): count.to_string()}},
            });
            if name == MAIN {
                container["env"] = json!([{"name": POD_VARIABLE, "value": self.name}]);
            }
            json_patch::merge(&mut container, of_container);
            container
        };
        let waiting = json!(["/bin/sh", "-c", PRINT_AND_WAIT]);
        let named = self.names().zip(&self.containers);
        let containers: Vec<_> =
            named.map(|(name, (gb, count))| container(name, *gb, *count, waiting.clone())).collect();
        let init = self.init.map(|gb| container("init", gb, 1, json!(["/bin/sh", "-c", "exit 0"])));
        let mut spec = json!({
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 2,
            "securityContext": {"runAsUser": 1000},
            "initContainers": init.into_iter().collect::<Vec<_>>(),
            "containers": containers,
        });
        json_patch::merge(&mut spec, of_spec);
        let pod = json!({
            "metadata": {"name": self.name, "annotations": {keys::ISOLATION: self.class.as_str()}},
            "spec": spec,
        });
        serde_json::from_value(pod).context("the pod is malformed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_one_name_and_at_least_two_sizes() {
        for bucket in BUCKETS {
            let mut sizes: Vec<u32> = bucket.iter().map(|(gb, _)| *gb).collect();
            let names = sizes.iter().map(|gb| Ask::one("a".to_owned(), *gb, Class::None).resource().unwrap());
            let mut names: Vec<String> = names.collect();
            sizes.sort_unstable();
            names.sort();
            sizes.dedup();
            names.dedup();
            assert_eq!((names.len(), sizes.len()), (1, 2), "{names:?} {sizes:?}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_pods_again() {
        let pods = |seed| {
            let mut random = Random::new(seed);
            (0..50).map(|n| Ask::draw(format!("p{n}"), &mut random)).collect::<Vec<_>>()
        };
        assert_eq!(pods(7), pods(7));
        assert_ne!(pods(7), pods(8));
    }
}
