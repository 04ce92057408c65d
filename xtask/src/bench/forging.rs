//! `cargo xtask bench forging`: tests the webhook's decision with a million forged pods. Then it removes ten of its
//! checks one at a time, in a copy of the sources, and ten thousand forged pods must find each.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{bail, ensure};

use super::sources;
use crate::cargo;
use crate::workspace::Workspace;

const PACKAGE: [&str; 6] = ["test", "--locked", "--quiet", "--package", "kerf-webhook", "--lib"];
const MILLION: &str = "admit::forging_tests::a_million_forged_pods_get_no_more_than_honest_ones";
const TEN_THOUSAND: &str = "admit::forging_tests::a_forged_pod_gets_no_more_than_an_honest_one";
const FOUND: &str = "a forged pod gets more than an honest one";

struct Removal {
    check: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const REMOVALS: [Removal; 10] = [
    Removal {
        check: "a name is of a kind that the policy allows",
        file: "core/src/policy/choose/mod.rs",
        from: "if !self.kinds.contains(&kind) || strongest_class(resource) < self.class {",
        to: "if false {",
    },
    Removal {
        check: "a neutral name is of kinds that the policy allows",
        file: "core/src/policy/choose/candidates.rs",
        from: "let kinds = kinds.iter().copied().filter(may_be).collect();",
        to: "let kinds = Kind::ALL.to_vec();",
    },
    Removal {
        check: "a document puts back only limits by which kerf is asked",
        file: "core/src/admission/restored.rs",
        from: "asked.iter().filter(|(name, _)| asks_by(name))",
        to: "asked.iter()",
    },
    Removal {
        check: "an assignment is taken out",
        file: "core/src/admission/restored.rs",
        from: "keys::RESERVED.iter().filter(|key| has(\"annotations\", key))",
        to: "[keys::REQUEST].iter().filter(|key| has(\"annotations\", key))",
    },
    Removal {
        check: "kerf's label is taken out",
        file: "core/src/admission/restored.rs",
        from: "keys::RESERVED.iter().chain([&keys::SLICED]).filter(|key| has(\"labels\", key))",
        to: "keys::RESERVED.iter().filter(|key| has(\"labels\", key))",
    },
    Removal {
        check: "a container keeps no other name that asks",
        file: "webhook/src/patch/resources.rs",
        from: "filter(|key| !is_given(key) && asks_by(key))",
        to: "filter(|key| !is_given(key) && key.starts_with(\"gpu-\"))",
    },
    Removal {
        check: "the pod's scheduler is the policy's",
        file: "core/src/admission/fit.rs",
        from: "if wanted.is_empty() || found == wanted {",
        to: "if true {",
    },
    Removal {
        check: "no pod names its node",
        file: "core/src/admission/fit.rs",
        from: "(Some(_), NodeNameRule::Refuse) => Err(Unfit::NodeName(AskError::NodeName)),",
        to: "(Some(_), NodeNameRule::Refuse) => Ok(None),",
    },
    Removal {
        check: "no privileged container has a slice",
        file: "core/src/request/read.rs",
        from: "containers.find(privileged).map_or(",
        to: "containers.find(privileged).filter(|_| pod.spec.containers.is_empty()).map_or(",
    },
    Removal {
        check: "a policy's largest size is the largest",
        file: "core/src/policy/choose/mod.rs",
        from: "(_, Some(max)) if size > max => Err(Denied::TooLarge",
        to: "(_, Some(max)) if size > max && size > LARGEST_SIZE => Err(Denied::TooLarge",
    },
];

pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    if !arguments.iter().any(|flag| flag == "--removals-only") {
        let million = ["--release", "--", "--exact", "--ignored", "--nocapture", MILLION];
        cargo::run(workspace, "a million forged pods", &[&PACKAGE[..], &million[..]].concat())?;
    }
    let copy = workspace.forging();
    sources::copy(workspace, &copy)?;
    let mut found = 0;
    for (number, removal) in REMOVALS.iter().enumerate() {
        eprintln!("xtask: check {} of {} removed: {}", number + 1, REMOVALS.len(), removal.check);
        let is_found = is_found(&copy, removal)?;
        println!("without \"{}\": {}", removal.check, if is_found { "found" } else { "NOT FOUND" });
        found += usize::from(is_found);
    }
    println!(
        "checks removed one at a time, each found within 10,000 forged pods: {found} of {}",
        REMOVALS.len()
    );
    ensure!(found == REMOVALS.len(), "the forged pods do not find every removed check");
    Ok(())
}

/// Whether the test fails without the check. Another failure is an error, because it proves nothing about the check.
fn is_found(copy: &Path, removal: &Removal) -> anyhow::Result<bool> {
    let file = copy.join(removal.file);
    let source = fs::read_to_string(&file)?;
    fs::write(&file, removal.applied(&source)?)?;
    let mut test = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    test.current_dir(copy).env("CARGO_TARGET_DIR", copy.join("target"));
    test.args(PACKAGE).args(["--", "--exact", "--nocapture", TEN_THOUSAND]);
    let output = test.stdin(Stdio::null()).output()?;
    // The check is restored before the result is read, so that an error does not leave the copy without it.
    fs::write(&file, source)?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    if !output.status.success() && !said.contains(FOUND) {
        bail!("without \"{}\" the test did not run:\n{said}", removal.check);
    }
    Ok(!output.status.success())
}

impl Removal {
    fn applied(&self, source: &str) -> anyhow::Result<String> {
        let times = source.matches(self.from).count();
        ensure!(times == 1, "{} has {:?} {times} times and not once", self.file, self.from);
        Ok(source.replace(self.from, self.to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_to_remove_is_in_its_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for removal in &REMOVALS {
            let source = fs::read_to_string(root.join(removal.file)).unwrap();
            assert_ne!(removal.applied(&source).unwrap(), source);
        }
    }
}
