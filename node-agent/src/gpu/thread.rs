//! The threads that make all calls to the GPUs: one for each GPU, and one for calls that concern all of NVML.
//!
//! NVML's calls block, some for seconds and, on a hung GPU, forever. Calls to one GPU are made in the order of the
//! requests. No GPU waits for another, and no caller waits longer than the timeout. While a call is overdue its thread
//! gets no other call.

use super::lane::Lane;
use super::{ComputeMode, Gpu, GpuBackend, GpuError, GpuInstance, Utilization};
use crate::metrics::{Call as Counted, Metrics};
use futures::future::join_all;
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use super::lane::Open;

/// GPUs that never answered, by index, with the error of the last observation.
pub type Unresponsive = BTreeMap<u32, GpuError>;

/// The timeout for a GPU that has answered before. On a busy node the slowest calls take a few seconds, and the next
/// step on any GPU waits meanwhile. A driver that is just being loaded and a switch of the MIG mode get the full
/// timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A handle of the threads. They end when the last clone is dropped; a thread that hangs ends when its call returns.
#[derive(Debug, Clone)]
pub struct GpuThread {
    /// Opens NVML, and counts its GPUs.
    node: Lane,
    gpus: Arc<Mutex<Vec<OneGpu>>>,
    timeout: Duration,
    metrics: Option<Metrics>,
}

#[derive(Debug, Clone)]
struct OneGpu {
    lane: Lane,
    /// What the thread returned last: the GPU, and any that had this index before.
    seen: Vec<Gpu>,
}

impl GpuThread {
    /// Starts the first thread. No caller waits longer than `timeout` for a call.
    pub fn start(open: Open, timeout: Duration) -> std::io::Result<Self> {
        let node = Lane::start("nvml".to_owned(), open)?;
        Ok(Self { node, gpus: Arc::default(), timeout, metrics: None })
    }

    /// A handle that counts its calls. The loop does not use it, because it counts the outcomes of its own calls.
    #[must_use]
    pub fn counted(&self, metrics: Metrics) -> Self {
        Self { metrics: Some(metrics), ..self.clone() }
    }

    /// Observes each GPU, as [`GpuBackend::observe`] does, and returns those that never answered apart. A GPU that
    /// exceeds the timeout is returned as it was last seen, with that fault. Fails if NVML itself does not answer.
    pub async fn observe(&self) -> Result<(Vec<Gpu>, Unresponsive), GpuError> {
        let looks = self.lanes().await?.into_iter().map(|one| async move {
            let timeout = if one.seen.is_empty() { self.timeout } else { self.answer_timeout() };
            one.lane.ask(timeout, |backend| Ok((backend.observe()?, backend.unresponsive().clone()))).await
        });
        let looks = join_all(looks).await;
        if let Some(error) = looks.iter().find_map(|look| look.as_ref().err().filter(|e| e.needs_reopening()))
        {
            self.close(error.clone()).await;
            return Err(error.clone());
        }
        let (mut seen, mut unresponsive) = (Vec::new(), Unresponsive::new());
        for ((one, look), index) in self.lock().iter_mut().zip(looks).zip(0..) {
            match look {
                Ok((gpus, never)) => {
                    one.seen = gpus;
                    unresponsive.extend(never);
                }
                Err(fault) if one.seen.is_empty() => drop(unresponsive.insert(index, fault)),
                Err(fault) => one.seen.iter_mut().for_each(|gpu| gpu.fault = Some(fault.clone())),
            }
            seen.extend(one.seen.iter().cloned());
        }
        Ok((each_once(seen), unresponsive))
    }

    /// Calls [`GpuBackend::utilization`]; the result lacks GPUs that cannot be queried.
    pub async fn utilization(&self, gpus: Vec<Gpu>) -> BTreeMap<GpuUuid, Utilization> {
        let timeout = self.answer_timeout();
        let asked = gpus.into_iter().filter_map(|gpu| Some((self.lane_of(&gpu.uuid)?, gpu)));
        let asked = asked.map(|(lane, gpu)| async move {
            lane.ask(timeout, move |backend| Ok(backend.utilization(&[gpu]))).await
        });
        join_all(asked.collect::<Vec<_>>()).await.into_iter().filter_map(Result::ok).flatten().collect()
    }

    pub async fn create(
        &self,
        gpu: GpuUuid,
        wanted: Instance,
        part: Option<ComputeInstance>,
    ) -> Result<GpuInstance, GpuError> {
        self.change(gpu.clone(), self.answer_timeout(), move |backend| backend.create(&gpu, wanted, part))
            .await
    }

    pub async fn destroy(
        &self,
        gpu: GpuUuid,
        instance: GpuInstance,
        part: Option<ComputeInstance>,
    ) -> Result<(), GpuError> {
        self.change(gpu.clone(), self.answer_timeout(), move |backend| backend.destroy(&gpu, &instance, part))
            .await
    }

    pub async fn set_mig_mode(&self, gpu: GpuUuid, on: bool, reset: bool) -> Result<(), GpuError> {
        self.change(gpu.clone(), self.timeout, move |backend| backend.set_mig_mode(&gpu, on, reset)).await
    }

