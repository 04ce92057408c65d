//! What a step asks of the holder, whose children the node's programs are: a word and its answer, over a socket.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use kerf_tests::real_node::RealNode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::args::Args;

/// The answer to what was done.
const DONE: &str = "done";

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Kill kerf's agent and start it again.
    RestartAgent,
    /// Kill the kubelet and start it again.
    RestartKubelet,
}

impl Order {
    /// Asks the holder, and waits until it is done.
    pub async fn give(self, args: &Args) -> anyhow::Result<()> {
        let word = self.to_possible_value().context("an order has a word")?;
        let mut holder =
            UnixStream::connect(socket(args)).await.context("failed to reach the node's holder")?;
        holder.write_all(word.get_name().as_bytes()).await?;
        holder.shutdown().await?;
        let mut answer = String::new();
        holder.read_to_string(&mut answer).await.context("the node's holder does not answer")?;
        ensure!(answer == DONE, "{}: {answer}", word.get_name());
        Ok(())
    }

    fn obey(self, node: &mut RealNode) -> anyhow::Result<()> {
        match self {
            Self::RestartAgent => node.restart_agent(),
            Self::RestartKubelet => node.restart_kubelet(),
        }
    }
}

/// Where the holder listens.
pub fn listen(args: &Args) -> anyhow::Result<UnixListener> {
    UnixListener::bind(socket(args)).context("failed to listen for orders")
}

/// Does what is asked, one after another, for ever.
pub async fn obey(listener: &UnixListener, node: &mut RealNode) -> anyhow::Result<()> {
    loop {
        let (mut caller, _) = listener.accept().await.context("failed to take an order")?;
        let mut word = String::new();
        caller.read_to_string(&mut word).await.context("failed to read an order")?;
        let answer = match order(&word).and_then(|order| order.obey(node)) {
            Ok(()) => DONE.to_owned(),
            Err(error) => format!("{error:#}"),
        };
        println!("told to {word}: {answer}");
        // Who does not wait for the answer needs none.
        let _ = caller.write_all(answer.as_bytes()).await;
    }
}

fn order(word: &str) -> anyhow::Result<Order> {
    match Order::from_str(word, false) {
        Ok(order) => Ok(order),
        Err(error) => bail!("{error}"),
    }
}

fn socket(args: &Args) -> PathBuf {
    args.run.join("holder.sock")
}
