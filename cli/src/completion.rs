//! Completion of command lines, by clap's engine: shells, and kubectl for `kubectl kerf`, run `kerf` with COMPLETE set.

use crate::{completion_words, output};
use clap::{Args as ClapArgs, Command, ValueEnum};
use clap_complete::env::{Bash, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

const VARIABLE: &str = "COMPLETE";

/// cobra's `ShellCompDirectiveNoFileComp`. Without it kubectl would also complete file names.
const NO_FILES: &str = ":4";

const COMPLETERS: Shells<'static> = Shells(&[&Bash, &Zsh, &Fish, &Elvish, &Powershell, &Kubectl]);

const EXAMPLES: &str = "\
Examples:
  # In ~/.bashrc: source <(kerf completion bash)
  kerf completion bash

  # For kubectl kerf, in a folder of the PATH
  kerf completion kubectl > ~/.local/bin/kubectl_complete-kerf
  chmod +x ~/.local/bin/kubectl_complete-kerf";

/// `kerf completion`.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[arg(value_enum)]
    shell: For,
}

/// Who completes.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum For {
    /// `source <(kerf completion bash)`
    Bash,
    /// `source <(kerf completion zsh)`
    Zsh,
    /// `kerf completion fish | source`
    Fish,
    /// `eval (kerf completion elvish | slurp)`
    Elvish,
    /// `kerf completion powershell | Out-String | Invoke-Expression`
    Powershell,
    /// The program `kubectl_complete-kerf`, for a folder of the PATH.
    Kubectl,
}

/// Prints the candidates by the command line's `grammar` and exits if the environment variable is set, and does nothing
/// otherwise.
pub fn answer(grammar: fn() -> Command) {
    completion_words::set_grammar(grammar);
    CompleteEnv::with_factory(grammar).var(VARIABLE).shells(COMPLETERS).complete();
}

pub fn print(args: &Args) -> anyhow::Result<()> {
    let name = args.shell.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let mut script = Vec::new();
    if let Some(completer) = COMPLETERS.completer(&name) {
        completer.write_registration(VARIABLE, "kerf", "kerf", "kerf", &mut script)?;
    }
    Ok(output::stdout().write_all(&script)?)
}

/// Completion for kubectl, which calls a program of its own.
struct Kubectl;

impl EnvCompleter for Kubectl {
    fn name(&self) -> &'static str {
        "kubectl"
    }

    fn is(&self, name: &str) -> bool {
        name == self.name()
    }

    fn write_registration(
        &self,
        variable: &str,
        _name: &str,
        _bin: &str,
        completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        writeln!(
            out,
            "#!/bin/sh\n\
             # kubectl runs this program to complete `kubectl kerf`. Put it on the PATH as kubectl_complete-kerf and make it executable:\n\
             #   kerf completion kubectl > ~/.local/bin/kubectl_complete-kerf && chmod +x ~/.local/bin/kubectl_complete-kerf\n\
             {variable}=kubectl exec {completer} -- kerf \"$@\""
        )
    }

    /// Writes the candidates in kubectl's format. Flags are shown only once a dash is typed.
    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let last = words.len().saturating_sub(1);
        let is_flag = |word: &OsString| word.to_string_lossy().starts_with('-');
        let wants_flags = words.last().is_some_and(is_flag);
        for candidate in clap_complete::engine::complete(command, words, last, folder)? {
            let value = candidate.get_value().to_owned();
            if wants_flags || !is_flag(&value) {
                let help = candidate.get_help().map(|help| format!("\t{help}")).unwrap_or_default();
                let help = help.lines().next().unwrap_or_default();
                writeln!(out, "{}{help}", value.to_string_lossy())?;
            }
        }
        writeln!(out, "{NO_FILES}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Cli;
    use clap::CommandFactory as _;

    fn candidates(words: &[&str]) -> Vec<String> {
        let words = std::iter::once("kerf").chain(words.iter().copied()).map(OsString::from).collect();
        let mut out = Vec::new();
        Kubectl.write_complete(&mut Cli::command(), words, None, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines = text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned());
        lines.collect()
    }

    #[test]
    fn commands_flags_and_values_are_completed_at_the_cursor() {
        for (words, expected) in [
            (&["che"][..], &["check"][..]),
            (&["policy", "te"], &["test"]),
            (&["check", "--pr"], &["--pre"]),
            (&["nodes", "--output", "w"], &["wide"]),
            (&["nodes", "-o", "y"], &["yaml"]),
            (&["bench", "sharing", "--technologies", "mps,mi"], &["mps,mig"]),
            (&["policy", "schema", "gpun"], &["gpunodepolicy"]),
            (&["simulate", "--model", "h200"], &["h200-141gb"]),
        ] {
            assert_eq!(candidates(words), [expected, &[NO_FILES]].concat(), "{words:?}");
        }
        let first = candidates(&[""]);
        assert!(
            first.contains(&"nodes".to_owned()) && !first.iter().any(|word| word.starts_with('-')),
            "{first:?}"
        );
    }
}
