//! The folder of a static node, and the root file systems of NVIDIA's programs. In its root a program finds
//! the node at the paths that are compiled into it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kerf_nvml_mock::{MockControl, MockFiles, MockState, PROC_ENV};

use super::spec::StaticNodeSpec;
use crate::binaries;
use crate::container_root::{ContainerRoot, Mount, PROGRAMS};
use crate::process::Program;

/// Where NVIDIA's programs expect the folders of the kubelet, MPS and the ConfigMap.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";
const MPS: &str = "/mps";
const AVAILABLE: &str = "/available-configs";
const CHOSEN: &str = "/config";
/// Where they find the simulated NVML.
const LIBRARIES: &str = "/opt/image/lib";

/// Folders and files that the node's programs share.
#[derive(Debug, Clone)]
pub(super) struct NodeFolder {
    pub dir: PathBuf,
    pub logs: PathBuf,
    pub gpus: MockFiles,
    /// The folder in which roots of containers are assembled. It is beside the node's folder, because each
    /// container mounts that with everything below.
    roots: PathBuf,
    /// The driver's programs, each with its stand-in.
    programs: [(&'static str, PathBuf); 2],
    library: PathBuf,
}

impl NodeFolder {
    /// Creates the node's folder, with its GPUs cut and the files that the kernel would have.
    pub fn create(dir: &Path, spec: &StaticNodeSpec) -> anyhow::Result<Self> {
        for folder in ["nvml", "proc", "sys/class/dmi/id", "features", "logs", "mps"] {
            fs::create_dir_all(dir.join(folder)).context("failed to make a static node's folder")?;
        }
        let gpus = MockFiles::in_folder(dir.join("nvml"));
        spec.gpus.write(&gpus.config)?;
        let mut state = MockState::first_boot(&spec.gpus)?;
        for (gpu, profile) in &spec.instances {
            state.cut(*gpu, profile).map_err(|code| anyhow::anyhow!("NVML refuses {profile}: {code:?}"))?;
        }
        state.write(&gpus.state)?;
        state.write_proc(&dir.join("proc"))?;
        state.write_sys(&dir.join("sys"))?;
        fs::write(dir.join("sys/class/dmi/id/product_name"), "Stand-in Server\n")?;
        let library = kerf_nvml_mock::library_path()
            .context("the simulated NVML is not built: cargo build --workspace")?;
        let programs = [
            ("nvidia-smi", binaries::ours("nvidia_smi_stand_in")?),
            ("nvidia-cuda-mps-control", binaries::ours("mps_control_stand_in")?),
        ];
        let name = dir.file_name().context("a node's folder has no name")?.to_string_lossy();
        let roots = dir.with_file_name(format!("{name}.roots"));
        Ok(Self { dir: dir.to_owned(), logs: dir.join("logs"), gpus, roots, programs, library })
    }

    pub fn state(&self) -> anyhow::Result<MockState> {
        Ok(MockState::load(&self.gpus.state)?)
    }

    /// Sets faults, delays or processes of the GPUs.
    pub fn control(&self, control: &MockControl) -> anyhow::Result<()> {
        Ok(control.write(&self.gpus.control)?)
    }
}

/// A pod of NVIDIA's: the volumes that its containers share.
#[derive(Debug, Clone)]
pub(super) struct PodRoot {
    node: NodeFolder,
    /// Its own folder on the node.
    pub dir: PathBuf,
}

impl PodRoot {
    /// Creates the pod's folder, after removing that of an earlier pod.
    pub fn create(node: &NodeFolder, pod: &str) -> anyhow::Result<Self> {
        let dir = node.dir.join(pod);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        for folder in ["config", "processes"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        Ok(Self { node: node.clone(), dir })
    }

    /// The folder that replaces `/proc` in the pod's containers, with the command line of its process.
    /// config-manager reads every command line, and ends at the first empty one, which a real `/proc` always
    /// has.
    pub fn processes(&self) -> PathBuf {
        self.dir.join("processes")
    }

    /// A container named `name` with one of NVIDIA's programs.
    pub fn container(&self, name: &str, program: &str, sees_pod_only: bool) -> anyhow::Result<Container> {
        let node = &self.node;
        let mount = |source: PathBuf, target: &str| Mount { source, target: target.into(), read_only: false };
        let own = |folder: &str, target: &str| mount(node.dir.join(folder), target);
        let mut mounts = vec![Mount { source: node.dir.clone(), target: node.dir.clone(), read_only: false }];
        mounts.extend([own("device-plugins", DEVICE_PLUGINS), own("mps", MPS), own("configs", AVAILABLE)]);
        mounts.extend([own("sys", "/sys"), mount(self.dir.join("config"), CHOSEN)]);
        mounts.push(if sees_pod_only {
            mount(self.processes(), "/proc")
        } else {
            own("proc/driver", "/proc/driver")
        });
        let programs = [(program, binaries::nvidia_tool(program)?)].into_iter().chain(node.programs.clone());
        mounts.extend(programs.map(|(name, file)| mount(file, &format!("{PROGRAMS}/{name}"))));
        mounts.push(mount(node.library.clone(), &format!("{LIBRARIES}/libnvidia-ml.so.1")));
        let mut environment = BTreeMap::from([
            ("PATH".to_owned(), format!("{PROGRAMS}:/usr/bin:/bin")),
            ("LD_LIBRARY_PATH".to_owned(), LIBRARIES.to_owned()),
            (PROC_ENV.to_owned(), node.dir.join("proc").display().to_string()),
        ]);
        environment.extend(node.gpus.env().map(|(name, file)| (name.to_owned(), file.display().to_string())));
        Ok(Container {
            program: Program::new(name, binaries::ours("container_stand_in")?, &node.logs),
            document: self.dir.join(format!("{name}.json")),
            root: ContainerRoot {
                scratch: node.roots.join(name),
                mounts,
                read_only: false,
                working_dir: "/".into(),
                environment,
                command: vec![program.to_owned()],
            },
        })
    }
}

#[derive(Debug)]
pub(super) struct Container {
    program: Program,
    document: PathBuf,
    root: ContainerRoot,
}

impl Container {
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.root.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Writes its document, and returns the program to start, with these arguments.
    pub fn with_arguments(mut self, arguments: &[&str]) -> anyhow::Result<Program> {
        self.root.command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self.root.write(&self.document).context("failed to write a container's document")?;
        Ok(self.program.arg(&self.document))
    }
}
