//! `KUBEBUILDER_ASSETS`: a folder of built programs (envtest's convention), which need not be built here.

use std::env;
use std::path::PathBuf;

use super::catalog::CONTROL_PLANE;

/// The programs in envtest's archives. A folder without all three is not used.
const REQUIRED: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];

#[derive(Debug)]
pub struct Assets {
    folder: PathBuf,
}

impl Assets {
    pub fn from_env() -> Option<Self> {
        let folder = env::var_os("KUBEBUILDER_ASSETS").filter(|value| !value.is_empty())?;
        Some(Self { folder: PathBuf::from(folder) })
    }

    pub fn holds(&self, name: &str) -> bool {
        self.lacks(&REQUIRED).is_empty() && self.folder.join(name).is_file()
    }

    pub fn describe(&self) -> String {
        let folder = self.folder.display();
        let least = self.lacks(&REQUIRED);
        if !least.is_empty() {
            return format!("KUBEBUILDER_ASSETS ({folder}) lacks {}: it is not used", least.join(", "));
        }
        let names = CONTROL_PLANE.names();
        let missing = self.lacks(&names);
        if missing.is_empty() {
            return format!("KUBEBUILDER_ASSETS ({folder}) has all {} programs", names.len());
        }
        format!("KUBEBUILDER_ASSETS ({folder}) is used, but lacks {}: these are built", missing.join(", "))
    }

    fn lacks<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        names.iter().copied().filter(|name| !self.folder.join(name).is_file()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assets_with(test: &str, names: &[&str]) -> Assets {
        let folder = env::temp_dir().join(format!("kerf-xtask-assets-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in names {
            std::fs::write(folder.join(name), "").unwrap();
        }
        Assets { folder }
    }

    impl Drop for Assets {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    #[test]
    fn envtests_folder_provides_three_programs() {
        let assets = assets_with("envtest", &REQUIRED);
        assert!(assets.holds("etcd") && !assets.holds("kube-scheduler"));
        assert!(
            assets.describe().ends_with("lacks kube-scheduler, kube-controller-manager: these are built")
        );
    }

    #[test]
    fn a_folder_without_an_api_server_is_not_used_at_all() {
        let assets = assets_with("half", &["etcd", "kubectl"]);
        assert!(!assets.holds("etcd"));
        assert!(assets.describe().ends_with("lacks kube-apiserver: it is not used"));
    }

    #[test]
    fn a_full_folder_leaves_nothing_to_build() {
        let assets = assets_with("full", &CONTROL_PLANE.names());
        assert!(CONTROL_PLANE.programs.iter().all(|program| assets.holds(program.name)));
        assert!(assets.describe().ends_with("has all 5 programs"));
    }
}
