//! Leaves a node for good and undoes everything that the agent has set there.

use super::pod_resources_of;
use super::reconcilers::{mps_paths, opener};
use crate::access;
use crate::args::Args;
use crate::gpu::GpuThread;
use crate::leave::{self, Leave};
use crate::mps::{self, Timings};
use crate::pod_resources;
use crate::time_slice::TimeSlicer;
use anyhow::Context as _;
use futures::FutureExt as _;
use kerf_core::contract::SliceLength;
use kerf_core::names::{DeviceId, GpuUuid};
use kube::Client;
use std::collections::BTreeSet;

pub(super) async fn leave(args: Args, client: Client) -> anyhow::Result<()> {
    let open = opener(&args);
    let thread = GpuThread::start(Box::new(open.clone()), args.call_timeout);
    let thread = thread.context("failed to start the thread for NVML")?;
    let (paths, cdi) = (mps_paths(&args)?, args.cdi_dir.clone());
    let stop_mps = move |spared: BTreeSet<GpuUuid>| {
        let spared = spared.iter().map(ToString::to_string).collect();
        async move {
            mps::leave(paths, Timings::default(), thread, &spared).await;
            Ok(())
        }
        .boxed()
    };
    let hook = args.hook();
    let remove_cdi = move |spared: BTreeSet<DeviceId>| {
        async move { access::remove_but(&cdi, hook.as_ref(), &spared) }.boxed()
    };
    let slicer = TimeSlicer::new(args.nvidia_smi.clone());
    let reset_lengths = move |gpus: BTreeSet<GpuUuid>| {
        async move {
            let mut errors = Vec::new();
            for gpu in gpus {
                errors.extend(
                    slicer.set(&gpu, SliceLength::Default).await.err().map(|error| error.to_string()),
                );
            }
            if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
        }
        .boxed()
    };
    let modes = mps::modes_before(&args.mps_dir);
    let modes = modes.with_context(|| format!("failed to read {}", args.mps_dir.display()))?;
    let leaving = Leave {
        modes,
        ask_kubelet: pod_resources::ask_once(pod_resources_of(&args)?, args.device_plugin_dir.clone())
            .boxed(),
        no_gfd_labels: args.no_gfd_labels,
        node: args.node,
        client,
        checkpoint: args.state_dir,
        gpus: Box::new(open),
        reset_lengths: Box::new(reset_lengths),
        stop_mps: Box::new(stop_mps),
        remove_cdi: Box::new(remove_cdi),
        settle: args.settle,
    };
    Ok(leave::leave(leaving).await?)
}
