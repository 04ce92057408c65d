//! The table of Go programs: their wrapper modules and packages, and how they are linked.

#[derive(Debug)]
pub struct Set {
    pub store: &'static str,
    /// The wrapper modules under `tests/tools`. Those of Kubernetes have exactly the versions that Kubernetes requires.
    pub modules: &'static [&'static str],
    pub programs: &'static [Program],
}

impl Set {
    pub fn names(&self) -> Vec<&'static str> {
        self.programs.iter().map(|program| program.name).collect()
    }
}

pub const CONTROL_PLANE: Set = Set { store: "k8s-tools", modules: &["kubernetes"], programs: &PROGRAMS };

/// The programs that make a machine a node. They are a separate set, because no test needs them.
pub const NODE: Set = Set {
    store: "node-tools",
    modules: &["kubelet", "containerd", "runc", "pause", "cni"],
    programs: &NODE_PROGRAMS,
};

/// The tools with which an admin installs kerf.
pub const ADMIN: Set = Set { store: "admin-tools", modules: &["admin"], programs: &ADMIN_PROGRAMS };

/// NVIDIA's own programs of a node with their device plugin. Tests run them on the simulated NVML.
pub const NVIDIA: Set = Set { store: "nvidia-tools", modules: &["nvidia"], programs: &NVIDIA_PROGRAMS };

/// The tools that test alerts, metrics and the dashboard. The demo does not need them.
pub const MONITORING: Set =
    Set { store: "monitoring-tools", modules: &["prometheus"], programs: &MONITORING_PROGRAMS };

/// The version that Kubernetes' programs report. A test compares it with `tests/tools/kubernetes/go.mod`.
pub const KUBERNETES_VERSION: &str = "v1.36.4";

#[derive(Debug)]
pub struct ModuleFiles {
    /// The folder under cargo's target folder, in which each version has a folder.
    pub store: &'static str,
    pub module: &'static str,
    pub version: &'static str,
    /// The module's checksum in go.sum's form.
    pub sum: &'static str,
    pub folder: &'static str,
    pub endings: &'static [&'static str],
}

/// Files that judge manifests: the newest `OpenAPI` files of each version of Kubernetes that kerf supports
/// (`kerf_tests::openapi` reads what it finds), and the CRDs of other programs that the chart and kerf can use.
pub const FILES: [ModuleFiles; 8] = [
    openapi("v1.33.13", "h1:bmH31xUdSzeA5vk0wZAK9MZp11mdLuzUSeKk0qN3hPQ="),
    openapi("v1.34.4", "h1:Yy6R4QB8C9kJPp25GFqEvX5XQwY5qzKeqD0Xx6oAcmk="),
    openapi("v1.35.4", "h1:o/8dBC/pHVpYoGV4OAIytAlNPZbdYVTXJHoYvXC4qzM="),
    openapi(KUBERNETES_VERSION, "h1:08GT0ZOMtyCcRnslyvnpWurf1wm20KHbC/aRS+0LxSo="),
    openapi("v1.37.2", "h1:A2VDEiObzkYqFTKhSsn0ZEb0RlLEXpHWj93gi2HqEwE="),
    ModuleFiles {
        store: "crds/prometheus-operator",
        module: "github.com/prometheus-operator/prometheus-operator",
        version: "v0.85.0",
        sum: "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        folder: "example/prometheus-operator-crd",
        endings: &["_servicemonitors.yaml", "_podmonitors.yaml", "_prometheusrules.yaml"],
    },
    ModuleFiles {
        store: "crds/cert-manager",
        module: "github.com/cert-manager/cert-manager",
        version: "v1.21.2",
        sum: "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
        folder: "deploy/crds",
        endings: &["_certificates.yaml", "_issuers.yaml"],
    },
    // A newer version cannot be used, because this is the newest one that is a Go module.
    ModuleFiles {
        store: "crds/gpu-operator",
        module: "github.com/NVIDIA/gpu-operator",
        version: "v1.11.1",
        sum: "h1:MuM3nFga8dcK0krgxarYaSmpGSnFYOl2zBQRBNvHKD0=",
        folder: "config/crd/bases",
        endings: &["_clusterpolicies.yaml"],
    },
];

