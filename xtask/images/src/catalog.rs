//! The single table of kerf's images.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Image {
    /// Mutating admission.
    #[value(name = "kerf-webhook")]
    Webhook,
    /// The scheduler's extender.
    #[value(name = "kerf-extender")]
    Extender,
    /// The agent of GPU nodes.
    #[value(name = "kerf-node-agent")]
    NodeAgent,
    /// The command line.
    #[value(name = "kerf-cli")]
    Cli,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// Statically, with musl, which resolves names by itself. Nothing is loaded at run time.
    Static,
    /// Dynamically, with glibc. The program loads NVML at run time, and the driver's library needs glibc and a loader.
    Dynamic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// User 65532, which distroless images call `nonroot` and `PodSecurity` "restricted" accepts.
    Nonroot,
    /// Only for the agent: cutting GPUs, device files and other pods' cgroups need root.
    Root,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Description {
    /// The image's name without registry and tag.
    pub name: &'static str,
    /// The title for registries' pages.
    pub title: &'static str,
    /// What the program does, in one line.
    pub purpose: &'static str,
    pub package: &'static str,
    /// The program, which is in [`PROGRAMS`].
    pub program: &'static str,
    pub also: &'static [&'static str],
    /// A second program, which is static and has the same profile, because it is copied to hosts of any distribution.
    pub beside: Option<&'static Beside>,
    pub linkage: Linkage,
    /// The cargo profile for shipping: `lean` for programs that mostly wait on many machines (`xtask`'s `shipped`).
    pub profile: &'static str,
    pub user: User,
    /// The TCP ports of the program's default flags.
    pub ports: &'static [u16],
}

pub const PROGRAMS: &str = "/usr/bin";

/// The search path for programs. The first folder is for drivers that are mounted instead of injected (GKE's).
pub const PATH: &str = "/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Folders of NVML besides the loader's own: those of [`PATH`]'s drivers, and the one in which NVIDIA's container
/// runtime puts libraries in unknown images.
pub const LIBRARIES: &str = "/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib64";

#[derive(Debug, PartialEq, Eq)]
pub struct Beside {
    pub package: &'static str,
    /// The program, which is in [`PROGRAMS`].
    pub program: &'static str,
}

impl Image {
    pub const ALL: [Self; 4] = [Self::Webhook, Self::Extender, Self::NodeAgent, Self::Cli];

    pub const fn description(self) -> &'static Description {
        match self {
            Self::Webhook => &Description {
                name: "kerf-webhook",
                title: "kerf webhook",
                purpose: "Mutating admission: a GPU memory request becomes one concrete resource.",
                package: "kerf-webhook",
                program: "kerf-webhook",
                also: &[],
                beside: None,
                linkage: Linkage::Static,
                profile: "lean",
                user: User::Nonroot,
                ports: &[9443, 9090],
            },
            Self::Extender => &Description {
                name: "kerf-extender",
                title: "kerf extender",
                purpose: "Scheduler extender: filters, ranks and binds pods to slices of GPUs.",
                package: "kerf-extender",
                program: "kerf-extender",
                also: &[],
                beside: None,
                linkage: Linkage::Static,
                profile: "dist",
                user: User::Nonroot,
                ports: &[9444, 9445, 9090],
            },
            Self::NodeAgent => &Description {
                name: "kerf-node-agent",
                title: "kerf node agent",
                purpose: "Cuts a node's GPUs into slices and serves them to the kubelet.",
                package: "kerf-node-agent",
                program: "kerf-node-agent",
                also: &[],
                beside: Some(&Beside { package: "kerf-cdi-hook", program: "kerf-cdi-hook" }),
                linkage: Linkage::Dynamic,
                profile: "lean",
                user: User::Root,
                ports: &[9090],
            },
            Self::Cli => &Description {
                name: "kerf-cli",
                title: "kerf",
                purpose: "kerf on the command line, also as kubectl-kerf.",
                package: "kerf",
                program: "kerf",
                also: &["kubectl-kerf"],
                beside: None,
                // `kerf gpu` loads NVML, as the agent does.
                linkage: Linkage::Dynamic,
                profile: "dist",
                user: User::Nonroot,
                ports: &[],
            },
        }
    }
}

impl Description {
    pub fn entrypoint(&self) -> String {
        format!("{PROGRAMS}/{}", self.program)
    }

    pub fn environment(&self) -> Vec<(&'static str, &'static str)> {
        let mut environment = vec![("PATH", PATH)];
        if self.linkage == Linkage::Dynamic {
            environment.push(("LD_LIBRARY_PATH", LIBRARIES));
        }
        environment
    }
}

impl User {
    /// User and group as numbers, because a kubelet cannot verify that a name is not root's.
    pub const fn ids(self) -> &'static str {
        match self {
            Self::Nonroot => "65532:65532",
            Self::Root => "0:0",
        }
    }
}
