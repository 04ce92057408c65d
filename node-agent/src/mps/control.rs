//! Says a control word to a daemon: by `nvidia-cuda-mps-control` as a client, with the word on its standard input.

use super::answer::{self, Answer, AnswerError};
use super::word::Word;
use std::path::PathBuf;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// What the client says when no daemon listens at the pipe directory.
const NO_DAEMON: &str = "Cannot find MPS control daemon process";

/// The way to one daemon.
#[derive(Debug, Clone)]
pub struct Control {
    /// `nvidia-cuda-mps-control`.
    pub program: PathBuf,
    /// The daemon's pipe directory.
    pub pipe: PathBuf,
    /// How long a word may take. A wedged daemon accepts the connection and never answers.
    pub timeout: Duration,
}

/// Why a word has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The daemon did not answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// No daemon listens.
    #[error("no daemon listens")]
    NoDaemon,
    /// The client could not be run.
    #[error("failed to run {program}")]
    Program {
        /// The client.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The client failed.
    #[error("the control client ended with {status}: {text}")]
    Exit {
        /// How it ended.
        status: ExitStatus,
        /// What it wrote.
        text: String,
    },
    /// It answered, and its socket cannot be shown to clients.
    #[error("the daemon's socket cannot be linked into its clients' directory")]
    Socket(#[source] std::io::Error),
    /// The daemon refused.
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

impl Control {
    /// Says a word, and reads the answer.
    pub async fn ask(&self, word: Word) -> Result<Answer, AskError> {
        // `quit` answers when the clients have ended.
        let patience = match word {
            Word::Quit { within } => self.timeout + Duration::from_secs(within),
            _ => self.timeout,
        };
        let said = tokio::time::timeout(patience, self.say(word)).await;
        let output = said.map_err(|_| AskError::Timeout(patience))?;
        let output = output.map_err(|source| AskError::Program { program: self.program.clone(), source })?;
        read(word, &output)
    }

    /// Dropping the future kills the client.
    async fn say(&self, word: Word) -> std::io::Result<Output> {
        let mut client = Command::new(&self.program)
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = client.stdin.take() {
            // A client that finds no daemon ends without reading; how it ended says more than the broken pipe.
            let _ = stdin.write_all(format!("{word}\n").as_bytes()).await;
        }
        client.wait_with_output().await
    }
}

fn read(word: Word, output: &Output) -> Result<Answer, AskError> {
    if output.status.success() {
        return Ok(answer::parse(word, &String::from_utf8_lossy(&output.stdout))?);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains(NO_DAEMON) {
        return Err(AskError::NoDaemon);
    }
    Err(AskError::Exit { status: output.status, text: text.trim().to_owned() })
}
