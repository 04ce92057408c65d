//! Sends a control word to a daemon: it runs `nvidia-cuda-mps-control` as a client, with the word on its standard
//! input.

use super::answer::{self, Answer, AnswerError};
use super::word::Word;
use std::path::PathBuf;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// The client's output when no daemon listens at the pipe directory.
const NO_DAEMON: &str = "Cannot find MPS control daemon process";

/// A client's settings for one daemon.
#[derive(Debug, Clone)]
pub struct Control {
    /// The path of `nvidia-cuda-mps-control`.
    pub program: PathBuf,
    pub pipe: PathBuf,
    /// How long a word may take. A hung daemon accepts the connection and never answers.
    pub timeout: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("no daemon listens")]
    NoDaemon,
    #[error("failed to run {program}")]
    Program {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the control client ended with {status}: {text}")]
    Exit { status: ExitStatus, text: String },
    /// The daemon answered, but its socket cannot be linked into the clients' folder.
    #[error("the daemon's socket cannot be linked into its clients' directory")]
    Socket(#[source] std::io::Error),
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

impl Control {
    pub async fn ask(&self, word: Word) -> Result<Answer, AskError> {
        // `quit` answers only when the clients have ended.
        let timeout = match word {
            Word::Quit { within } => self.timeout + Duration::from_secs(within),
            _ => self.timeout,
        };
        let said = tokio::time::timeout(timeout, self.say(word)).await;
        let output = said.map_err(|_| AskError::Timeout(timeout))?;
        let output = output.map_err(|source| AskError::Program { program: self.program.clone(), source })?;
        read(word, &output)
    }

    /// Runs the client, which is killed if the future is dropped.
    async fn say(&self, word: Word) -> std::io::Result<Output> {
        let mut client = Command::new(&self.program)
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = client.stdin.take() {
            // A client that finds no daemon ends without reading its input. Its exit says more than the broken pipe, so
            // ignore that.
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
