//! Static nodes served by NVIDIA's own device plugin, GPU feature discovery, config-manager and MPS daemon: what kerf builds
//! on is seen of the programs themselves.
#![expect(clippy::unwrap_used, reason = "what a test cannot do has failed")]

mod layouts;
mod mig;
mod misconfigurations;
mod mps;
mod pods;
mod restarts;
mod scene;
