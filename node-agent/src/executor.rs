//! Runs accepted steps on the threads of their GPUs, one at a time on each. It decides nothing.

use crate::checkpoint_writer::CheckpointWriter;
use crate::ending::Ending;
use crate::gpu::{Gpu, GpuError, GpuInstance, GpuThread, Unresponsive};
use crate::node::{Call, Restored};
use crate::processes::{self, Host, Usage};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::{GpuUuid, SliceId};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub enum Outcome {
    Observed {
        /// The GPUs that answered, and the unresponsive ones.
        result: Result<(Vec<Gpu>, Unresponsive), GpuError>,
        /// Each process's use of memory and time.
        usage: Usage,
        took: Duration,
    },
    /// The process cannot continue, for this reason.
    Over(Ending),
    /// What a restart needs is on the disk.
    Recorded { record: Box<Restored> },
    /// A step or setting that was skipped, because it could not be recorded first.
    Unrecorded {
        /// The GPU of the step; `None` if it was a setting.
        gpu: Option<GpuUuid>,
        error: String,
    },
    Created {
        gpu: GpuUuid,
        /// The slice that the instance was created for.
        id: SliceId,
        result: Result<GpuInstance, GpuError>,
        took: Duration,
    },
    Switched {
        gpu: GpuUuid,
        /// The desired MIG mode: `true` is on.
        mig: bool,
        result: Result<(), GpuError>,
        took: Duration,
    },
    Destroyed {
        gpu: GpuUuid,
        instance: Instance,
        /// The compute instance, if only that was destroyed and the GPU instance stays.
        part: Option<ComputeInstance>,
        result: Result<(), GpuError>,
        took: Duration,
    },
}

impl Outcome {
    /// The call that has ended, for the metrics: its name, its duration and its error. `None` if it was no call to the
    /// GPUs.
    #[must_use]
    pub fn call(&self) -> Option<(&'static str, Duration, Option<&GpuError>)> {
        let (name, took, error) = match self {
            Self::Over(_) | Self::Recorded { .. } | Self::Unrecorded { .. } => return None,
            Self::Observed { result, took, .. } => ("observe", took, result.as_ref().err()),
            Self::Created { result, took, .. } => ("create", took, result.as_ref().err()),
            Self::Switched { result, took, .. } => ("switch", took, result.as_ref().err()),
            Self::Destroyed { result, took, .. } => ("destroy", took, result.as_ref().err()),
        };
        Some((name, *took, error))
    }
}

pub struct Executor {
    thread: GpuThread,
    checkpoint_writer: CheckpointWriter,
    host: Host,
    running: FuturesUnordered<BoxFuture<'static, Outcome>>,
}

impl Executor {
    #[must_use]
    pub fn new(thread: GpuThread, checkpoint_writer: CheckpointWriter, host: Host) -> Self {
        Self { thread, checkpoint_writer, host, running: FuturesUnordered::new() }
    }

