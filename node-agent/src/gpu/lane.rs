//! A thread with a backend that makes calls one after the other.

use super::{GpuBackend, GpuError, NvmlCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Opens a backend. It is called on the thread at the first call, and after an error that requires reopening.
pub type Open = Box<dyn FnMut() -> Result<Box<dyn GpuBackend>, GpuError> + Send>;

type Call = Box<dyn FnOnce(&mut Backend) + Send>;

/// A handle of the thread, which ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    calls: mpsc::Sender<Call>,
    /// Whether a call has exceeded its timeout and has not returned since.
    is_overdue: Arc<AtomicBool>,
}

impl Lane {
    pub(super) fn start(name: String, open: Open) -> std::io::Result<Self> {
        Self::serve(name, Backend { opened: None, open })
    }

    /// Starts a thread with an open backend that cannot be reopened: after its close, NVML itself has to be opened.
    pub(super) fn with_backend(name: String, opened: Box<dyn GpuBackend>) -> std::io::Result<Self> {
        let closed = || Err(GpuError::Call { call: "nvmlInit_v2", code: NvmlCode::Uninitialized });
        Self::serve(name, Backend { opened: Some(opened), open: Box::new(closed) })
    }

    fn serve(name: String, mut backend: Backend) -> std::io::Result<Self> {
        let (calls, queue) = mpsc::channel::<Call>();
        let serve = move || {
            for call in queue {
                call(&mut backend);
            }
        };
        std::thread::Builder::new().name(name).spawn(serve)?;
        Ok(Self { calls, is_overdue: Arc::default() })
    }

    /// Makes a call and waits for it at most `timeout`. If a call returns later, the next observation shows its effect.
    /// A call that has not begun by then is skipped.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&mut dyn GpuBackend) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let hangs = GpuError::Hangs(timeout.as_secs());
        if self.is_overdue.load(Ordering::Relaxed) {
            return Err(hangs);
        }
        let (reply, answer) = oneshot::channel();
        self.send(Box::new(move |backend| {
            if !reply.is_closed() {
                drop(reply.send(backend.call(call)));
            }
        }))?;
        if let Ok(answer) = tokio::time::timeout(timeout, answer).await {
            return answer.map_err(|_| GpuError::Stopped)?;
        }
        self.is_overdue.store(true, Ordering::Relaxed);
        // The queue is processed in order, so this runs once the overdue call has returned.
        let is_overdue = Arc::clone(&self.is_overdue);
        self.send(Box::new(move |_| is_overdue.store(false, Ordering::Relaxed)))?;
        Err(hangs)
    }

    fn send(&self, call: Call) -> Result<(), GpuError> {
        self.calls.send(call).map_err(|_| GpuError::Stopped)
    }
}

/// The backend, opened on its first use.
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
