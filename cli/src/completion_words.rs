//! The words of a command line that is being completed. What completes a word depends on the words before it, for
//! example on `--context`.

use clap::{ArgMatches, Command};
use std::sync::OnceLock;

/// The grammar of the command line. It is global, because clap asks for candidates by functions without arguments.
static GRAMMAR: OnceLock<fn() -> Command> = OnceLock::new();

pub fn set_grammar(grammar: fn() -> Command) {
    // A second call is ignored, because the grammar is the same in each.
    let _ = GRAMMAR.set(grammar);
}

/// The flags of the innermost command that has been typed so far.
#[must_use]
pub fn typed() -> Option<ArgMatches> {
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let mut matches = GRAMMAR.get()?().ignore_errors(true).try_get_matches_from(words).ok()?;
    while let Some((_, inner)) = matches.remove_subcommand() {
        matches = inner;
    }
    Some(matches)
}