    pub async fn compute_mode(&self, gpu: GpuUuid) -> Result<ComputeMode, GpuError> {
        self.change(gpu.clone(), self.answer_timeout(), move |backend| backend.compute_mode(&gpu)).await
    }

    pub async fn set_compute_mode(&self, gpu: GpuUuid, mode: ComputeMode) -> Result<(), GpuError> {
        let asked = self
            .change(gpu.clone(), self.answer_timeout(), move |backend| backend.set_compute_mode(&gpu, mode));
        self.count(Counted::SetExclusive, asked).await
    }

    pub async fn limit_memory(
        &self,
        gpu: GpuUuid,
        cgroup: String,
        limit: Option<MemoryMib>,
    ) -> Result<(), GpuError> {
        let asked = self.change(gpu.clone(), self.answer_timeout(), move |backend| {
            backend.limit_memory(&gpu, &cgroup, limit)
        });
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

    /// Makes a call about a GPU on that GPU's thread.
    async fn change<T: Send + 'static>(
        &self,
        gpu: GpuUuid,
        timeout: Duration,
        call: impl FnOnce(&mut dyn GpuBackend) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let lane = if let Some(lane) = self.lane_of(&gpu) {
            lane
        } else {
            let (_, unresponsive) = self.observe().await?;
            // The requested GPU may be the one that never answered, so return that error.
            let missing = unresponsive.into_values().next();
            self.lane_of(&gpu).ok_or_else(|| missing.unwrap_or(GpuError::NoSuchGpu(gpu)))?
        };
        let result = lane.ask(timeout, call).await;
        if let Some(error) = result.as_ref().err().filter(|error| error.needs_reopening()) {
            self.close(error.clone()).await;
        }
        result
    }

    fn answer_timeout(&self) -> Duration {
        self.timeout.min(ANSWER_TIMEOUT)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OneGpu>> {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread of a GPU that was seen before.
    fn lane_of(&self, gpu: &GpuUuid) -> Option<Lane> {
        let gpus = self.lock();
        let has = |one: &&OneGpu, well: bool| {
            one.seen.iter().any(|seen| seen.uuid == *gpu && (!well || seen.fault.is_none()))
        };
        // A GPU that has moved to another index is known at both, and only the one without a fault has its handle.
        let found =
            gpus.iter().find(|one| has(one, true)).or_else(|| gpus.iter().find(|one| has(one, false)));
        found.map(|one| one.lane.clone())
    }

    /// The threads of all GPUs that NVML counts. Opens NVML if it is closed.
    async fn lanes(&self) -> Result<Vec<OneGpu>, GpuError> {
        let gpus = Arc::clone(&self.gpus);
        let counted = self.node.ask(self.timeout, move |backend| {
            let count = backend.count()?;
            let mut gpus = gpus.lock().unwrap_or_else(PoisonError::into_inner);
            for index in (0..count).skip(gpus.len()) {
                let lane = Lane::with_backend(format!("nvml-{index}"), backend.for_one(index));
                let lane = lane.map_err(|error| GpuError::Thread(error.to_string()))?;
                gpus.push(OneGpu { lane, seen: Vec::new() });
            }
            Ok(gpus.clone())
        });
        let counted = counted.await;
        // The GPUs' handles belong to the closed session.
        if counted.as_ref().is_err_and(GpuError::needs_reopening) {
            self.lock().clear();
        }
        counted
    }

    /// Ends the GPUs' threads and closes NVML; the next observation opens it. A thread that hangs keeps its session
    /// until its call returns.
    async fn close(&self, error: GpuError) {
        self.lock().clear();
        drop(self.node.ask(self.timeout, |_| Err::<(), _>(error)).await);
    }
}

/// Returns each GPU once, sorted by index. A GPU that moved to another index is listed at both; the entry without a
/// fault counts.
fn each_once(mut gpus: Vec<Gpu>) -> Vec<Gpu> {
    // Entries without a fault come first, so that they are the ones that stay.
    gpus.sort_by_key(|gpu| gpu.fault.is_some());
    let mut known = BTreeSet::new();
    gpus.retain(|gpu| known.insert(gpu.uuid.clone()));
    gpus.sort_by_key(|gpu| gpu.index);
    gpus
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeGpus, uuid};
    use super::super::{GpuError, NvmlCode};
    use super::*;
    use kerf_core::mig::Placement;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn calls_outside_the_loop_are_counted_with_their_errors() {
        let gpus = FakeGpus::new(&["L4-24GB"]);
        let theirs = gpus.clone();
        let open = move || Ok(Box::new(theirs.clone()) as Box<dyn GpuBackend>);
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = Metrics::register(&mut registry);
        let thread =
            GpuThread::start(Box::new(open), Duration::from_mins(1)).unwrap().counted(metrics.clone());
        let error = |code| GpuError::Call { call: "nvmlX", code };
        gpus.fail_next(error(NvmlCode::NoPermission));
        thread.set_compute_mode(uuid(0), ComputeMode::ExclusiveProcess).await.unwrap_err();
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
    async fn the_backend_is_reopened_after_an_error_that_requires_it() {
        let (gpus, opened) = (FakeGpus::new(&["L4-24GB"]), Arc::new(AtomicU32::new(0)));
        let (theirs, count) = (gpus.clone(), Arc::clone(&opened));
        let open = move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(theirs.clone()) as Box<dyn GpuBackend>)
        };
        let thread = GpuThread::start(Box::new(open), Duration::from_mins(1)).unwrap();
        let answer = |code| GpuError::Call { call: "nvmlDeviceSetComputeMode", code };
        for (code, times) in
            [(NvmlCode::NoPermission, 1), (NvmlCode::Uninitialized, 1), (NvmlCode::NoPermission, 2)]
        {
            gpus.fail_next(answer(code));
            assert_eq!(
                thread.set_compute_mode(uuid(0), ComputeMode::ExclusiveProcess).await,
                Err(answer(code))
            );
            assert_eq!(opened.load(Ordering::Relaxed), times);
        }
    }

