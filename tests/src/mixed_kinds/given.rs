//! Compares what the kubelet gave a pod with the pod's assignment, without I/O.
//!
//! The devices come from the kubelet. A MIG device is identified by the simulated NVML, any other by its id.
//! The environment is the one that the container was started with: it names each slice, and has the limits of
//! MPS.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kerf_core::contract::AssignmentDocument;
use kerf_nvml_mock::MockState;

/// The variable that names a container's slices.
const SLICES: &str = "KERF_SLICE";
const MPS_MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const MPS_PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";

#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Its devices according to the kubelet.
    pub devices: BTreeSet<String>,
    /// The variables that it was started with.
    pub environment: BTreeMap<String, String>,
}

/// A slice. Two slices of equal `worth` are interchangeable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slice {
    /// Kind and profile or size, such as `1g.18gb` or `14gb MPS share`.
    pub worth: String,
    /// Its placement on the GPU, such as `2:1`; empty unless it is a MIG instance.
    pub place: String,
    /// Its id in the GpuNode.
    pub id: String,
    pub gpu: String,
}

/// The result of comparing what a pod was given with its assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Each slice is the assigned one.
    AsAssigned,
    /// Kinds and sizes are as assigned, but some slices have another place or GPU, because the kubelet picked
    /// among equivalent devices.
    Equal,
    /// A kind or size differs; the text has both.
    Otherwise(String),
}

impl Slice {
    /// Builds a slice from id, shape and GPU, as documents and variables write them.
    fn new(id: &str, shape: &str, gpu: &str) -> Self {
        let (worth, place) = shape.split_once(" at ").unwrap_or((shape, ""));
        Self { worth: worth.to_owned(), place: place.to_owned(), id: id.to_owned(), gpu: gpu.to_owned() }
    }

    /// Parses a text like `s3 1g.18gb at 2:1 on GPU-…`.
    fn parse(text: &str) -> Option<Self> {
        let (id, rest) = text.split_once(' ')?;
        let (shape, gpu) = rest.rsplit_once(" on ")?;
        Some(Self::new(id, shape, gpu))
    }

    /// Whether the kubelet's device is this slice.
    fn is(&self, device: &str, nvml: &MockState) -> bool {
        if device.starts_with("MIG-") {
            let slices = nvml.slices();
            let instance = slices.iter().find(|slice| slice.mig_uuids.iter().any(|uuid| uuid == device));
            return instance.is_some_and(|instance| {
                let place = format!("{}:{}", instance.placement.start, instance.placement.size);
                (&instance.profile, &place, &instance.gpu_uuid) == (&self.worth, &self.place, &self.gpu)
            });
        }
        device.split_once("::").is_some_and(|(gpu, number)| {
            let is_no_instance = self.place.is_empty();
            gpu == self.gpu && self.id == format!("s{number}") && is_no_instance
        })
    }

    /// The size in GB of a share, and whether MPS serves it.
    fn share(&self) -> Option<(u64, bool)> {
        let (size, kind) = self.worth.split_once("gb ")?;
        let is_mps = match kind {
            "MPS share" => true,
            "time slice" => false,
            _ => return None,
        };
        Some((size.parse().ok()?, is_mps))
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worth, place, id, gpu } = self;
        write!(f, "{id} {worth}{}{place} on {gpu}", if place.is_empty() { "" } else { " at " })
    }
}

impl Given {
    /// The container's slices. Fails if devices and environment disagree.
    pub fn slices(&self, nvml: &MockState) -> Result<Vec<Slice>, String> {
        let named = self.environment.get(SLICES).ok_or_else(|| format!("has no {SLICES}"))?;
        let slices: Option<Vec<Slice>> = named.split("; ").map(Slice::parse).collect();
        let slices = slices.ok_or_else(|| format!("has {SLICES}={named}, which cannot be read"))?;
        let mut left = self.devices.clone();
        for slice in &slices {
            let device = left.iter().find(|device| slice.is(device, nvml)).cloned();
            let device =
                device.ok_or_else(|| format!("has {slice} in {SLICES} and holds {:?}", self.devices))?;
            left.remove(&device);
        }
        if !left.is_empty() {
            return Err(format!("has {SLICES}={named} and also holds {left:?}"));
        }
        self.has_the_limits_of(&slices)?;
        Ok(slices)
    }

    /// Checks that MPS limits are set exactly for the container's MPS shares, by GPU.
    fn has_the_limits_of(&self, slices: &[Slice]) -> Result<(), String> {
        let mut gpus: Vec<(&str, u64)> = Vec::new();
        for slice in slices {
            let Some((gb, true)) = slice.share() else { continue };
            match gpus.iter_mut().find(|(gpu, _)| *gpu == slice.gpu) {
                Some((_, mib)) => *mib += gb * 1024,
                None => gpus.push((&slice.gpu, gb * 1024)),
            }
        }
        let limits: Vec<String> =
            gpus.iter().zip(0..).map(|((_, mib), number)| format!("{number}={mib}M")).collect();
        let expected = gpus.first().map(|_| limits.join(","));
        let (limit, pipe) = (self.environment.get(MPS_MEMORY), self.environment.get(MPS_PIPE));
        if limit != expected.as_ref() {
            return Err(format!("has {MPS_MEMORY} {limit:?}, not {expected:?}"));
        }
        let is_its_pipe = match (gpus.first(), pipe) {
            (Some((gpu, _)), Some(pipe)) => pipe.contains(gpu),
            (None, None) => true,
            _ => false,
        };
        if is_its_pipe { Ok(()) } else { Err(format!("has {MPS_PIPE} {pipe:?} with {gpus:?}")) }
    }
}

/// Compares a pod's slices with its assignment. It ignores which container has which slice, because the
/// kubelet gives any device of a name to any container of the pod that requests the name.
#[must_use]
pub fn compare(given: &[Slice], assignment: &AssignmentDocument) -> Verdict {
    let assigned = assignment.slices.iter();
    let mut assigned: Vec<Slice> = assigned
        .map(|slice| Slice::new(slice.id.as_str(), &slice.shape.to_string(), slice.gpu.as_str()))
        .collect();
    let mut given = given.to_vec();
    assigned.sort();
    given.sort();
    if given == assigned {
        return Verdict::AsAssigned;
    }
    // Slices sort by worth first, so both lists align.
    let worths = |slices: &[Slice]| slices.iter().map(|slice| slice.worth.clone()).collect::<Vec<_>>();
    if worths(&given) == worths(&assigned) {
        return Verdict::Equal;
    }
    let reported = |slices: &[Slice]| slices.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    Verdict::Otherwise(format!("holds {}, and was assigned {}", reported(&given), reported(&assigned)))
}

#[cfg(test)]
#[path = "given_tests.rs"]
mod tests;
