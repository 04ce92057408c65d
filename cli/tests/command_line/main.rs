//! Tests the real program from a shell's side, with stand-ins for API servers, proxies and logins.

#![expect(clippy::unwrap_used, reason = "a fault of a test's own shows where it is")]

mod completion;
mod exits;
mod kubeconfigs;
mod logins;
mod pipes;
mod proxies;
mod reference;
mod stand_in;
mod versions;

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Home(tempfile::TempDir);

impl Home {
    fn new(cluster: &Value, user: &Value) -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        let context = json!({"cluster": "c", "user": "u", "namespace": "team"});
        let config = json!({
            "current-context": "x", "contexts": [{"name": "x", "context": context}],
            "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": user}],
        });
        std::fs::write(home.kubeconfig(), config.to_string()).unwrap();
        home
    }

    fn for_server(server: &str) -> Self {
        Self::new(&json!({"server": server}), &json!({}))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn kubeconfig(&self) -> PathBuf {
        self.path().join("config")
    }

    /// The command without any variable of this process's environment, so that no kubeconfig or proxy of the machine
    /// counts.
    fn kerf(&self, words: &[&str]) -> Command {
        let mut kerf = Command::new(env!("CARGO_BIN_EXE_kerf"));
        kerf.env_clear().env("HOME", self.path()).env("PATH", "/usr/bin:/bin").current_dir(self.path());
        kerf.env("KUBECONFIG", self.kubeconfig()).args(words);
        kerf
    }

    fn run(&self, words: &[&str]) -> Ran {
        self.kerf(words).output().unwrap().into()
    }
}

#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}
