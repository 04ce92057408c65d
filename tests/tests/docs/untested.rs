//! Writes the page with the commands that no test runs.

use std::fmt::Write as _;

use kerf_tests::cluster::root;
use kerf_tests::docs::{Block, Elsewhere, Role, pages};

/// The page, which this test writes.
const PAGE: &str = "docs/reference/untested-commands.md";

const HEAD: &str = "\
# Commands that no test runs

Tests run the commands of all other shell blocks in the pages ([how](../../CONTRIBUTING.md#words)).
Of the commands below a test checks that `kerf` has these subcommands, and that the files of the checkout exist.
A test writes this page: `KERF_UPDATE=1 cargo xtask test system docs::untested`.
";

/// What each kind of command needs, in the order of the page.
const NEEDS: [(Elsewhere, &str, &str); 5] = [
    (Elsewhere::Gate, "Part of the gate", "They are the gate, or a part of it that takes long."),
    (Elsewhere::Gpu, "A GPU", "They need a machine with an NVIDIA GPU."),
    (
        Elsewhere::Cluster,
        "A cluster with more than Kubernetes",
        "They need other programs in the cluster, or objects that only a real incident has.",
    ),
    (Elsewhere::Images, "A registry or a container engine", "They push, pull, import or verify images."),
    (Elsewhere::Cloud, "An account of a cloud", "They change machines or networks at a cloud provider."),
];

/// The commands of all pages that have this need.
fn section(needs: Elsewhere) -> anyhow::Result<String> {
    let mut section = String::new();
    for page in pages(&root())? {
        let blocks = page.blocks.iter().filter(|block| block.role == Role::Elsewhere(needs));
        let in_one_line = |command: String| command.split_whitespace().collect::<Vec<_>>().join(" ");
        let commands: Vec<String> = blocks.flat_map(Block::commands).map(in_one_line).collect();
        if !commands.is_empty() {
            let path = page.path.display();
            write!(section, "\n[{path}](../../{path}):\n\n```text\n{}\n```\n", commands.join("\n"))?;
        }
    }
    Ok(section)
}

#[test]
fn the_page_has_all_commands_that_no_test_runs() -> anyhow::Result<()> {
    let mut made = HEAD.to_owned();
    for (needs, title, why) in NEEDS {
        write!(made, "\n## {title}\n\n{why}\n{}", section(needs)?)?;
    }
    let path = root().join(PAGE);
    if std::env::var_os("KERF_UPDATE").is_some() {
        std::fs::write(&path, &made)?;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == made,
        "{PAGE} is of another version: KERF_UPDATE=1 cargo xtask test system docs::untested"
    );
    Ok(())
}
