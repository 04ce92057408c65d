//! The one thread on which all calls to the GPUs are made, in the order in which they were asked for.
//!
//! NVML's calls block, some for seconds; nothing else of the agent waits on them.

use super::{Gpu, GpuBackend, GpuError, GpuInstance};
use kerf_core::mig::Instance;
use kerf_core::names::GpuUuid;
use std::sync::mpsc;
use tokio::sync::oneshot;

/// Opens the backend. Called on the thread, at the first call and after an error that says that it must be opened anew.
pub type Open = Box<dyn FnMut() -> Result<Box<dyn GpuBackend>, GpuError> + Send>;

type Reply<T> = oneshot::Sender<Result<T, GpuError>>;

enum Call {
    Observe(Reply<Vec<Gpu>>),
    Create(GpuUuid, Instance, Reply<GpuInstance>),
    Destroy(GpuUuid, GpuInstance, Reply<()>),
}

/// A way to the thread. It ends when the last clone is gone.
#[derive(Debug, Clone)]
pub struct GpuThread {
    calls: mpsc::Sender<Call>,
}

impl GpuThread {
    /// Starts the thread.
    pub fn start(open: Open) -> std::io::Result<Self> {
        let (calls, queue) = mpsc::channel();
        std::thread::Builder::new().name("nvml".to_owned()).spawn(move || serve(&queue, open))?;
        Ok(Self { calls })
    }

    /// [`GpuBackend::observe`].
    pub async fn observe(&self) -> Result<Vec<Gpu>, GpuError> {
        self.ask(Call::Observe).await
    }

    /// [`GpuBackend::create`].
    pub async fn create(&self, gpu: GpuUuid, wanted: Instance) -> Result<GpuInstance, GpuError> {
        self.ask(|reply| Call::Create(gpu, wanted, reply)).await
    }

    /// [`GpuBackend::destroy`].
    pub async fn destroy(&self, gpu: GpuUuid, instance: GpuInstance) -> Result<(), GpuError> {
        self.ask(|reply| Call::Destroy(gpu, instance, reply)).await
    }

    async fn ask<T>(&self, call: impl FnOnce(Reply<T>) -> Call) -> Result<T, GpuError> {
        let (reply, answer) = oneshot::channel();
        self.calls.send(call(reply)).map_err(|_| GpuError::Stopped)?;
        answer.await.map_err(|_| GpuError::Stopped)?
    }
}

fn serve(queue: &mpsc::Receiver<Call>, mut open: Open) {
    let mut backend = None;
    while let Ok(call) = queue.recv() {
        match call {
            Call::Observe(reply) => answer(reply, with(&mut backend, &mut open, |b| b.observe())),
            Call::Create(gpu, wanted, reply) => {
                answer(reply, with(&mut backend, &mut open, |b| b.create(&gpu, wanted)));
            }
            Call::Destroy(gpu, instance, reply) => {
                answer(reply, with(&mut backend, &mut open, |b| b.destroy(&gpu, &instance)));
            }
        }
    }
}

fn answer<T>(reply: Reply<T>, result: Result<T, GpuError>) {
    // Whoever asked may have gone; what was done is seen at the next observation.
    drop(reply.send(result));
}

fn with<T>(
    backend: &mut Option<Box<dyn GpuBackend>>,
    open: &mut Open,
    call: impl FnOnce(&mut dyn GpuBackend) -> Result<T, GpuError>,
) -> Result<T, GpuError> {
    let opened = match backend {
        Some(opened) => opened,
        None => backend.insert(open()?),
    };
    let result = call(opened.as_mut());
    if result.as_ref().is_err_and(GpuError::needs_reopening) {
        *backend = None;
    }
    result
}
