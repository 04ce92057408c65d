//! Opens the checkpoint, which one process at a time holds: an agent, or one that leaves the node. Both change what is
//! set there.

use crate::args::Args;
use crate::checkpoint::{self, CheckpointError};
use crate::checkpoint_writer::CheckpointWriter;
use crate::node::Restored;
use anyhow::Context as _;
use kerf_runtime::admin::{self, Readiness};
use kerf_runtime::shutdown::CancellationToken;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// The wait between two tries. A predecessor that ends takes seconds; one that leaves the node takes minutes.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The checkpoint, and what an earlier process recorded in it.
type Opened = (CheckpointWriter, Option<Restored>);

/// Opens the checkpoint once no other process holds it; `None` at `stop`. Meanwhile `/livez` is served, because waiting
/// is no fault of this process and a restart would not help.
pub(super) async fn open(args: &Args, stop: &CancellationToken) -> anyhow::Result<Option<Opened>> {
    let boot_id = args.proc_dir.join(checkpoint::BOOT_ID.trim_start_matches("/proc/"));
    let boot_id = checkpoint::boot_id(&boot_id).context("--proc-dir")?;
    if let Some(opened) = try_open(args, &boot_id)? {
        return Ok(Some(opened));
    }
    let folder = args.state_dir.display();
    tracing::warn!(%folder, "another agent serves this node, or one leaves it; waiting until it has ended");
    let waiting = async {
        while stop.run_until_cancelled(tokio::time::sleep(RETRY_INTERVAL)).await.is_some() {
            if let Some(opened) = try_open(args, &boot_id)? {
                return Ok(Some(opened));
            }
        }
        Ok(None)
    };
    tokio::select! {
        opened = waiting => opened,
        () = live(args, stop) => Ok(None),
    }
}

/// Returns `None` while another process holds the checkpoint.
fn try_open(args: &Args, boot_id: &str) -> anyhow::Result<Option<Opened>> {
    match CheckpointWriter::open(&args.state_dir, boot_id.to_owned(), args.sys_dir.clone()) {
        Err(CheckpointError::InUse(_)) => Ok(None),
        opened => opened.map(Some).context("--state-dir"),
    }
}

/// Answers `/livez`, for as long as it is polled.
pub(super) async fn live(args: &Args, stop: &CancellationToken) {
    let readiness = Readiness::new(&["record"]);
    let serving = admin::serve(args.admin.admin_address, readiness, Registry::default(), stop.clone());
    if let Err(error) = serving.await {
        // The process that holds the checkpoint may also have bound this address.
        tracing::debug!(%error, "--admin-address");
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use std::path::Path;

    /// Arguments of an agent whose files are all in `folder`.
    fn args(folder: &Path) -> Args {
        let boot_id = folder.join("sys/kernel/random/boot_id");
        std::fs::create_dir_all(boot_id.parent().unwrap()).unwrap();
        std::fs::write(&boot_id, "boot\n").unwrap();
        let (proc, state) = (folder.display().to_string(), folder.join("state").display().to_string());
        let given = [
            "kerf-node-agent",
            "--node=n1",
            "--extender=e:1",
            "--admin-address=127.0.0.1:0",
            "--proc-dir",
            &proc,
        ];
        Args::try_parse_from(given.into_iter().chain(["--state-dir", &state])).unwrap()
    }

    #[tokio::test]
    async fn a_second_process_waits_until_the_first_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (args, stop) = (args(folder.path()), CancellationToken::new());
        let first = open(&args, &stop).await.unwrap().unwrap();
        let second = open(&args, &stop);
        tokio::pin!(second);
        assert!(tokio::time::timeout(RETRY_INTERVAL / 5, &mut second).await.is_err(), "it has to wait");
        drop(first);
        assert!(second.await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_waiting_process_ends_at_stop() {
        let folder = tempfile::tempdir().unwrap();
        let (args, stop) = (args(folder.path()), CancellationToken::new());
        let _first = open(&args, &stop).await.unwrap();
        stop.cancel();
        assert!(open(&args, &stop).await.unwrap().is_none());
    }
}
