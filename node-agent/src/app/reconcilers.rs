//! Starts the tasks that bring the node to the loop's desired state.

use crate::access::{AccessFiles, Library, Places};
use crate::args::Args;
use crate::conflicting::ConflictPoller;
use crate::dcgm_pause::{self, DcgmPause};
use crate::event::Event;
use crate::gpu::{GpuBackend, GpuError, GpuThread};
use crate::mps::Paths;
use crate::node::Restored;
use crate::reconcile::Outlets;
use crate::reconcilers::{self, Inputs};
use crate::rejected;
use crate::time_slice::{self, TimeSlicer};
use anyhow::Context as _;
use kerf_nvml::NvmlBackend;
use kerf_runtime::shutdown::CancellationToken;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(super) fn start(
    tasks: &mut JoinSet<()>,
    args: &Args,
    client: &Client,
    (thread, outlets, restored): (&GpuThread, &Outlets, &Restored),
    plugin_before: Option<String>,
    inputs: Inputs,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let events = || outlets.events.clone();
    let thread = thread.counted(outlets.metrics.clone());
    let files = AccessFiles::new(places(args));
    tasks.spawn(reconcilers::access::reconcile(files, inputs.slices.clone(), events(), stop.clone()));
    let set = restored.limits.clone();
    tasks.spawn(reconcilers::limits::reconcile(
        thread.clone(),
        set,
        inputs.slices.clone(),
        events(),
        stop.clone(),
    ));
    let daemons = mps_paths(args)?;
    tasks.spawn(reconcilers::mps::reconcile(daemons, thread, inputs.slices, events(), stop.clone()));
    let slicer = TimeSlicer::new(args.nvidia_smi.clone());
    tasks.spawn(time_slice::keep(slicer, restored.lengths.clone(), inputs.lengths, stop.clone()));
    let pause = DcgmPause::new(client.clone(), args.node.clone());
    tasks.spawn(dcgm_pause::keep(pause, restored.paused.clone(), inputs.pause, events(), stop.clone()));
    tasks.spawn(rejected::evict(client.clone(), inputs.evict, stop.clone()));
    let (node, recorder) = (args.node.clone(), outlets.recorder.clone());
    tasks.spawn(rejected::remove(
        client.clone(),
        node.clone(),
        inputs.remove_rejected,
        recorder,
        stop.clone(),
    ));
    let (others, mut seen) = watch::channel(Vec::new());
    let (folder, timeout) = (outlets.plugin_folder.clone(), args.uncontested_after);
    let poller = ConflictPoller::new((client.clone(), node), folder, timeout, plugin_before);
    tasks.spawn(poller.watch(others, stop.clone()));
    let (reported, ended) = (events(), stop.clone());
    tasks.spawn(async move {
        while let Some(Ok(())) = ended.run_until_cancelled(seen.changed()).await {
            let seen = seen.borrow_and_update().iter().map(ToString::to_string).collect();
            reported.send(Event::Conflicting(seen));
        }
        ended.cancelled().await;
    });
    reconcilers::gpu_events::watch(
        library(args),
        events(),
        inputs.reopen,
        outlets.metrics.clone(),
        stop.clone(),
    )
    .context("failed to start a thread")?;
    Ok(())
}

fn library(args: &Args) -> Library {
    Library::new(&args.nvml, &args.driver_root)
}

/// Opens NVML. The files are searched on each call, because an upgrade may replace them.
pub(super) fn opener(
    args: &Args,
) -> impl Fn() -> Result<Box<dyn GpuBackend>, GpuError> + Clone + Send + 'static {
    let (library, sys) = (library(args), args.sys_dir.clone());
    move || Ok(Box::new(NvmlBackend::open(&library.find())?.with_sys(sys.clone())))
}

pub(super) fn mps_paths(args: &Args) -> anyhow::Result<Paths> {
    Ok(Paths {
        root: args.mps_dir.clone(),
        program: args.mps_control.clone(),
        launcher: std::env::current_exe().context("failed to find the agent's own program")?,
        cgroup: args.mps_cgroup.clone(),
        private_shm: !args.mps_shared_shm,
    })
}

fn places(args: &Args) -> Places {
    let cdi = Some(args.cdi_dir.clone()).filter(|folder| !folder.as_os_str().is_empty());
    Places {
        cdi,
        dev: args.dev_dir.clone(),
        proc: args.proc_dir.clone(),
        driver_root: args.driver_root.clone(),
        host_driver_root: args.host_driver_root.clone(),
        hook: args.hook(),
        extras: args.extras(),
        device_nodes: !args.no_device_access,
        ..Places::default()
    }
}
