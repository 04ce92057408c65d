//! The programs of one control plane, in the order of their start. They are stopped in reverse, because an
//! API server without etcd does not exit.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::readiness::Probe;
use crate::process::{Child, Program};

/// Timeout for one program on a machine that is busy with builds. An idle machine takes a few seconds.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// Interval of probes: short compared to a start, and no load for the program.
const PROBE_INTERVAL: Duration = Duration::from_millis(25);

/// How long a program may take to exit before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

struct Server {
    child: Child,
    probe: Probe,
    ready: bool,
}

#[derive(Default)]
pub struct Servers {
    in_start_order: Vec<Server>,
}

impl Servers {
    /// Starts a program without waiting for it.
    pub fn spawn(&mut self, program: Program, probe: Probe) -> anyhow::Result<()> {
        let child = program.spawn()?;
        self.in_start_order.push(Server { child, probe, ready: false });
        Ok(())
    }

    /// Waits until every program has been ready once.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        for server in self.in_start_order.iter_mut().filter(|server| !server.ready) {
            server.wait().await?;
        }
        Ok(())
    }

    pub fn child(&mut self, name: &str) -> anyhow::Result<&mut Child> {
        Ok(&mut self.find(name)?.child)
    }

    /// The answer of the program of this name to a GET.
    pub async fn get(&mut self, name: &str, path: &str) -> anyhow::Result<String> {
        let Probe::Answers(client, _) = &self.find(name)?.probe else { bail!("{name} serves no HTTPS") };
        let request = http::Request::get(path).body(Vec::new())?;
        client.request_text(request).await.with_context(|| format!("failed to get {path} of {name}"))
    }

    /// Kills the program of this name, starts it again and waits for it.
    pub async fn restart(&mut self, name: &str) -> anyhow::Result<()> {
        let server = self.find(name)?;
        server.child.restart()?;
        server.wait().await
    }

    /// Ends all programs, the last started first. It blocks the thread.
    pub fn terminate(mut self) -> anyhow::Result<()> {
        while let Some(mut server) = self.in_start_order.pop() {
            let name = server.child.name().to_owned();
            if !server.child.terminate(STOP_TIMEOUT)? {
                tracing::info!(program = name, "did not end in time and was killed");
            }
        }
        Ok(())
    }

    fn find(&mut self, name: &str) -> anyhow::Result<&mut Server> {
        let mut servers = self.in_start_order.iter_mut();
        servers
            .find(|server| server.child.name() == name)
            .with_context(|| format!("no program {name} was started"))
    }
}

impl Server {
    async fn wait(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        let name = self.child.name().to_owned();
        loop {
            // A program that has exited never becomes ready, so the wait ends at once.
            if let Some(status) = self.child.exited()? {
                bail!(
                    "{name} ended ({status}) before it was ready; the end of its log:\n{}",
                    self.child.log_tail()
                );
            }
            let Err(reason) = self.probe.ask().await else { break };
            if began.elapsed() > START_TIMEOUT {
                let seconds = START_TIMEOUT.as_secs();
                let tail = self.child.log_tail();
                bail!("{name} is not ready after {seconds} s ({reason}); the end of its log:\n{tail}");
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
        self.ready = true;
        tracing::debug!(program = name, milliseconds = began.elapsed().as_millis(), "is ready");
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // A vector drops its first element first, which is etcd.
        while self.in_start_order.pop().is_some() {}
    }
}
