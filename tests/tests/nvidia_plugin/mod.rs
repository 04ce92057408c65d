//! Static nodes served by NVIDIA's own device plugin, GPU feature discovery, config-manager and MPS daemon. What kerf
//! relies on is observed on the programs themselves.
#![expect(clippy::unwrap_used, reason = "what a test cannot do has failed")]

mod layouts;
mod mig;
mod misconfigurations;
mod mps;
mod pods;
mod restarts;
mod scene;
