//! The overlays for nodes of NVIDIA's device plugin, from end to end: `kubectl apply -k` of each on a cluster whose nodes NVIDIA's own
//! programs serve, and what the demo's text describes is seen, capacity, labels and pods. kerf runs as its manifests have it.
#![expect(clippy::unwrap_used, reason = "what a test asks for and is not there has failed it")]

mod layouts;
mod scene;
mod troubles;
