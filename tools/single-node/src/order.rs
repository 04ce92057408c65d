//! Orders from a step to the holder, the parent of the node's programs: one word and its answer, over a
//! socket.

use std::path::PathBuf;

use crate::real_node::RealNode;
use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::args::Args;

/// The answer to an order that succeeded.
const DONE: &str = "done";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Kill kerf's agent and start it again.
    RestartAgent,
    /// Kill the kubelet and start it again.
    RestartKubelet,
}

impl Order {
    /// Sends the order to the holder, and waits until it is carried out.
    pub async fn give(self, args: &Args) -> anyhow::Result<()> {
        let word = self.to_possible_value().context("an order has a word")?;
        let mut holder =
            UnixStream::connect(socket(args)).await.context("failed to reach the node's holder")?;
        holder.write_all(word.get_name().as_bytes()).await?;
        // The holder reads the word until the end of the stream.
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

pub fn listen(args: &Args) -> anyhow::Result<UnixListener> {
    UnixListener::bind(socket(args)).context("failed to listen for orders")
}

/// Carries out orders one after another, until accepting one fails.
pub async fn obey(listener: &UnixListener, node: &mut RealNode) -> anyhow::Result<()> {
    loop {
        let (mut caller, _) = listener.accept().await.context("failed to take an order")?;
        let mut word = String::new();
        caller.read_to_string(&mut word).await.context("failed to read an order")?;
        let answer = match order(&word).and_then(|order| order.obey(node)) {
            Ok(()) => DONE.to_owned(),
            Err(error) => format!("{error:#}"),
        };
        println!("order {word}: {answer}");
        // A caller that has closed its connection needs no answer.
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
