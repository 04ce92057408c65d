//! One simulated agent: it makes the slices of its spec, each in its time, and writes what it sees as a real agent does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, SliceState, SliceStatus};
use kerf_core::names::{GpuUuid, NodeName, PodUid, SliceId};
use kerf_core::testing::slice_status;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep_until};

use super::agents::{Census, CutLanes, Shared};

/// How long a change that no bind waits for is held back, as in the agent's publisher.
const GATHER: Duration = Duration::from_millis(100);

/// The wait after a failed write.
const RETRY: Duration = Duration::from_millis(100);

/// What happens to an agent.
pub(super) enum Event {
    /// The spec.
    Spec(Box<GpuNodeSpec>),
    /// The kubelet has given this pod its devices.
    Allocated(PodUid),
    /// This pod has ended.
    Ended(PodUid),
}

/// The agent of one node.
pub(super) struct Agent {
    name: NodeName,
    shared: Arc<Shared>,
    spec: GpuNodeSpec,
    /// The newest status, and what was written last.
    status: GpuNodeStatus,
    written: GpuNodeStatus,
    /// When each slice exists.
    made: BTreeMap<SliceId, Instant>,
    /// Until when cuts are under way: on each GPU, or on the node.
    lanes: BTreeMap<Option<GpuUuid>, Instant>,
    holders: BTreeSet<PodUid>,
}

impl Agent {
    pub(super) fn new(name: NodeName, status: GpuNodeStatus, shared: Arc<Shared>) -> Self {
        Self {
            name,
            shared,
            spec: GpuNodeSpec::default(),
            written: status.clone(),
            status,
            made: BTreeMap::new(),
            lanes: BTreeMap::new(),
            holders: BTreeSet::new(),
        }
    }

    /// Answers until the sender of events is gone.
    pub(super) async fn run(mut self, mut events: UnboundedReceiver<Event>) {
        let mut write_by: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let next_cut = self.made.values().copied().filter(|at| *at > now).min();
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = until(next_cut) => {}
                () = until(write_by) => {}
            }
            while let Ok(event) = events.try_recv() {
                self.take(event);
            }
            self.observe();
            let fields = changes(&self.written, &self.status);
            if fields.is_empty() {
                write_by = None;
                continue;
            }
            let due = *write_by.get_or_insert_with(|| Instant::now() + GATHER);
            if !is_urgent(&self.written, &self.status) && Instant::now() < due {
                continue;
            }
            let status = self.status.clone();
            match self.shared.write(&self.name, &fields).await {
                Ok(()) => {
                    self.shared.report(&self.name, census(&status));
                    (self.written, write_by) = (status, None);
                }
                Err(error) => {
                    tracing::warn!(name = %self.name, %error, "failed to write a simulated agent's status");
                    tokio::time::sleep(RETRY).await;
                    write_by = Some(Instant::now());
                }
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Allocated(pod) => drop(self.holders.insert(pod)),
            Event::Ended(pod) => drop(self.holders.remove(&pod)),
            Event::Spec(spec) if spec.revision > self.spec.revision => {
                self.spec = *spec;
                self.cut();
            }
            Event::Spec(_) => {}
        }
    }

    /// Begins the cuts of slices that are new in the spec, each after those that it waits for.
    fn cut(&mut self) {
        let wanted: BTreeSet<_> = self.spec.slices.iter().map(|slice| &slice.id).collect();
        self.made.retain(|id, _| wanted.contains(id));
        let (now, time) = (Instant::now(), self.shared.cut());
        for slice in &self.spec.slices {
            if self.made.contains_key(&slice.id) {
                continue;
            }
            let lane = (self.shared.lanes == CutLanes::PerGpu).then(|| slice.gpu.clone());
            let free = self.lanes.entry(lane).or_insert(now);
            *free = (*free).max(now) + time;
            self.made.insert(slice.id.clone(), *free);
        }
    }

    /// Brings the status up to date. Slices that no spec has stay.
    fn observe(&mut self) {
        if self.spec.revision == 0 {
            return;
        }
        let now = Instant::now();
        let unasked = self.status.slices.iter().filter(|slice| slice.id.is_none()).cloned();
        let wanted = self.spec.slices.iter().map(|slice| {
            let holds = slice.reservation.as_ref().is_some_and(|r| self.holders.contains(&r.uid));
            let status = slice_status(slice, holds);
            let is_made = self.made.get(&slice.id).is_some_and(|at| *at <= now);
            if is_made { status } else { preparing(status) }
        });
        self.status.slices = unasked.chain(wanted).collect();
        self.status.observed_revision = self.spec.revision;
        self.status.observed_epoch = self.spec.epoch;
    }
}

fn preparing(status: SliceStatus) -> SliceStatus {
    SliceStatus { state: SliceState::Preparing, device: None, ready_for: None, holder: None, ..status }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Whether the extender waits for this, as in the agent's publisher.
fn is_urgent(written: &GpuNodeStatus, status: &GpuNodeStatus) -> bool {
    let said = |slice: &SliceStatus| {
        written.slices.iter().any(|w| {
            (&w.id, w.state, &w.ready_for, &w.gpu) == (&slice.id, slice.state, &slice.ready_for, &slice.gpu)
        })
    };
    let mut awaited = status.slices.iter().filter(|slice| slice.state == SliceState::Ready);
    !awaited.all(said)
}

/// The fields that changed, of those that an agent changes here.
fn changes(written: &GpuNodeStatus, status: &GpuNodeStatus) -> Map<String, Value> {
    let mut fields = Map::new();
    if written.slices != status.slices {
        fields.insert("slices".to_owned(), json!(status.slices));
    }
    if written.observed_revision != status.observed_revision {
        fields.insert("observedRevision".to_owned(), json!(status.observed_revision));
    }
    if written.observed_epoch != status.observed_epoch {
        fields.insert("observedEpoch".to_owned(), json!(status.observed_epoch));
    }
    fields
}

pub(super) fn census(status: &GpuNodeStatus) -> Census {
    let mut census = Census::default();
    for slice in &status.slices {
        match slice.state {
            SliceState::Held => census.held += 1,
            SliceState::Idle => census.idle += 1,
            _ => census.reserved += 1,
        }
    }
    census
}
