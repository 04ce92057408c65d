//! The one thread on which all calls to the GPUs are made, in the order in which they were asked for.
//!
//! NVML's calls block, some for seconds; nothing else of the agent waits on them.

use super::{Gpu, GpuBackend, GpuError, GpuInstance, Utilization};
use crate::metrics::{Call as Counted, Metrics};
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Opens the backend. Called on the thread, at the first call and after an error that says that it must be opened anew.
pub type Open = Box<dyn FnMut() -> Result<Box<dyn GpuBackend>, GpuError> + Send>;

/// GPUs that never answered, by index, with what the last look met.
pub type Silent = BTreeMap<u32, GpuError>;

/// What the thread does next.
type Call = Box<dyn FnOnce(&mut Backend) + Send>;

/// A way to the thread. It ends when the last clone is gone.
#[derive(Debug, Clone)]
pub struct GpuThread {
    calls: mpsc::Sender<Call>,
    metrics: Option<Metrics>,
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
        Ok(Self { calls, metrics: None })
    }

    /// A way to the thread whose calls are counted but for those that the loop makes, which counts their outcomes.
    #[must_use]
    pub fn counted(&self, metrics: Metrics) -> Self {
        Self { metrics: Some(metrics), ..self.clone() }
    }

    /// [`GpuBackend::observe`], with the GPUs that it left out.
    pub async fn observe(&self) -> Result<(Vec<Gpu>, Silent), GpuError> {
        self.ask(|backend| Ok((backend.observe()?, backend.silent().clone()))).await
    }

    /// [`GpuBackend::utilization`]; nothing where it cannot be asked.
    pub async fn utilization(&self, gpus: Vec<Gpu>) -> BTreeMap<GpuUuid, Utilization> {
        self.ask(move |backend| Ok(backend.utilization(&gpus))).await.unwrap_or_default()
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
        let asked = self.ask(move |backend| backend.set_exclusive(&gpu, exclusive));
        self.count(Counted::SetExclusive, asked).await
    }

    /// [`GpuBackend::limit_memory`].
    pub async fn limit_memory(
        &self,
        gpu: GpuUuid,
        cgroup: String,
        limit: Option<MemoryMib>,
    ) -> Result<(), GpuError> {
        let asked = self.ask(move |backend| backend.limit_memory(&gpu, &cgroup, limit));
        self.count(Counted::LimitMemory, asked).await
    }

    async fn count(
        &self,
        call: Counted,
        asked: impl Future<Output = Result<(), GpuError>>,
    ) -> Result<(), GpuError> {
        let begun = Instant::now();
        let result = asked.await;
        if let Some(metrics) = &self.metrics {
            metrics.count_call(call, begun.elapsed(), result.as_ref().err());
        }
        result
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
    async fn calls_beside_the_loops_are_counted_with_their_errors() {
        let gpus = FakeGpus::new(&["L4-24GB"]);
        let theirs = gpus.clone();
        let open = move || Ok(Box::new(theirs.clone()) as Box<dyn GpuBackend>);
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = Metrics::register(&mut registry);
        let thread = GpuThread::start(Box::new(open)).unwrap().counted(metrics.clone());
        let error = |code| GpuError::Call { call: "nvmlX", code };
        gpus.fail_next(error(NvmlCode::NoPermission));
        thread.set_exclusive(uuid(0), true).await.unwrap_err();
        thread.limit_memory(uuid(0), "/pod1".to_owned(), None).await.unwrap();
        metrics.count_events(&error(NvmlCode::Unknown));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "steps_total{step=\"set_exclusive\",outcome=\"failed\"} 1",
            "steps_total{step=\"limit_memory\",outcome=\"done\"} 1",
            "steps_total{step=\"events\",outcome=\"failed\"} 1",
            "nvml_errors_total{code=\"NO_PERMISSION\"} 1",
            "nvml_errors_total{code=\"UNKNOWN\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

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
