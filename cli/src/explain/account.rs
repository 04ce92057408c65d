//! Turns the records of pods into short accounts in the order of time. Pure.

use super::records::{Recorded, Records, is_bound};
use crate::counted::counted;
use crate::output::{Format, Report};
use crate::placement::{Choice, Nodes};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kerf_core::contract::{AssignmentDocument, ContainerRequest, RequestDocument, SliceState, SliceStatus};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::names::SliceId;
use kerf_core::request::dialect_of;
use kerf_runtime::destinations::Destinations;
use kerf_runtime::gpu_node::GpuNode;
use serde::Serialize;
use std::fmt::{self, Write};

#[derive(Debug, Serialize)]
pub struct Accounts {
    pods: Vec<Account>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Account {
    namespace: String,
    name: Option<String>,
    uid: Option<String>,
    phase: Option<String>,
    node: Option<String>,
    request: Option<RequestDocument>,
    assignment: Option<AssignmentDocument>,
    entries: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    /// When it happened; `None` for the present state.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Timestamp>,
    #[serde(rename = "topic")]
    kind: EntryKind,
    lines: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum EntryKind {
    Admission,
    Event,
    Scheduling,
    Assignment,
    Reservation,
    Nodes,
    Phase,
    Unknown,
}

impl Accounts {
    pub fn new(records: &Records) -> Self {
        let nodes = records.nodes_for_pods();
        Self { pods: records.pods.iter().map(|pod| Account::new(pod, records, &nodes)).collect() }
    }
}

impl Report for Accounts {
    fn text(&self, _format: Format) -> String {
        self.pods.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }
}

impl Account {
    fn new(recorded: &Recorded, records: &Records, nodes: &Nodes) -> Self {
        let pod = &recorded.pod;
        let events = recorded.events.iter().flatten().map(event);
        let mut entries: Vec<Entry> = events.chain(scheduled(pod)).collect();
        // The sort is stable, so that entries of the same second keep their order. The creation comes first, because no
        // record of a pod is older.
        entries.sort_by_key(|entry| entry.time.unwrap_or(Timestamp::MAX));
        entries.insert(0, admission(pod));
        entries.push(assignment(pod));
        entries.extend(reservations(pod, records));
        entries.extend(by_node(pod, records, nodes));
        entries.push(current_phase(pod));
        entries.extend(without_events(recorded).map(|line| undated(EntryKind::Unknown, line)));
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned()),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            phase: pod.status.as_ref().and_then(|status| status.phase.clone()),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            request: annotation(pod, keys::REQUEST).and_then(|text| RequestDocument::parse(text).ok()),
            assignment: assigned(pod).and_then(Result::ok),
            entries,
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, uid, entries, .. } = self;
        let name = name.as_deref().unwrap_or("without a name");
        let uid = uid.as_deref().unwrap_or("not known: it was not created yet");
        writeln!(f, "Pod {namespace}/{name}, uid {uid}\n")?;
        for Entry { time, lines, .. } in entries {
            let time = time.map_or_else(String::new, |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
            for (number, line) in lines.iter().enumerate() {
                let time = if number == 0 { time.as_str() } else { "" };
                writeln!(f, "{}", format!("{time:20}  {line}").trim_end())?;
            }
        }
        Ok(())
    }
}

fn without_events(recorded: &Recorded) -> Option<String> {
    match &recorded.events {
        Err(why) => Some(format!("Not known: Events: {why}")),
        Ok(events) if events.is_empty() => {
            Some("Not recorded: Events. The API server forgets them, by default after an hour.".to_owned())
        }
        Ok(_) => None,
    }
}

fn undated(kind: EntryKind, line: String) -> Entry {
    Entry { time: None, kind, lines: vec![line] }
}

fn admission(pod: &Pod) -> Entry {
    let time = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let document = annotation(pod, keys::REQUEST).map(RequestDocument::parse);
    let head = if time.is_some() { "Created." } else { "Not recorded: when it was created." };
    let lines = match document {
        None => {
            let none = "Not recorded: a request. kerf's webhook has not admitted the pod, so kerf decides nothing about it.";
            [head, none].map(str::to_owned).into_iter().chain(dialect_limits(pod)).collect()
        }
        Some(Err(error)) => vec![head.to_owned(), format!("Not readable: {error}")],
        Some(Ok(document)) => decision(&document),
    };
    Entry { time, kind: EntryKind::Admission, lines }
}

/// Limits by which the pod asks in another system's words. They are listed, because they count only under a policy with
/// that dialect.
fn dialect_limits(pod: &Pod) -> impl Iterator<Item = String> {
    let containers =
        pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers.flat_map(|container| {
        let limits = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
        limits.filter_map(|(limit, amount)| {
            let dialect = dialect_of(limit).filter(|_| amount.0 != "0")?;
            let name = &container.name;
            Some(format!(
                "  container {name} asks by {limit}, which is kerf's only where a policy for the pod has {dialect} in spec.dialects"
            ))
        })
    })
}

fn decision(document: &RequestDocument) -> Vec<String> {
    let RequestDocument { isolation, containers, gpus, never_evicts, chosen, .. } = document;
    let mut lines = Vec::new();
    match chosen {
        None => lines.push(format!("Created. The webhook chose, with isolation {isolation}:")),
        Some(chosen) => {
            let dialect = chosen.dialect.as_ref().map(|dialect| format!(", which asks as {dialect} does"));
            let dialect = dialect.unwrap_or_default();
            lines.push(format!(
                "Created. The webhook chose for the pod{dialect}, by policy {} and with isolation {isolation}:",
                chosen.policy
            ));
        }
    }
    lines.extend(containers.iter().map(container));
    if chosen.is_none() {
        lines.push("  not recorded: which policy matched".to_owned());
    }
    let listed = [
        ("only on GPUs of model", gpus.models.join(", ")),
        ("not on GPUs of model", gpus.not_models.join(", ")),
        ("only on", gpus.uuids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
        ("not on", gpus.not_uuids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    ];
    let listed = listed.into_iter().filter(|(_, names)| !names.is_empty());
    lines.extend(listed.map(|(what, names)| format!("  {what} {names}")));
    if *never_evicts {
        lines.push("  no pod is evicted to make room for it".to_owned());
    }
    lines
}

fn container(container: &ContainerRequest) -> String {
    let ContainerRequest { name, size_gb, count, resource, kinds, memory, compute, profile, .. } = container;
    let distinct = container.needs_distinct_gpus();
    let slices = counted(*count, "slice");
    let mut line = format!("  container {name}: {slices} of {resource}, for {size_gb} asked");
    let wants = [
        profile.map(|profile| format!("exactly {profile}")),
        memory.map(|memory| format!("at least {memory} really")),
        compute.map(|share| format!("at least {share} of the compute")),
        distinct.then(|| format!("of {count} different GPUs, so by whole GPUs or time slices only")),
    ];
    for want in wants.into_iter().flatten() {
        let _infallible = write!(line, ", {want}");
    }
    let kinds: Vec<&str> = kinds.iter().map(|kind| Kind::as_str(*kind)).collect();
    if !kinds.is_empty() {
        let _infallible = write!(line, ", by the first of these kinds that is free: {}", kinds.join(", "));
    }
    line
}

fn event(event: &Event) -> Entry {
    let series = event.series.as_ref();
    let times = [
        series.and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0),
        event.last_timestamp.as_ref().map(|time| time.0),
        event.event_time.as_ref().map(|time| time.0),
        event.metadata.creation_timestamp.as_ref().map(|time| time.0),
    ];
    let by = event.reporting_component.clone().filter(|name| !name.is_empty());
    let by = by.or_else(|| event.source.as_ref()?.component.clone()).unwrap_or_else(|| "somebody".to_owned());
    let count = series.and_then(|series| series.count).or(event.count).filter(|count| *count > 1);
    let count = count.map(|count| format!(", {}", counted(count, "time"))).unwrap_or_default();
    let reason = event.reason.as_deref().unwrap_or("no reason");
    let message = event.message.as_deref().unwrap_or("no message").replace('\n', " ");
    Entry {
        time: times.into_iter().flatten().next(),
        kind: EntryKind::Event,
        lines: vec![format!("{reason} ({by}{count}): {message}")],
    }
}

fn scheduled(pod: &Pod) -> Option<Entry> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    let time = condition.last_transition_time.as_ref().map(|time| time.0);
    let line = if condition.status == "True" {
        "Bound to a node.".to_owned()
    } else {
        let reason = condition.reason.as_deref().unwrap_or("no reason");
        let message = condition.message.as_deref().unwrap_or("no message");
        format!("Not scheduled since then ({reason}): {message}")
    };
    Some(Entry { time, kind: EntryKind::Scheduling, lines: vec![line] })
}

fn assignment(pod: &Pod) -> Entry {
    match assigned(pod) {
        None => undated(
            EntryKind::Assignment,
            "Not recorded: an assignment. The extender has not bound the pod.".to_owned(),
        ),
        Some(Err(error)) => undated(
            EntryKind::Assignment,
            format!("Not readable: the annotation {}: {error}", keys::ASSIGNMENT),
        ),
        Some(Ok(document)) => {
            let slices = document.slices.iter().map(|slice| {
                let kind = slice.shape.kind();
                format!(
                    "  container {}: {kind} slice {} ({}) on {}",
                    slice.container, slice.id, slice.shape, slice.gpu
                )
            });
            let devices =
                document.devices.iter().map(|given| format!("  container {}: {given}", given.container));
            let head = "Assigned with the Binding:".to_owned();
            let passed = document.passed.iter().map(|passed| format!("  {passed}"));
            let lines = std::iter::once(head).chain(slices).chain(devices).chain(passed).collect();
            Entry { time: None, kind: EntryKind::Assignment, lines }
        }
    }
}

/// Whether NVIDIA's device plugin serves the pod. Such a pod has no reservation, because no GpuNode has such devices.
fn is_on_static_node(pod: &Pod) -> bool {
    assigned(pod).and_then(Result::ok).is_some_and(|document| !document.devices.is_empty())
}

fn assigned(pod: &Pod) -> Option<serde_json::Result<AssignmentDocument>> {
    Some(serde_json::from_str(annotation(pod, keys::ASSIGNMENT)?))
}

fn reservations(pod: &Pod, records: &Records) -> Vec<Entry> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let nodes = records.nodes.iter().flatten();
    let found: Vec<Entry> = nodes.filter_map(|node| reserved_on(node, uid)).collect();
    if !found.is_empty() || is_on_static_node(pod) {
        return found;
    }
    let line = match &records.nodes {
        Err(why) => format!("Not known: whether a GpuNode has a reservation of the pod: {why}"),
        Ok(nodes) if nodes.is_empty() => "Not recorded: any GpuNode.".to_owned(),
        Ok(_) => "Not recorded: a reservation. No GpuNode has a reservation of the pod now.".to_owned(),
    };
    vec![undated(EntryKind::Reservation, line)]
}

