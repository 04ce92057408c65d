//! Tests completion as shells and kubectl ask for it.

use super::Home;
use super::stand_in::{StandIn, list, nodes};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn completed(home: &Home, words: &[&str]) -> Vec<String> {
    let mut kerf = home.kerf(&["--", "kerf"]);
    let output = kerf.args(words).env("COMPLETE", "kubectl").output().unwrap();
    let ran = super::Ran::from(output);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{words:?}");
    let lines: Vec<String> =
        ran.stdout.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect();
    assert_eq!(lines.last().map(String::as_str), Some(":4"), "{words:?}");
    lines[..lines.len() - 1].to_vec()
}

#[test]
fn names_are_completed_from_the_cluster_that_the_flags_select() {
    let named = |names: &[&str]| {
        list(&names.iter().map(|name| json!({"metadata": {"name": name}})).collect::<Vec<Value>>())
    };
    let mut objects = nodes(&["gpu-1", "gpu-2", "big"]);
    objects.push(("/api/v1/namespaces", named(&["team", "other"])));
    objects.push(("/api/v1/namespaces/team/pods", named(&["web-1", "db"])));
    objects.push(("/api/v1/namespaces/other/pods", named(&["web-2"])));
    let api = StandIn::api(&objects);
    let home = Home::for_server(&format!("http://{}", api.address));
    for (words, expected) in [
        (&["nodes", "gpu"][..], &["gpu-1", "gpu-2"][..]),
        (&["release", "b"], &["big"]),
        (&["explain", "we"], &["web-1"]),
        (&["explain", "-n", "other", "we"], &["web-2"]),
        (&["explain", "--namespace=other", "w"], &["web-2"]),
        (&["explain", "-n", "o"], &["other"]),
        (&["check", "--kerf-namespace", "t"], &["team"]),
        (&["bench", "profile", "d"], &["db"]),
        (&["nodes", "--context", ""], &["x"]),
        (&["nodes", "--user", ""], &["u"]),
    ] {
        assert_eq!(completed(&home, words), expected, "{words:?}");
    }
    // The preceding flags select another cluster.
    let other = StandIn::api(&nodes(&["elsewhere"]));
    let server = format!("http://{}", other.address);
    assert_eq!(completed(&home, &["nodes", "--server", &server, ""]), ["elsewhere"]);
}

#[test]
fn an_unreachable_cluster_completes_nothing_and_does_not_block() {
    let silent = StandIn::silent();
    for server in ["https://127.0.0.1:1".to_owned(), format!("http://{}", silent.address)] {
        let begun = Instant::now();
        assert_eq!(completed(&Home::for_server(&server), &["nodes", ""]), Vec::<String>::new(), "{server}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{server}: {:?}", begun.elapsed());
    }
    // A plugin that prompts for a password must not block either.
    let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["60"]}});
    let begun = Instant::now();
    assert_eq!(
        completed(&Home::new(&json!({"server": "https://127.0.0.1:1"}), &exec), &["nodes", ""]),
        Vec::<String>::new()
    );
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn each_shell_gets_a_script_that_asks_kerf() {
    let home = Home::for_server("https://127.0.0.1:1");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = home.run(&["completion", shell]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.contains("kerf") && ran.stdout.contains("COMPLETE"), "{shell}: {}", ran.stdout);
    }
    let script = home.run(&["completion", "kubectl"]).stdout;
    assert!(
        script.starts_with("#!/bin/sh\n") && script.contains("COMPLETE=kubectl exec kerf -- kerf"),
        "{script}"
    );
}

/// Runs the script in a real bash, because only bash can show what Tab offers.
#[test]
fn bash_completes_with_the_script() {
    let api = StandIn::api(&nodes(&["gpu-1", "gpu-2"]));
    let home = Home::for_server(&format!("http://{}", api.address));
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kerf"), bin.join("kerf")).unwrap();
    let script = "source <(kerf completion bash); COMP_WORDS=(kerf nodes gpu); COMP_CWORD=2; COMP_TYPE=9; \
                  $(complete -p kerf | sed 's/.*-F \\([^ ]*\\).*/\\1/') kerf gpu nodes; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = std::process::Command::new("/bin/bash");
    bash.args(["--norc", "-c", script])
        .env_clear()
        .env("HOME", home.path())
        .env("KUBECONFIG", home.kubeconfig());
    let ran =
        super::Ran::from(bash.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).output().unwrap());
    assert_eq!(ran.stdout, "gpu-1\ngpu-2\n", "{ran:?}");
}
