//! Measures one point: creates its Deployments, follows their pods until all copies were warm for long enough, and
//! deletes them.

use super::cluster::{Cluster, POLL_INTERVAL};
use super::follow::{self, Follower};
use super::granted::{self, Expected, Granted, Mismatch};
use super::objects;
use super::plan::Planned;
use super::pod_state::{self, PodState};
use super::subject::Subject;
use super::window::{Copy, NoTurns, Window};
use crate::counted::counted;
use k8s_openapi::api::core::v1::Pod;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use thiserror::Error;
use tokio::time::Instant;

/// The number of failed reads in a row that a point survives. At two reads a second this is ten seconds without an API
/// server, so a restart of it does not end a run.
const MISS_LIMIT: u32 = 20;

#[derive(Debug, Clone, Copy)]
pub struct Group<'g> {
    pub name: &'g str,
    pub subject: &'g Subject,
    pub asks: &'g BTreeMap<String, String>,
    pub planned: &'g Planned,
}

#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub start_within: Duration,
    pub warm_up: Duration,
    pub measure: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub granted: Granted,
    pub output: Copy,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    pub groups: Vec<Vec<Report>>,
    pub window: Window,
}

impl Trial {
    pub fn copies(&self, group: usize) -> Vec<&Copy> {
        self.groups[group].iter().map(|report| &report.output).collect()
    }
}