/// The offer of each node for a pending pod. It is computed here, because the scheduler records only how many nodes
/// have which reason.
fn by_node(pod: &Pod, records: &Records, nodes: &Nodes) -> Option<Entry> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    // A node with an unreadable status counts as one without capacity, because it shows no reservation.
    let statuses = records.nodes.iter().flatten().filter_map(|node| node.read_status().ok().flatten());
    let is_reserved = statuses.flat_map(|status| status.slices).any(|slice| is_for(&slice, uid));
    let document = RequestDocument::parse(annotation(pod, keys::REQUEST)?).ok()?;
    if is_bound(pod) || is_reserved {
        return None;
    }
    let destinations = Destinations::of_pod(&serde_json::to_value(pod).ok()?).ok()?;
    let choice = Choice::new(nodes, &destinations, &document);
    let unknown = [
        ("the nodes that kerf serves", records.nodes.as_ref().err()),
        ("the nodes that NVIDIA's device plugin serves", records.static_nodes.as_ref().err()),
        ("labels and taints of the nodes", records.machines.as_ref().err()),
        ("whether MIG devices of these get other names", records.renames_unknown.as_ref()),
    ];
    let unknown: Vec<String> = unknown
        .into_iter()
        .filter_map(|(which, why)| Some(format!("  not known: {which}: {}", why?)))
        .collect();
    let answers = choice.lines();
    if answers.is_empty() && unknown.is_empty() {
        return None;
    }
    let best = choice.taken().map(|(name, taken)| format!("  now it would get {taken} of node {name}"));
    let passed = choice.passed.iter().map(|passed| format!("    {passed}"));
    let head = "By node, not recorded but decided anew by what the nodes say now:".to_owned();
    let beside = if nodes.know_machines() { "" } else { "taints, labels, " };
    let rest = format!(
        "  ({beside}CPU, volumes, quotas and the pods before it in the queue are the scheduler's part: see FailedScheduling)"
    );
    let answers = answers.into_iter().map(|line| format!("  {line}"));
    let lines = std::iter::once(head).chain(best).chain(passed).chain(answers).chain(unknown).chain([rest]);
    Some(Entry { time: None, kind: EntryKind::Nodes, lines: lines.collect() })
}

