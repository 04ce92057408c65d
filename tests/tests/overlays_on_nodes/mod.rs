//! The overlays for nodes of NVIDIA's device plugin, from end to end: `kubectl apply -k` of each on a cluster whose
//! nodes are served by NVIDIA's own programs. Capacity, labels and pods must be as the demo's text describes. kerf runs
//! from its manifests.
#![expect(clippy::unwrap_used, reason = "what a test asks for and is not there has failed it")]

mod layouts;
mod scene;
mod troubles;
