//! The hook that this repository ships for commit messages.

use std::process::Command;

use anyhow::Context as _;
use kerf_tests::cluster::root;

/// Whether the hook accepts the message, and what it prints. The locale C is the one that could make characters bytes.
fn judge(message: &str) -> anyhow::Result<(bool, String)> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), message)?;
    let hook = root().join(".githooks/commit-msg");
    let output =
        Command::new(hook).arg(file.path()).env("LC_ALL", "C").output().context("failed to run the hook")?;
    Ok((output.status.success(), String::from_utf8(output.stderr)?))
}

#[test]
fn the_hook_accepts_an_area_and_an_imperative() -> anyhow::Result<()> {
    let longest = format!("agent: {}", "x".repeat(65));
    let longest_beyond_ascii = format!("agent: {}", "ä".repeat(65));
    for message in [
        "agent: restore MIG mode after a driver reload",
        "core/plugin_layout, node-agent: move two types\n\nBoth were used by one module only.\n",
        "docs: name the port\n# Please enter the commit message for your changes.\n",
        "Merge branch 'main' into other",
        &longest,
        &longest_beyond_ascii,
    ] {
        assert_eq!(judge(message)?, (true, String::new()), "{message}");
    }
    Ok(())
}

#[test]
fn the_hook_says_what_is_wrong_with_a_message() -> anyhow::Result<()> {
    let long = format!("agent: {}", "x".repeat(66));
    let long_beyond_ascii = format!("agent: {}", "ä".repeat(66));
    for (message, remedy) in [
        ("Fix a bug", "write `area: imperative`"),
        ("Agent: fix a bug", "write `area: imperative`"),
        ("agent: fix a bug.", "without a full stop"),
        ("agent:fix a bug", "write `area: imperative`"),
        ("agent: fix a bug\nIt was old.", "an empty line belongs between"),
        (&long, "more than 72 characters"),
        (&long_beyond_ascii, "more than 72 characters"),
    ] {
        let (is_accepted, printed) = judge(message)?;
        assert!(!is_accepted && printed.contains(remedy), "{message}: {printed}");
    }
    Ok(())
}
