//! Which programs there are, from which wrapper module and package each comes, and how it is linked.

/// The wrapper modules under `tests/tools`, one each so that none raises another's versions.
pub const MODULES: [&str; 3] = ["kubernetes", "etcd", "kwok"];

/// Kubernetes' version as the programs report it. Must agree with `tests/tools/kubernetes/go.mod` (a test compares).
pub const KUBERNETES_VERSION: &str = "v1.36.4";

/// One program of the local control plane.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// File name of the executable.
    pub name: &'static str,
    /// Folder under `tests/tools`.
    pub module: &'static str,
    /// Go package of its `main`.
    pub package: &'static str,
}

/// Everything `cargo xtask tools` provides, in build order: first what a control plane cannot do without.
pub const PROGRAMS: [Program; 6] = [
    Program { name: "etcd", module: "etcd", package: "go.etcd.io/etcd/server/v3" },
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Program { name: "kwok", module: "kwok", package: "sigs.k8s.io/kwok/cmd/kwok" },
];

const fn kubernetes(name: &'static str, package: &'static str) -> Program {
    Program { name, module: "kubernetes", package }
}

/// The packages whose variables Kubernetes' own build sets (its `hack/lib/version.sh`).
const VERSION_PACKAGES: [&str; 2] = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"];

/// Linker flags: no symbol table, no DWARF (a third of the size), and for Kubernetes the version, without which every
/// program calls itself v0.0.0 and kubectl warns of version skew.
pub fn linker_flags(module: &str) -> String {
    let mut flags = vec!["-s -w".to_owned()];
    if module == "kubernetes" {
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
        let go_mod = Workspace::locate().unwrap().go_module("kubernetes").join("go.mod");
        let text = std::fs::read_to_string(go_mod).unwrap();
        let mut required = text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>());
        assert!(required.any(|words| words == ["k8s.io/kubernetes", KUBERNETES_VERSION]));
    }

    #[test]
    fn every_program_is_a_tool_of_its_module() {
        let workspace = Workspace::locate().unwrap();
        for program in &PROGRAMS {
            let text = std::fs::read_to_string(workspace.go_module(program.module).join("go.mod")).unwrap();
            assert!(
                text.lines().any(|line| line.trim().trim_start_matches("tool ") == program.package),
                "{program:?}"
            );
        }
    }

    #[test]
    fn only_kubernetes_is_told_a_version() {
        assert_eq!(linker_flags("etcd"), "-s -w");
        let flags = linker_flags("kubernetes");
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.36.4 "));
        assert!(flags.contains("-X k8s.io/client-go/pkg/version.gitMinor=36 "));
    }
}