#[derive(Debug, Error)]
pub enum TrialError {
    /// The cluster itself fails. No further point is tried, because it would fail as well.
    #[error(transparent)]
    Cluster(#[from] anyhow::Error),
    #[error("no pod is made: {0}")]
    Refused(String),
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    #[error("pod {pod}: {why}{context}")]
    Ended { pod: String, why: String, context: String },
    #[error("pod {0} went away while it was measured; somebody deleted or evicted it")]
    Gone(String),
    #[error("after {} s {why}{context}", waited.as_secs())]
    Late { waited: Duration, why: String, context: String },
    #[error(transparent)]
    NoTurns(#[from] NoTurns),
}

impl From<kube::Error> for TrialError {
    fn from(error: kube::Error) -> Self {
        Self::Cluster(anyhow::Error::new(error).context("the API server does not answer as it should"))
    }
}

/// Runs these Deployments together and deletes them. An error of the deletion takes precedence over the result, because
/// pods that are left would falsify the next point.
pub async fn trial(cluster: &Cluster, groups: &[Group<'_>], times: Times) -> Result<Trial, TrialError> {
    for group in groups {
        // The slices of the previous point outlive its pods for a moment, and would fix the GPU's kind.
        cluster.until_free(group.planned.target.gpu.uuid.as_str()).await?;
    }
    let trial = run(cluster, groups, times).await;
    cluster.remove_deployments().await?;
    trial
}

async fn run(cluster: &Cluster, groups: &[Group<'_>], times: Times) -> Result<Trial, TrialError> {
    for Group { name, subject, asks, planned } in groups {
        let deployment = objects::deployment(&cluster.run, name, subject, planned.copies, asks);
        cluster.deploy(&deployment).await?;
    }
    let mut watch = Watch::new(cluster, groups, times);
    let mut misses = 0;
    loop {
        match watch.read_pods().await {
            Ok(()) => misses = 0,
            Err(TrialError::Cluster(_)) if misses < MISS_LIMIT => misses += 1,
            Err(error) => return Err(error),
        }
        if let Some(window) = watch.window().filter(|window| window.is_enough(times.measure, watch.copies()))
        {
            return Ok(watch.trial(window));
        }
        watch.deadline().await?;
        watch.read_logs().await;
    }
}

struct Followed {
    group: usize,
    granted: Option<Granted>,
    state: PodState,
    follower: Option<Follower>,
    output: Copy,
}

struct Watch<'w> {
    cluster: &'w Cluster,
    groups: &'w [Group<'w>],
    times: Times,
    begun: Instant,
    all_started: Option<Instant>,
    copies: BTreeMap<String, Followed>,
    printed: String,
}

impl<'w> Watch<'w> {
    fn new(cluster: &'w Cluster, groups: &'w [Group<'w>], times: Times) -> Self {
        let (copies, printed) = (BTreeMap::new(), String::new());
        Self { cluster, groups, times, begun: Instant::now(), all_started: None, copies, printed }
    }

    async fn read_pods(&mut self) -> Result<(), TrialError> {
        let mut seen = BTreeSet::new();
        for (index, group) in self.groups.iter().enumerate() {
            let pods = self.cluster.pods_of(group.name).await?;
            // Only missing pods need the Deployment's conditions, so a point that runs costs no extra request.
            if pods.len() < group.planned.copies as usize {
                // Only a denial by admission ends the run, because other failures to create pods may pass.
                let refusal = self.cluster.refusal(group.name).await?;
                if let Some(refusal) = refusal.filter(|text| text.contains("denied the request")) {
                    return Err(TrialError::Refused(refusal));
                }
            }
            for pod in &pods {
                seen.insert(granted::name(pod));
                self.update(index, pod).await?;
            }
        }
        match self.copies.keys().find(|pod| !seen.contains(*pod)) {
            Some(pod) => Err(TrialError::Gone(pod.clone())),
            None => Ok(()),
        }
    }

    async fn update(&mut self, index: usize, pod: &Pod) -> Result<(), TrialError> {
        let group = &self.groups[index];
        let name = granted::name(pod);
        let expected = Expected {
            container: &group.subject.container,
            kind: group.planned.technology.kind(),
            gpu: &group.planned.target.gpu.uuid,
            threads: group.planned.threads,
        };
        let granted = granted::granted(pod, &expected)?;
        let state = pod_state::state(pod, expected.container);
        let copy = self.copies.entry(name.clone()).or_insert_with(|| Followed {
            group: index,
            granted: None,
            state: state.clone(),
            follower: None,
            output: Copy::default(),
        });
        (copy.granted, copy.state) = (granted, state);
        if copy.state == PodState::Runs && copy.follower.is_none() {
            copy.follower =
                Some(Follower::start(self.cluster.pods(), name.clone(), expected.container.to_owned()));
        }
        let PodState::Ends(why) = copy.state.clone() else { return Ok(()) };
        Err(TrialError::Ended { context: self.context(&name, expected.container).await, pod: name, why })
    }

    async fn read_logs(&mut self) {
        tokio::time::sleep(POLL_INTERVAL).await;
        for copy in self.copies.values_mut() {
            let Some(follower) = &mut copy.follower else { continue };
            follower.new_lines().for_each(|line| copy.output.add(line));
        }
        self.print_progress();
    }

    fn window(&self) -> Option<Window> {
        let wanted: u32 = self.groups.iter().map(|group| group.planned.copies).sum();
        let ready = self.copies.values().filter(|copy| copy.granted.is_some()).count();
        (ready == wanted as usize).then(|| Window::from_copies(self.copies()))?
    }

    fn copies(&self) -> impl Iterator<Item = &Copy> + Clone {
        self.copies.values().map(|copy| &copy.output)
    }

    fn trial(self, window: Window) -> Trial {
        let mut groups: Vec<Vec<Report>> = self.groups.iter().map(|_| Vec::new()).collect();
        for copy in self.copies.into_values() {
            if let Some(granted) = copy.granted {
                groups[copy.group].push(Report { granted, output: copy.output });
            }
        }
        Trial { groups, window }
    }

    fn started(&self) -> usize {
        self.copies.values().filter(|copy| copy.output.start.is_some()).count()
    }

    fn wanted(&self) -> usize {
        self.groups.iter().map(|group| group.planned.copies as usize).sum()
    }

    fn print_progress(&mut self) {
        let (started, wanted) = (self.started(), self.wanted());
        let runs = self.copies.values().filter(|copy| copy.state == PodState::Runs).count();
        let printed = if started < wanted {
            format!("{runs} of {wanted} run, {started} have begun to work")
        } else if self.window().is_none() {
            "all work; warming up".to_owned()
        } else {
            "all are warm; measuring".to_owned()
        };
        if printed != self.printed {
            eprintln!("  {:5.1} s  {printed}", self.begun.elapsed().as_secs_f64());
            self.printed = printed;
        }
    }

    async fn deadline(&mut self) -> Result<(), TrialError> {
        let Times { start_within, warm_up, measure } = self.times;
        if self.started() == self.wanted() {
            let since = self.all_started.get_or_insert_with(Instant::now).elapsed();
            if since < warm_up + measure + start_within {
                return Ok(());
            }
            let why = "the copies were not warm together for long enough; is one turn longer than --measure?";
            return Err(TrialError::Late {
                waited: self.begun.elapsed(),
                why: why.to_owned(),
                context: String::new(),
            });
        }
        if self.begun.elapsed() < start_within {
            return Ok(());
        }
        Err(self.late().await)
    }

    async fn late(&self) -> TrialError {
        let waited = self.begun.elapsed();
        let Some((pod, copy)) = self.copies.iter().find(|(_, copy)| copy.output.start.is_none()) else {
            let why = format!("{} of {} exist", self.copies.len(), counted(self.wanted(), "pod"));
            let refusal = self.cluster.refusal(self.groups[0].name).await.ok().flatten();
            let context = refusal.map(|text| format!(": {text}")).unwrap_or_default();
            return TrialError::Late { waited, why, context };
        };
        let container = &self.groups[copy.group].subject.container;
        let why = match &copy.state {
            PodState::Pending(why) | PodState::Ends(why) => format!("pod {pod} does not run: {why}"),
            PodState::Runs => format!(
                "pod {pod} runs, but its log has no start line of client.py; the measured container must run client.py, which runs any program by --workload command (docs/sharing.md)"
            ),
        };
        TrialError::Late { waited, why, context: self.context(pod, container).await }
    }

    /// Facts that explain a pod's failure: the end of its log, or else its Events.
    async fn context(&self, pod: &str, container: &str) -> String {
        let (what, lines) = match follow::tail(&self.cluster.pods(), pod, container).await {
            Ok(lines) if !lines.is_empty() => ("its log ends with".to_owned(), lines),
            log => {
                let runs = self.copies.get(pod).is_some_and(|copy| copy.state == PodState::Runs);
                let unread =
                    log.err().filter(|_| runs).map(|error| format!("its log cannot be read: {error}; "));
                let events = pod_state::newest(self.cluster.events(pod).await);
                (format!("{}its Events", unread.unwrap_or_default()), events)
            }
        };
        let lines =
            if lines.is_empty() { " none".to_owned() } else { format!("\n    {}", lines.join("\n    ")) };
        format!("; {what}:{lines}")
    }
}
