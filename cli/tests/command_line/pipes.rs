//! Tests output on a closed pipe and on a terminal, with and without colours.

use super::stand_in::{StandIn, nodes};
use super::{Home, Ran};
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

#[test]
fn a_closed_pipe_ends_a_command_without_a_message() {
    let home = Home::for_server("https://127.0.0.1:1");
    // This is far more than a pipe holds, so that kerf is still writing when the reader goes.
    let jobs = kerf_cli::output::lines((0..10_000).map(|job| format!("{job} 0 1g.10gb")));
    std::fs::write(home.path().join("jobs"), jobs).unwrap();
    for words in
        [&["simulate", "--gpus=1", "-f", "jobs"][..], &["simulate", "--gpus=1", "-f", "jobs", "-o", "yaml"]]
    {
        let mut kerf = home.kerf(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(kerf.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(!first.is_empty());
        let ran = Ran::from(kerf.wait_with_output().unwrap());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(141), ""), "{words:?}");
    }
}

#[test]
fn a_pipe_without_a_reader_is_no_reported_error() {
    let api = StandIn::api(&nodes(&["gpu-1"]));
    let home = Home::for_server(&format!("http://{}", api.address));
    std::fs::write(home.path().join("policy.yaml"), "").unwrap();
    for words in [
        &["nodes"][..],
        &["version"],
        &["check"],
        &["scheduler-config"],
        &["completion", "bash"],
        &["policy", "schema", "gpupolicy"],
        &["policy", "check", "-f", "policy.yaml"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = Ran::from(home.kerf(words).stdout(writer).stderr(Stdio::piped()).output().unwrap());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(141), ""), "{words:?}");
    }
}

#[test]
fn colours_are_printed_on_request() {
    let api = StandIn::api(&nodes(&["gpu-1"]));
    let home = Home::for_server(&format!("http://{}", api.address));
    let escape = '\u{1b}';
    assert!(!home.run(&["check"]).stdout.contains(escape));
    let always = home.run(&["check", "--color", "always"]).stdout;
    assert!(always.contains("\u{1b}[31m✗\u{1b}[0m"), "{always}");
    assert!(!home.run(&["--color=never", "check"]).stdout.contains(escape));
}

/// The output on a terminal with these variables. util-linux's `script` provides the terminal.
fn on_a_terminal(home: &Home, words: &str, variables: &[(&str, &str)]) -> Option<String> {
    let kerf = format!("{} {words}", env!("CARGO_BIN_EXE_kerf"));
    let mut script = std::process::Command::new("script");
    script
        .args(["--quiet", "--return", "--command", &kerf, "/dev/null"])
        .env_clear()
        .env("HOME", home.path());
    script.env("KUBECONFIG", home.kubeconfig()).env("PATH", "/usr/bin:/bin").envs(variables.iter().copied());
    Some(Ran::from(script.stdin(Stdio::null()).output().ok()?).stdout)
}

#[test]
fn a_terminal_has_colours_unless_it_is_dumb_or_no_color_is_set() {
    let api = StandIn::api(&nodes(&["gpu-1"]));
    let home = Home::for_server(&format!("http://{}", api.address));
    let Some(plain) = on_a_terminal(&home, "check", &[("TERM", "xterm")]) else {
        return eprintln!("NOT RUN: there is no `script` to make a terminal");
    };
    assert!(plain.contains("\u{1b}[31m✗\u{1b}[0m"), "{plain:?}");
    for variables in [&[("TERM", "dumb")][..], &[("TERM", "xterm"), ("NO_COLOR", "1")]] {
        let text = on_a_terminal(&home, "check", variables).unwrap();
        assert!(text.contains('✗') && !text.contains('\u{1b}'), "{variables:?}: {text:?}");
    }
    let text = on_a_terminal(&home, "--color never check", &[("TERM", "xterm")]).unwrap();
    assert!(text.contains('✗') && !text.contains('\u{1b}'), "{text:?}");
}