    #[must_use]
    pub fn checkpoint_writer(&self) -> CheckpointWriter {
        self.checkpoint_writer.clone()
    }

    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Waits for the next call to finish; forever if none is under way.
    pub async fn outcome(&mut self) -> Outcome {
        match self.running.next().await {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }

    /// Starts an observation. The caller ensures that no other call is under way.
    pub fn observe(&mut self) {
        let thread = self.thread.clone();
        let (host, checkpoint_writer) = (self.host.clone(), self.checkpoint_writer.clone());
        self.start(async move {
            let begun = Instant::now();
            let result = thread.observe().await;
            let took = begun.elapsed();
            let ending = match &result {
                // Check the load first, because otherwise a MIG mode that was lost with the driver would count as
                // switched off by an admin.
                Ok(_) if checkpoint_writer.is_of_another_load() => Some(Ending::Reloaded),
                // Check unresponsive GPUs too: the thread of one GPU may have ended while the others answer.
                Ok((gpus, unresponsive)) => {
                    let faults = gpus.iter().filter_map(|gpu| gpu.fault.as_ref());
                    faults.chain(unresponsive.values()).find_map(Ending::after)
                }
                Err(error) => Ending::after(error),
            };
            if let Some(ending) = ending {
                return Outcome::Over(ending);
            }
            let gpus = result.as_ref().map(|(gpus, _)| gpus.clone()).unwrap_or_default();
            let busy = thread.utilization(gpus.clone()).await;
            let usage = tokio::task::spawn_blocking(move || processes::usage(&host, &gpus, &busy));
            let usage = usage.await.unwrap_or_default();
            Outcome::Observed { result, usage, took }
        });
    }

    /// Starts to write the checkpoint for a setting that is not a step on a GPU.
    pub fn record(&mut self, record: Restored) {
        let saved = self.checkpoint_writer.save(record.clone());
        self.start(async move {
            match saved.await {
                Ok(()) => Outcome::Recorded { record: Box::new(record) },
                Err(error) => Outcome::Unrecorded { gpu: None, error },
            }
        });
    }

    /// Starts a call. The checkpoint is written before a switch and before a create, and not before a destroy.
    pub fn run(&mut self, call: Call, record: Restored) {
        match call {
            Call::Switch { gpu, mig, may_reset } => self.switch((gpu, mig, may_reset), record),
            Call::Create { gpu, instance, part, id } => self.create(gpu, (instance, part), id, record),
            Call::Destroy { gpu, found, part } => self.destroy(gpu, found, part),
        }
    }

    fn switch(&mut self, (gpu, mig, reset): (GpuUuid, bool, bool), record: Restored) {
        let (thread, saved) = (self.thread.clone(), self.checkpoint_writer.save(record));
        self.start(async move {
            if let Err(error) = saved.await {
                return Outcome::Unrecorded { gpu: Some(gpu), error };
            }
            let begun = Instant::now();
            let result = thread.set_mig_mode(gpu.clone(), mig, reset).await;
            let took = begun.elapsed();
            let ms = took.as_millis();
            match &result {
                Ok(()) => tracing::info!(%gpu, mig, ms, "switched the MIG mode"),
                Err(error) => tracing::warn!(%gpu, mig, ms, %error, "failed to switch the MIG mode"),
            }
            Outcome::Switched { gpu, mig, result, took }
        });
    }

    fn create(
        &mut self,
        gpu: GpuUuid,
        (instance, part): (Instance, Option<ComputeInstance>),
        id: SliceId,
        record: Restored,
    ) {
        let (thread, saved) = (self.thread.clone(), self.checkpoint_writer.save(record));
        self.start(async move {
            if let Err(error) = saved.await {
                return Outcome::Unrecorded { gpu: Some(gpu), error };
            }
            let begun = Instant::now();
            let result = thread.create(gpu.clone(), instance, part).await;
            let took = begun.elapsed();
            let (profile, placement, ms) = (instance.profile, instance.placement, took.as_millis());
            match &result {
                Ok(made) => {
                    let device = made.devices().find(|(at, ..)| *at == part).map(|(.., d)| d.to_string());
                    tracing::info!(%gpu, %profile, %placement, slice = %id, device, ms, "created");
                }
                Err(error) => {
                    tracing::warn!(%gpu, %profile, %placement, slice = %id, ms, %error, "failed to create");
                }
            }
            Outcome::Created { gpu, id, result, took }
        });
    }

    fn destroy(&mut self, gpu: GpuUuid, found: GpuInstance, part: Option<ComputeInstance>) {
        let thread = self.thread.clone();
        self.start(async move {
            let begun = Instant::now();
            let result = thread.destroy(gpu.clone(), found.clone(), part).await;
            let took = begun.elapsed();
            let instance = found.instance;
            let (profile, placement, ms) = (instance.profile, instance.placement, took.as_millis());
            match &result {
                Ok(()) => tracing::info!(%gpu, %profile, %placement, ms, "destroyed"),
                Err(error) => tracing::warn!(%gpu, %profile, %placement, ms, %error, "failed to destroy"),
            }
            Outcome::Destroyed { gpu, instance, part, result, took }
        });
    }

    fn start(&mut self, call: impl Future<Output = Outcome> + Send + 'static) {
        // Spawned, so that the call makes progress while the loop is busy.
        let task = tokio::spawn(call);
        let outcome = async move {
            match task.await {
                Ok(outcome) => outcome,
                // Only a panic ends the task early, in any of the calls.
                Err(_) => Outcome::Over(Ending::ThreadEnded),
            }
        };
        self.running.push(outcome.boxed());
    }
}