    /// Threads for these GPUs with this timeout.
    fn threads(gpus: &FakeGpus, timeout: Duration) -> GpuThread {
        let theirs = gpus.clone();
        let open = move || Ok(Box::new(theirs.clone()) as Box<dyn GpuBackend>);
        GpuThread::start(Box::new(open), timeout).unwrap()
    }

    fn faults(gpus: &[Gpu]) -> Vec<Option<GpuError>> {
        gpus.iter().map(|gpu| gpu.fault.clone()).collect()
    }

    #[tokio::test]
    async fn a_hung_gpu_delays_no_call_to_other_gpus() {
        let gpus = FakeGpus::new(&["H100-80GB", "H100-80GB"]);
        let thread = threads(&gpus, Duration::from_millis(200));
        let wanted =
            |start| Instance { profile: "1g.10gb".parse().unwrap(), placement: Placement { start, size: 1 } };
        thread.observe().await.unwrap();
        thread.create(uuid(0), wanted(0), None).await.unwrap();
        let before = thread.observe().await.unwrap().0;
        gpus.set_hanging(0, true);
        let (late, made) =
            tokio::join!(thread.create(uuid(0), wanted(1), None), thread.create(uuid(1), wanted(0), None));
        assert_eq!(late, Err(GpuError::Hangs(0)));
        made.unwrap();
        // The thread does not wait again for a request that timed out, and returns the GPU as it was last seen.
        let begun = Instant::now();
        let (seen, unresponsive) = thread.observe().await.unwrap();
        assert!(begun.elapsed() < Duration::from_millis(200) && unresponsive.is_empty());
        assert_eq!(faults(&seen), [Some(GpuError::Hangs(0)), None]);
        assert_eq!((&seen[0].instances, seen[1].instances.len()), (&before[0].instances, 1));
        assert_eq!(thread.create(uuid(0), wanted(2), None).await, Err(GpuError::Hangs(0)));
        thread.create(uuid(1), wanted(1), None).await.unwrap();
        // The GPU returns: the call under way is done, and the calls that were refused meanwhile are not.
        gpus.set_hanging(0, false);
        let seen = loop {
            let (seen, _) = thread.observe().await.unwrap();
            if faults(&seen) == [None, None] {
                break seen;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let starts: Vec<u8> = seen[0].instances.iter().map(|i| i.instance.placement.start).collect();
        assert_eq!(starts, [0, 1]);
    }

    #[tokio::test]
    async fn a_gpu_that_hangs_from_the_start_is_returned_apart() {
        let gpus = FakeGpus::new(&["L4-24GB", "L4-24GB"]);
        gpus.set_hanging(1, true);
        let thread = threads(&gpus, Duration::from_millis(50));
        let (seen, unresponsive) = thread.observe().await.unwrap();
        assert_eq!(seen.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0]);
        assert_eq!(unresponsive, Unresponsive::from([(1, GpuError::Hangs(0))]));
        assert_eq!(
            thread.set_compute_mode(uuid(1), ComputeMode::ExclusiveProcess).await,
            Err(GpuError::Hangs(0)),
            "it may be there"
        );
        gpus.set_hanging(1, false);
        while !thread.observe().await.unwrap().1.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(thread.observe().await.unwrap().0.len(), 2);
        let stranger = GpuUuid::new("GPU-x");
        assert_eq!(
            thread.set_compute_mode(stranger.clone(), ComputeMode::ExclusiveProcess).await,
            Err(GpuError::NoSuchGpu(stranger))
        );
    }

    #[test]
    fn a_gpu_at_a_new_index_is_listed_once_where_it_answers() {
        let seen = FakeGpus::new(&["L4-24GB", "L4-24GB"]).gpus();
        let was = Gpu { index: 3, fault: Some(GpuError::Stopped), ..seen[0].clone() };
        assert_eq!(each_once(vec![was, seen[1].clone(), seen[0].clone()]), seen);
    }
}
