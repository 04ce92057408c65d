//! `kerf completion SHELL`: what a shell needs to complete kerf's commands; and `kubectl kerf`'s, for which kubectl asks a
//! program `kubectl_complete-kerf` on the PATH.

use clap::{Args as ClapArgs, Command, ValueEnum};
use clap_complete::{Shell, generate};
use std::io::Write;

/// What kubectl takes for "complete no file names" (cobra's `ShellCompDirectiveNoFileComp`).
const NO_FILES: &str = ":4";

/// The program that kubectl asks.
const KUBECTL: &str = "#!/bin/sh
# kubectl asks this program how `kubectl kerf` goes on. Put it on the PATH as kubectl_complete-kerf and make it executable:
#   kerf completion kubectl > ~/.local/bin/kubectl_complete-kerf && chmod +x ~/.local/bin/kubectl_complete-kerf
exec kerf complete-for-kubectl -- \"$@\"
";

/// For which shell.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[arg(value_enum)]
    shell: For,
}

/// Who completes.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum For {
    /// `source <(kerf completion bash)`
    Bash,
    /// `kerf completion zsh > "${fpath[1]}/_kerf"`
    Zsh,
    /// `kerf completion fish | source`
    Fish,
    /// The program `kubectl_complete-kerf`.
    Kubectl,
}

/// The words so far, of which the last is the one to complete.
#[derive(Debug, ClapArgs)]
pub struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Prints the script for a command line of this form.
pub fn print(args: &Args, mut command: Command) -> anyhow::Result<()> {
    let shell = match args.shell {
        For::Bash => Shell::Bash,
        For::Zsh => Shell::Zsh,
        For::Fish => Shell::Fish,
        For::Kubectl => return Ok(std::io::stdout().lock().write_all(KUBECTL.as_bytes())?),
    };
    let mut script = Vec::new();
    generate(shell, &mut command, "kerf", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

/// Prints how a command line of this form goes on, as kubectl reads it.
pub fn complete(words: &Words, command: Command) -> anyhow::Result<()> {
    let mut text = candidates(command, &words.words).join("\n");
    text.push_str(if text.is_empty() { "" } else { "\n" });
    Ok(writeln!(std::io::stdout().lock(), "{text}{NO_FILES}")?)
}

/// Commands, or flags where a dash is written, that the last word may become.
fn candidates(mut command: Command, words: &[String]) -> Vec<String> {
    command.build();
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let mut at = &command;
    for word in before {
        at = at.find_subcommand(word).unwrap_or(at);
    }
    let commands = at.get_subcommands().filter(|it| !it.is_hide_set()).map(|it| it.get_name().to_owned());
    let flags = at.get_arguments().filter(|it| !it.is_hide_set());
    let flags = flags.filter_map(|it| it.get_long().map(|long| format!("--{long}")));
    let all: Vec<String> = if last.starts_with('-') { flags.collect() } else { commands.collect() };
    all.into_iter().filter(|it| it.starts_with(last)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    fn form() -> Command {
        let check = Command::new("check").arg(Arg::new("pre").long("pre")).arg(Arg::new("wait").long("wait"));
        let policy =
            Command::new("policy").subcommand(Command::new("check")).subcommand(Command::new("test"));
        Command::new("kerf")
            .subcommand(check)
            .subcommand(policy)
            .subcommand(Command::new("secret").hide(true))
    }

    #[test]
    fn commands_and_flags_are_completed_where_they_are_written() {
        for (words, expected) in [
            (&[][..], &["check", "policy", "help"][..]),
            (&["ch"], &["check"]),
            (&["policy", ""], &["check", "test", "help"]),
            (&["policy", "t"], &["test"]),
            (&["check", "--p"], &["--pre"]),
            (&["check", "-n", "x", "--w"], &["--wait"]),
            (&["sec"], &[]),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(candidates(form(), &words), expected, "{words:?}");
        }
    }
}
