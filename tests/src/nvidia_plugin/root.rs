//! The folder of a static node, and a program of NVIDIA's in a root of its own, where it finds the node at the paths that
//! were compiled into it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kerf_nvml_mock::{MockControl, MockFiles, MockState, PROC_ENV};

use super::spec::StaticNodeSpec;
use crate::binaries;
use crate::process::Program;

/// Where NVIDIA's programs look for what the kubelet, MPS and the ConfigMap have.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";
const MPS: &str = "/mps";
const AVAILABLE: &str = "/available-configs";
const CHOSEN: &str = "/config";

/// What the node's programs share.
#[derive(Debug, Clone)]
pub(super) struct NodeFolder {
    pub dir: PathBuf,
    pub logs: PathBuf,
    pub gpus: MockFiles,
    /// What the programs of the node get at their own paths beside the node's folder: their executables and libraries.
    programs: Vec<PathBuf>,
}

impl NodeFolder {
    /// Makes the node's folder, with its GPUs cut and the files that the kernel would have.
    pub fn create(dir: &Path, spec: &StaticNodeSpec) -> anyhow::Result<Self> {
        for folder in ["nvml", "proc", "sys/class/dmi/id", "lib", "bin", "configs", "features", "logs", "mps"]
        {
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
        symlink(&library, dir.join("lib/libnvidia-ml.so.1"))?;
        let smi = binaries::ours("nvidia_smi_stand_in")?;
        let mps = binaries::ours("mps_control_stand_in")?;
        symlink(&smi, dir.join("bin/nvidia-smi"))?;
        symlink(&mps, dir.join("bin/nvidia-cuda-mps-control"))?;
        let nvidia = binaries::nvidia_tool("nvidia-device-plugin")?;
        let folders = [&library, &smi, &nvidia].into_iter().filter_map(|path| path.parent());
        let mut programs: Vec<PathBuf> = folders.map(Path::to_owned).collect();
        programs.sort();
        programs.dedup();
        Ok(Self { dir: dir.to_owned(), logs: dir.join("logs"), gpus, programs })
    }

    /// The GPUs as they are.
    pub fn state(&self) -> anyhow::Result<MockState> {
        Ok(MockState::load(&self.gpus.state)?)
    }

    /// Lets things happen to the GPUs.
    pub fn control(&self, control: &MockControl) -> anyhow::Result<()> {
        Ok(control.write(&self.gpus.control)?)
    }
}

/// A pod of NVIDIA's: the volumes that its containers have in common.
#[derive(Debug, Clone)]
pub(super) struct PodRoot {
    node: NodeFolder,
    /// Its own folder on the node.
    pub dir: PathBuf,
}

impl PodRoot {
    /// The pod's folder, made anew: what it had of an earlier pod is gone.
    pub fn create(node: &NodeFolder, pod: &str) -> anyhow::Result<Self> {
        let dir = node.dir.join(pod);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        for folder in ["config", "processes", "root"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        Ok(Self { node: node.clone(), dir })
    }

    /// What the pod's containers see of each other: a folder with a process's command line, in place of `/proc`. config-manager
    /// reads every command line that it finds, and ends at the first empty one, which each machine has.
    pub fn processes(&self) -> PathBuf {
        self.dir.join("processes")
    }

    /// A container with one of NVIDIA's programs. `name` is the container's.
    pub fn container(&self, name: &str, program: &str, sees_pod_only: bool) -> anyhow::Result<Container> {
        let node = &self.node;
        let root = self.dir.join("root");
        let mut container = Container {
            program: Program::new(name, binaries::ours("own_root")?, &node.logs).arg("--root").arg(&root),
            executable: binaries::nvidia_tool(program)?,
            name: program.to_owned(),
        };
        // The root's own folder lies in the node's, which is bound first.
        let mut binds = vec![(node.dir.clone(), node.dir.clone())];
        binds.extend(node.programs.iter().map(|folder| (folder.clone(), folder.clone())));
        let own = |folder: &str, path: &str| (node.dir.join(folder), PathBuf::from(path));
        binds.extend([own("device-plugins", DEVICE_PLUGINS), own("mps", MPS), own("configs", AVAILABLE)]);
        binds.extend([own("sys", "/sys"), (self.dir.join("config"), PathBuf::from(CHOSEN))]);
        binds.push(if sees_pod_only {
            (self.processes(), PathBuf::from("/proc"))
        } else {
            own("proc/driver", "/proc/driver")
        });
        for (from, to) in binds {
            container.program = container.program.arg("--bind").arg(from).arg(to);
        }
        let search = format!("{}:/usr/bin:/bin", node.dir.join("bin").display());
        let mut variables = vec![("PATH".to_owned(), search)];
        variables.push(("LD_LIBRARY_PATH".to_owned(), node.dir.join("lib").display().to_string()));
        variables.push((PROC_ENV.to_owned(), node.dir.join("proc").display().to_string()));
        variables.extend(node.gpus.env().map(|(name, file)| (name.to_owned(), file.display().to_string())));
        Ok(variables.into_iter().fold(container, |container, (name, value)| container.env(&name, &value)))
    }
}

/// A container in the making.
#[derive(Debug)]
pub(super) struct Container {
    program: Program,
    executable: PathBuf,
    name: String,
}

impl Container {
    /// Sets a variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.program = self.program.arg("--env").arg(format!("{name}={value}"));
        self
    }

    /// What is to be started, with these arguments.
    pub fn with(self, arguments: &[&str]) -> Program {
        self.program.args(["--name", &self.name, "--"]).arg(self.executable).args(arguments)
    }
}
