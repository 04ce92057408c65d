//! The one thread on which all calls to the GPUs are made, in the order in which they were asked for.
//!
//! NVML's calls block, some for seconds; nothing else of the agent waits on them.

use super::{Gpu, GpuBackend, GpuError, GpuInstance};
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use std::sync::mpsc;
use tokio::sync::oneshot;

/// Opens the backend. Called on the thread, at the first call and after an error that says that it must be opened anew.
pub type Open = Box<dyn FnMut() -> Result<Box<dyn GpuBackend>, GpuError> + Send>;

/// What the thread does next.
type Call = Box<dyn FnOnce(&mut Backend) + Send>;

/// A way to the thread. It ends when the last clone is gone.
#[derive(Debug, Clone)]
pub struct GpuThread {
    calls: mpsc::Sender<Call>,
}

impl GpuThread {
    /// Starts the thread.
    pub fn start(open: Open) -> std::io::Result<Self> {
        let (calls, queue) = mpsc::channel::<Call>();
        let serve = move || {
            let mut backend = Backend { opened: None, open };
            for call in queue {
                call(&mut backend);
            }
        };
        std::thread::Builder::new().name("nvml".to_owned()).spawn(serve)?;
        Ok(Self { calls })
    }

    /// [`GpuBackend::observe`].
    pub async fn observe(&self) -> Result<Vec<Gpu>, GpuError> {
        self.ask(|backend| backend.observe()).await
    }

    /// [`GpuBackend::create`].
    pub async fn create(
        &self,
        gpu: GpuUuid,
        wanted: Instance,
        part: Option<ComputeInstance>,
    ) -> Result<GpuInstance, GpuError> {
        self.ask(move |backend| backend.create(&gpu, wanted, part)).await
    }

    /// [`GpuBackend::destroy`].
    pub async fn destroy(
        &self,
        gpu: GpuUuid,
        instance: GpuInstance,
        part: Option<ComputeInstance>,
    ) -> Result<(), GpuError> {
        self.ask(move |backend| backend.destroy(&gpu, &instance, part)).await
    }

    /// [`GpuBackend::set_mig_mode`].
    pub async fn set_mig_mode(&self, gpu: GpuUuid, on: bool, reset: bool) -> Result<(), GpuError> {
        self.ask(move |backend| backend.set_mig_mode(&gpu, on, reset)).await
    }

    /// [`GpuBackend::set_exclusive`].
    pub async fn set_exclusive(&self, gpu: GpuUuid, exclusive: bool) -> Result<(), GpuError> {
        self.ask(move |backend| backend.set_exclusive(&gpu, exclusive)).await
    }

    /// [`GpuBackend::limit_memory`].
    pub async fn limit_memory(
        &self,
        gpu: GpuUuid,
        cgroup: String,
        limit: Option<MemoryMib>,
    ) -> Result<(), GpuError> {
        self.ask(move |backend| backend.limit_memory(&gpu, &cgroup, limit)).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut dyn GpuBackend) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let (reply, answer) = oneshot::channel();
        // Whoever asked may have gone; what was done is seen at the next observation.
        let call: Call = Box::new(move |backend| drop(reply.send(backend.call(call))));
        self.calls.send(call).map_err(|_| GpuError::Stopped)?;
        answer.await.map_err(|_| GpuError::Stopped)?
    }
}

/// The backend, opened when it is needed.
struct Backend {
    opened: Option<Box<dyn GpuBackend>>,
    open: Open,
}

impl Backend {
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut dyn GpuBackend) -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        let opened = match &mut self.opened {
            Some(opened) => opened,
            None => self.opened.insert((self.open)()?),
        };
        let result = call(opened.as_mut());
        if result.as_ref().is_err_and(GpuError::needs_reopening) {
            self.opened = None;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeGpus, uuid};
    use super::super::{GpuError, NvmlCode};
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn the_backend_is_opened_anew_after_an_error_that_asks_for_it() {
        let (gpus, opened) = (FakeGpus::new(&["L4-24GB"]), Arc::new(AtomicU32::new(0)));
        let (theirs, count) = (gpus.clone(), Arc::clone(&opened));
        let open = move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(theirs.clone()) as Box<dyn GpuBackend>)
        };
        let thread = GpuThread::start(Box::new(open)).unwrap();
        let answer = |code| GpuError::Call { call: "nvmlDeviceSetComputeMode", code };
        for (code, times) in
            [(NvmlCode::NoPermission, 1), (NvmlCode::Uninitialized, 1), (NvmlCode::NoPermission, 2)]
        {
            gpus.fail_next(answer(code));
            assert_eq!(thread.set_exclusive(uuid(0), true).await, Err(answer(code)));
            assert_eq!(opened.load(Ordering::Relaxed), times);
        }
    }
}