fn is_for(slice: &SliceStatus, uid: &str) -> bool {
    slice.reservation.as_ref().is_some_and(|reservation| reservation.uid.as_str() == uid)
}

fn reserved_on(node: &GpuNode, uid: &str) -> Option<Entry> {
    let name = node.name();
    let status = match node.read_status() {
        Ok(status) => status.unwrap_or_default(),
        Err(error) => {
            let line = format!("Not readable: GpuNode {name}: {error}");
            return Some(undated(EntryKind::Reservation, line));
        }
    };
    let slices = status.slices.iter().filter(|slice| is_for(slice, uid)).map(reserved_slice);
    let lines: Vec<String> = std::iter::once(format!("Reserved on node {name}:")).chain(slices).collect();
    (lines.len() > 1).then_some(Entry { time: None, kind: EntryKind::Reservation, lines })
}

fn reserved_slice(slice: &SliceStatus) -> String {
    let container = slice.reservation.as_ref().map(|r| r.container.as_str()).unwrap_or_default();
    let id = slice.id.as_ref().map(SliceId::as_str).unwrap_or_default();
    let message = slice.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
    let holder = slice.holder.as_ref();
    let holder = holder.map(|h| format!(" by container {} of {}", h.container, h.key())).unwrap_or_default();
    let state = state_text(slice.state);
    let (shape, gpu) = (slice.shape, &slice.gpu);
    format!("  container {container}: slice {id} ({shape}) on {gpu}; the agent says {state}{holder}{message}")
}

fn state_text(state: SliceState) -> &'static str {
    match state {
        SliceState::Preparing => "it is being made",
        SliceState::Waiting => "it waits for another of its name to be taken",
        SliceState::Ready => "it is ready",
        SliceState::Held => "it is held",
        SliceState::Idle => "it is idle",
        SliceState::Failed => "it could not be made",
    }
}

fn current_phase(pod: &Pod) -> Entry {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let place = node.map(|node| format!(" on node {node}")).unwrap_or_default();
    let line = match phase {
        Some(phase) => format!("Now {phase}{place}."),
        None => format!("Not recorded: a phase{place}."),
    };
    undated(EntryKind::Phase, line)
}

fn annotation<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;
