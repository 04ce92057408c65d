//! Tests that the program accepts all examples, and that the reference page is complete.

use clap::{Command, CommandFactory as _, Parser as _};
use kerf_cli::command::Cli;
use kerf_cli::exit::Exit;
use std::fmt::Write as _;
use std::path::Path;

fn commands() -> Vec<Command> {
    let mut kerf = Cli::command().term_width(100);
    kerf.build();
    let mut found = Vec::new();
    collect(&kerf, &mut found);
    found
}

fn collect(command: &Command, found: &mut Vec<Command>) {
    let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set());
    let inner: Vec<&Command> = inner.collect();
    if inner.is_empty() {
        found.push(command.clone());
    }
    for inner in inner {
        collect(inner, found);
    }
}

fn name(command: &Command) -> &str {
    command.get_bin_name().unwrap()
}

fn calls(line: &str) -> Vec<Vec<String>> {
    let words = shlex::split(line).unwrap();
    let calls = words.split(|word| word == "|").map(|call| {
        call.iter().take_while(|word| !matches!(word.as_str(), ">" | "<")).cloned().collect::<Vec<_>>()
    });
    calls.filter(|call| call.first().is_some_and(|first| first == "kerf")).collect()
}

#[test]
fn each_command_has_examples_that_it_takes() {
    for command in commands() {
        let name = name(&command);
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = help.strip_prefix("Examples:\n").unwrap_or_else(|| panic!("{name} has no examples"));
        let examples = examples.replace("\\\n", "");
        let mut own = 0;
        for line in examples.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            for call in calls(line) {
                own += usize::from(call.join(" ").starts_with(name));
                if let Err(error) = Cli::try_parse_from(&call) {
                    panic!("{name}: {line}\n{error}");
                }
            }
        }
        assert!(own > 0, "{name} has no example of its own");
    }
}

fn help(command: &Command, headings: &[&str], only: bool) -> String {
    let is_of = |arg: &clap::Arg| arg.get_help_heading().is_some_and(|heading| headings.contains(&heading));
    let mut shown = command.clone().mut_args(|arg| if is_of(&arg) == only { arg } else { arg.hide(true) });
    let text = shown.render_long_help().to_string();
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

const SHARED: [&str; 2] = ["Connection", "Appearance"];

fn reference() -> String {
    let mut text = "## Exit codes\n\n| code | cause |\n|---|---|\n".to_owned();
    for exit in Exit::ALL {
        writeln!(text, "| {} | {} |", exit.code(), exit.meaning()).unwrap();
    }
    let commands = commands();
    let nodes = commands.iter().find(|command| name(command) == "kerf nodes").unwrap();
    let connection = help(nodes, &SHARED, true);
    let flags = &connection[connection.find("Connection:").unwrap()..connection.find("Examples:").unwrap()];
    write!(text, "\n## Flags of several commands\n\n```text\n{}\n```\n", flags.trim_end()).unwrap();
    for command in commands {
        write!(text, "\n## {}\n\n```text\n{}```\n", name(&command), help(&command, &SHARED, false)).unwrap();
    }
    text
}

const MARK: &str = "<!-- From here on this page is written by the program: KERF_UPDATE=1 cargo test -p kerf --test command_line -->\n";

#[test]
fn the_reference_page_has_every_command_with_its_flags() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (written, printed) = page.split_once(MARK).unwrap();
    let expected = format!("\n{}", reference());
    if std::env::var_os("KERF_UPDATE").is_some() {
        return std::fs::write(&path, format!("{written}{MARK}{expected}")).unwrap();
    }
    assert!(
        printed == expected,
        "docs/cli.md is of another version: KERF_UPDATE=1 cargo test -p kerf --test command_line"
    );
}