const fn openapi(version: &'static str, sum: &'static str) -> ModuleFiles {
    ModuleFiles {
        store: "openapi",
        module: "k8s.io/kubernetes",
        version,
        sum,
        folder: "api/openapi-spec/v3",
        endings: &["_openapi.json"],
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    pub name: &'static str,
    pub module: &'static str,
    pub package: &'static str,
    pub c: C,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum C {
    None,
    Static,
    /// Declarations of a library that the program loads at run time. The library may be missing at build time.
    OpensLibraries,
}

/// The control plane's programs in build order, the essential ones first.
pub const PROGRAMS: [Program; 5] = [
    pure("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
];

/// The programs that `cargo xtask gpu pack` needs besides the control plane's.
const NODE_PROGRAMS: [Program; 8] = [
    pure("kubelet", "kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    pure("containerd", "containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
    pure(
        "containerd-shim-runc-v2",
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    pure("ctr", "containerd", "github.com/containerd/containerd/v2/cmd/ctr"),
    // runc enters namespaces before Go's threads start, so that code must be C.
    Program { name: "runc", module: "runc", package: "github.com/opencontainers/runc", c: C::Static },
    pure("pause", "pause", "."),
    pure("ptp", "cni", "github.com/containernetworking/plugins/plugins/main/ptp"),
    pure("host-local", "cni", "github.com/containernetworking/plugins/plugins/ipam/host-local"),
];

/// The chart has `apiVersion: v2`, so Helm 3 reads it as well.
const ADMIN_PROGRAMS: [Program; 2] = [
    pure("kustomize", "admin", "sigs.k8s.io/kustomize/kustomize/v5"),
    pure("helm", "admin", "helm.sh/helm/v4/cmd/helm"),
];

const NVIDIA_PROGRAMS: [Program; 4] = [
    nvidia("nvidia-device-plugin", "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"),
    nvidia("gpu-feature-discovery", "github.com/NVIDIA/k8s-device-plugin/cmd/gpu-feature-discovery"),
    nvidia("mps-control-daemon", "github.com/NVIDIA/k8s-device-plugin/cmd/mps-control-daemon"),
    // This program loads no library. It is built like the others all the same, because it then shares their compiled
    // packages and takes 7 s instead of 64.
    nvidia("config-manager", "github.com/NVIDIA/k8s-device-plugin/cmd/config-manager"),
];

/// Prometheus' own tool, and a server of its packages. The server is our own because it has only what tests need, and
/// takes less than half the time to compile.
const MONITORING_PROGRAMS: [Program; 2] =
    [pure("prometheus", "prometheus", "."), pure("promtool", "prometheus", PROMTOOL)];

const PROMTOOL: &str = "github.com/prometheus/prometheus/cmd/promtool";

const fn kubernetes(name: &'static str, package: &'static str) -> Program {
    pure(name, "kubernetes", package)
}

const fn pure(name: &'static str, module: &'static str, package: &'static str) -> Program {
    Program { name, module, package, c: C::None }
}

const fn nvidia(name: &'static str, package: &'static str) -> Program {
    Program { name, module: "nvidia", package, c: C::OpensLibraries }
}

/// Build tags. The discovery of clouds' services is left out, because promtool then has a fifth less to compile.
pub fn tags(module: &str) -> &'static str {
    if module == "prometheus" { "remove_all_sd" } else { "" }
}

/// The packages whose variables Kubernetes' own build sets (its `hack/lib/version.sh`).
const VERSION_PACKAGES: [&str; 2] = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"];

/// Linker flags: no symbol table and no DWARF, which saves a third of the size, and Kubernetes' version. Without the
/// version every program reports v0.0.0, and kubectl warns of version skew.
pub fn linker_flags(module: &str) -> String {
    let mut flags = vec!["-s -w".to_owned()];
    if matches!(module, "kubernetes" | "kubelet") {
        let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        for package in VERSION_PACKAGES {
            flags.push(format!("-X {package}.gitVersion={KUBERNETES_VERSION}"));
            flags.push(format!("-X {package}.gitMajor={major}"));
            flags.push(format!("-X {package}.gitMinor={minor}"));
            flags.push(format!("-X {package}.gitTreeState=clean"));
        }
    }
    flags.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn the_reported_version_is_the_one_that_go_mod_requires() {
        for module in ["kubernetes", "kubelet"] {
            let go_mod = Workspace::locate().unwrap().go_module(module).join("go.mod");
            let text = std::fs::read_to_string(go_mod).unwrap();
            let mut required = text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>());
            assert!(required.any(|words| words == ["k8s.io/kubernetes", KUBERNETES_VERSION]), "{module}");
        }
    }

    #[test]
    fn every_program_is_a_tool_of_its_module() {
        let workspace = Workspace::locate().unwrap();
        let of_others = NODE_PROGRAMS.iter().filter(|program| program.module != "pause");
        let programs = PROGRAMS.iter().chain(of_others).chain(&ADMIN_PROGRAMS).chain(&NVIDIA_PROGRAMS);
        let programs = programs.chain(MONITORING_PROGRAMS.iter().filter(|program| program.package != "."));
        for program in programs {
            let text = std::fs::read_to_string(workspace.go_module(program.module).join("go.mod")).unwrap();
            assert!(
                text.lines().any(|line| line.trim().trim_start_matches("tool ") == program.package),
                "{program:?}"
            );
        }
    }

    #[test]
    fn shared_packages_are_compiled_once() {
        let go_mod = |module| {
            let path = Workspace::locate().unwrap().go_module(module).join("go.mod");
            std::fs::read_to_string(path).unwrap()
        };
        let kubernetes = go_mod("kubernetes");
        for module in ["admin", "nvidia"] {
            let text = go_mod(module);
            let replaced = text.lines().filter_map(|line| line.split_once(" => ")).map(|(_, to)| to);
            for pinned in replaced {
                let is_it = |line: &str| {
                    line.split(" // ").next() == Some(pinned) || line.ends_with(&format!(" => {pinned}"))
                };
                assert!(kubernetes.lines().any(|line| is_it(line.trim())), "{module}: {pinned}");
            }
        }
    }

    #[test]
    fn only_kubernetes_programs_get_a_version() {
        assert_eq!(linker_flags("admin"), "-s -w");
        let flags = linker_flags("kubernetes");
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.36.4 "));
        assert!(flags.contains("-X k8s.io/client-go/pkg/version.gitMinor=36 "));
    }
}
