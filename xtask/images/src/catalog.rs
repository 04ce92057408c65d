//! The one table of kerf's images. The Dockerfiles in `deploy/images` are compared with it by a test.

use clap::ValueEnum;

/// One of the images.
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

/// Whether a program is all of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// With musl, which resolves names by itself and is made to be linked in. Nothing is opened at run time.
    Static,
    /// With glibc. NVML is a library of the driver's, opened at run time: it was linked with glibc, and wants a loader.
    Dynamic,
}

/// Whom a program runs as, unless the pod says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// 65532, as `PodSecurity` "restricted" demands and distroless images call `nonroot`.
    Nonroot,
    /// The agent alone: cutting GPUs, device files and other pods' cgroups are root's.
    Root,
}

/// What an image is.
#[derive(Debug, PartialEq, Eq)]
pub struct Description {
    /// The image's name without registry and tag.
    pub name: &'static str,
    /// For registries' pages.
    pub title: &'static str,
    /// What it does, in a line.
    pub purpose: &'static str,
    /// The package that has the program.
    pub package: &'static str,
    /// The program, in [`PROGRAMS`].
    pub program: &'static str,
    /// Other names of the program.
    pub also: &'static [&'static str],
    /// A program beside it, which is static and has its profile: what is copied to a host of any distribution.
    pub beside: Option<&'static Beside>,
    /// How it is linked.
    pub linkage: Linkage,
    /// The profile that it ships with. `lean` for those that wait, mostly, on many machines (`xtask`'s `shipped`).
    pub profile: &'static str,
    /// Whom it runs as.
    pub user: User,
    /// The TCP ports of its default flags.
    pub ports: &'static [u16],
}

/// Where programs are.
pub const PROGRAMS: &str = "/usr/bin";

/// Where programs are looked up. The first is where drivers lie that are not injected but mounted (GKE's).
pub const PATH: &str = "/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where NVML may lie besides the loader's own folders: as [`PATH`], and where NVIDIA's container runtime puts libraries into
/// images that it does not know.
pub const LIBRARIES: &str = "/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib64";

/// A second program of an image.
#[derive(Debug, PartialEq, Eq)]
pub struct Beside {
    /// The package that has it.
    pub package: &'static str,
    /// The program, in [`PROGRAMS`].
    pub program: &'static str,
}

impl Image {
    /// All, in the order in which they are built.
    pub const ALL: [Self; 4] = [Self::Webhook, Self::Extender, Self::NodeAgent, Self::Cli];

    /// The table.
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
                // `kerf gpu` opens NVML, as the agent does.
                linkage: Linkage::Dynamic,
                profile: "dist",
                user: User::Nonroot,
                ports: &[],
            },
        }
    }
}

impl Description {
    /// The program's path in the image, which is its entry point.
    pub fn entrypoint(&self) -> String {
        format!("{PROGRAMS}/{}", self.program)
    }

    /// What the program finds in its environment.
    pub fn environment(&self) -> Vec<(&'static str, &'static str)> {
        let mut environment = vec![("PATH", PATH)];
        if self.linkage == Linkage::Dynamic {
            environment.push(("LD_LIBRARY_PATH", LIBRARIES));
        }
        environment
    }
}

impl User {
    /// User and group, as numbers: a kubelet cannot tell that a name is not root's.
    pub const fn ids(self) -> &'static str {
        match self {
            Self::Nonroot => "65532:65532",
            Self::Root => "0:0",
        }
    }
}
