//! The list of tasks. A new task is one variant here and one module beside this file.

use clap::{Parser, Subcommand};

use crate::gpu::Gpu;
use crate::test::Part;
use crate::tools::Purpose;
use crate::workspace::Workspace;
use crate::{bench, build, cargo, cross, images, manifests, test, tools};

/// Tasks of the kerf workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub struct Xtask {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Build etcd, kube-apiserver, kube-scheduler, kube-controller-manager and kubectl from the Go module
    /// proxy into target/k8s-tools, helm and kustomize into target/admin-tools, and NVIDIA's device plugin and its
    /// companions into target/nvidia-tools, unless they are there already. The `OpenAPI` files of several versions of
    /// Kubernetes go into target/openapi, CRDs of others into target/crds.
    Tools,
    /// Show a pod's whole way on a local control plane with simulated GPUs; fails if it is not as shown.
    Demo {
        /// `--keep` leaves the cluster up until Ctrl-C.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write what is made of others: the chart's copies of files, and deploy/base, which Helm makes of the chart.
    Manifests {
        /// Write nothing, and fail if something would be written.
        #[arg(long)]
        check: bool,
    },
    /// Run every check: formatting, lints, all tests, dependencies; or a part of the tests.
    Test {
        #[command(subcommand)]
        part: Option<Part>,
    },
    /// Measure, with optimised programs: `cargo xtask bench walk`, `churn`, `packing`, `decide`, `policy`, `accept`,
    /// `reboots`, `admission`, `explore`, `fuzz`, `forging`, `mutants`, `outage`, `leaders`, `install`,
    /// `agent`, `faults`.
    Bench {
        /// The benchmark and its flags.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write container images as OCI archives, with their bills of materials, into target/images, without a container
    /// engine: `cargo xtask images -- --help` lists the flags.
    Images {
        /// The images, all if none is named, and flags.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build kerf's programs for processors and systems that this machine is not: Linux on arm64, and the command line
    /// for macOS. What cannot be had here is said to be not run.
    Cross,
    /// Make bundles that bring up a whole node on a machine with a GPU.
    #[command(subcommand)]
    Gpu(Gpu),
}

impl Xtask {
    pub fn run(self) -> anyhow::Result<()> {
        let workspace = Workspace::locate()?;
        match self.task {
            Task::Tools => tools::ensure(&workspace, Purpose::Tests),
            Task::Demo { arguments } => {
                build::demo(&workspace)?;
                cargo::run_built(&workspace, "debug", "kerf_demo", &arguments)
            }
            Task::Manifests { check } => manifests::run(&workspace, check),
            Task::Test { part } => test::run(&workspace, part),
            Task::Bench { arguments } => bench::run(&workspace, &arguments),
            Task::Images { arguments } => images::run(&workspace, &arguments),
            Task::Cross => cross::run(&workspace, &["linux", "darwin"]),
            Task::Gpu(gpu) => gpu.run(&workspace),
        }
    }
}
