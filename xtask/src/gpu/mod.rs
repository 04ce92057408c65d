//! `cargo xtask gpu`: packs what turns a machine with a GPU into a whole cluster.

mod bundle;
mod distribution;
mod image;
mod pack;

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use crate::workspace::Workspace;

/// Tasks about a machine with a GPU.
#[derive(Debug, Subcommand)]
pub enum Gpu {
    /// Pack control plane and node into target/gpu/control-plane.tar.xz and target/gpu/node.tar.xz, and what kerf is
    /// installed with by its chart into target/gpu/install.tar.xz. Unpacked into one folder there, `bin/single_node`
    /// brings the node up: see docs/gpu-node.md.
    Pack {
        /// Only this one: the others have not changed.
        bundle: Option<Bundle>,
        /// Of `distribution`: the prefix of a Python as new as that of the machine's `PyTorch`, with a shared library.
        /// Without it the bundle is made only if it is asked for, and then refused.
        #[arg(long)]
        python: Option<PathBuf>,
    },
}

/// A file that is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Bundle {
    /// etcd, API server, controllers, scheduler, kubectl, manifests and policies.
    ControlPlane,
    /// kerf's programs, the kubelet, containerd and runc.
    Node,
    Install,
    /// A small root file system of another distribution, for an image that is made on the machine with its `PyTorch`.
    Distribution,
}

impl Gpu {
    pub fn run(&self, workspace: &Workspace) -> anyhow::Result<()> {
        match self {
            Self::Pack { bundle, python } => pack::pack(workspace, *bundle, python.as_deref()),
        }
    }
}
