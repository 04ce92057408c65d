//! Malicious tenants beside a neighbour that works: none of their attempts may do harm.

mod attempts;
mod neighbour;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use crate::real_node::Process;
use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_tests::cluster::{resource_of, wait};
use kerf_tests::pods::{phase_of, state_of};
use kube::api::PostParams;

use super::scene::Scene;
use crate::job::Ask;
use crate::tenant::{self, Facts, Ready, Tenant, Tried};
use attempts::{ATTEMPTS, Attempt};
use neighbour::Neighbour;

const TRIES: u64 = 10;

/// The share is as large as the neighbour's, so that the daemon's limit equals the tenant's own.
const SHARE: Ask = Ask::Share(10);

/// The resource name that the webhook writes if only MPS can serve the pod.
const NAME: &str = "nvidia.com/gpu-10gb";

/// Longer than the tenant's own timeout for a try.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A daemon that answers later than this was kept busy: the attempts hold connections and locks for a second.
const ANSWER_LIMIT: Duration = Duration::from_millis(800);

/// Part of the error for a pod that could command the daemon.
const REFUSAL: &str = "could command the MPS daemon";

/// Output of a tenant that got what it must not get.
const GAINS: [&str; 2] = ["MORE THAN ITS SHARE", "FOUND WHAT"];

/// Plays each tenant, and reports how often one harmed its neighbour.
pub async fn harms_no_other_tenant(scene: &Scene<'_>) -> anyhow::Result<String> {
    tenant::write_programs(scene.args)?;
    let kept_out = kept_out(scene, &Tenant::mounting(scene.args, SHARE)?).await?;
    let kept_out = kept_out.context("kerf gives a share to root that may mount in its user namespace")?;
    let mut reported = vec![format!("root that may mount: no share, {kept_out}")];
    for tenant in [Tenant::Root, Tenant::User] {
        reported.push(format!("{}: {}", tenant.text(), play(scene, tenant).await?));
        scene.clear().await?;
    }
    Ok(reported.join("; "))
}

async fn play(scene: &Scene<'_>, tenant: Tenant) -> anyhow::Result<String> {
    if let Some(kept_out) = kept_out(scene, &tenant.pod(scene.args, SHARE)?).await? {
        // Only the root tenant needs a user namespace, which this node may lack.
        ensure!(tenant == Tenant::Root, "{}: {kept_out}", tenant.name());
        return Ok(format!("NOT TRIED, for this node has no user namespaces: no share, {kept_out}"));
    }
    let (mut hurt, mut unproven, mut slowed) = (Vec::new(), Vec::new(), Vec::new());
    let mut stage = match Stage::set(scene, tenant).await? {
        Ok(stage) => stage,
        Err(why) => {
            ensure!(tenant == Tenant::Root, "{} did not start: {why}", tenant.name());
            scene.clear().await?;
            return Ok(format!("NOT TRIED, for its container did not start in a user namespace: {why}"));
        }
    };
    for attempt in ATTEMPTS {
        let outcome = stage.tries(attempt).await?;
        println!("       {}: {}", tenant.name(), outcome.text(attempt));
        if attempt.needs_exclusive && !stage.neighbour.is_exclusive() {
            unproven.push(attempt.name.to_owned());
        }
        if outcome.slowest >= ANSWER_LIMIT {
            slowed.push(format!("{} ms by {}", outcome.slowest.as_millis(), attempt.name));
        }
        if let Some(harm) = outcome.harm {
            hurt.push(format!("{}: {harm}", attempt.name));
            stage.strike().await?;
            let next = Stage::set(scene, tenant).await?;
            stage = next.map_err(|why| anyhow::anyhow!("{} did not start again: {why}", tenant.name()))?;
        }
    }
    stage.strike().await?;
    let what = format!("{} kinds × {TRIES} tries: {} hurt the neighbour", ATTEMPTS.len(), hurt.len());
    ensure!(hurt.is_empty(), "{} of {what}:\n{}", tenant.name(), hurt.join("\n"));
    let but = |why: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!(" ({why}: {})", names.join(", ")),
    };
    let unproven = but("unproven here, for the GPU is not in exclusive mode", &unproven);
    // A slow daemon disturbs no running work, but delays new clients of the GPU.
    let slowed = but("the daemon let others wait", &slowed);
    Ok(format!("{what}{unproven}{slowed}"))
}

/// How kerf denies a share to a pod that could command the daemon; `None` if the pod gets one.
async fn kept_out(scene: &Scene<'_>, pod: &Pod) -> anyhow::Result<Option<String>> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    match scene.pods.api().create(&dry_run, pod).await {
        Err(kube::Error::Api(status)) if status.message.contains(REFUSAL) => {
            Ok(Some("refused by name at admission".to_owned()))
        }
        admitted => {
            let resource = resource_of(&admitted?)?;
            Ok((resource != NAME).then(|| format!("it is to wait for {resource}")))
        }
    }
}

/// A working neighbour, and a tenant beside it that takes orders.
struct Stage<'a> {
    scene: &'a Scene<'a>,
    tenant: Tenant,
    pod: Pod,
    neighbour: Neighbour<'a>,
    facts: Facts,
    serial: u64,
}

/// The result of an attempt's tries.
struct Outcome {
    tries: u64,
    /// The distinct outputs of the tenant.
    said: Vec<String>,
    /// The longest time that the daemon took to answer another client.
    slowest: Duration,
    /// The harm done by the last try.
    harm: Option<String>,
}

impl<'a> Stage<'a> {
    /// Starts both. The inner error says why the tenant's container did not start.
    async fn set(scene: &'a Scene<'a>, tenant: Tenant) -> anyhow::Result<Result<Self, String>> {
        let mut neighbour = Neighbour::start(scene).await?;
        tenant.order_nothing(scene.args)?;
        scene.pods.create(&tenant.pod(scene.args, SHARE)?).await?;
        if let Err(error) = scene.pods.running(tenant.name()).await {
            neighbour.end()?;
            let pod = scene.pods.get(tenant.name()).await?;
            return Ok(Err(format!("{error:#}; {}", state_of(&pod))));
        }
        let pod = scene.pods.get(tenant.name()).await?;
        let resource = resource_of(&pod)?;
        ensure!(resource == NAME, "{}: expected {NAME}, saw {resource}", tenant.name());
        let ready: Ready = serde_json::from_str(&scene.line(&pod, "READY ", TIMEOUT).await?)?;
        ensure_unprivileged(tenant, &pod, &ready)?;
        neighbour.ensure_beside(tenant.name()).await?;
        // Whatever the tenant changes after this counts as harm.
        neighbour.settle().await?;
        let facts = neighbour.facts()?;
        Ok(Ok(Self { scene, tenant, pod, neighbour, facts, serial: 0 }))
    }

    /// Orders the attempt `TRIES` times, or until one does harm.
    async fn tries(&mut self, attempt: Attempt) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome { tries: 0, said: Vec::new(), slowest: Duration::ZERO, harm: None };
        while outcome.tries < TRIES && outcome.harm.is_none() {
            outcome.tries += 1;
            self.serial += 1;
            self.tenant.order(self.scene.args, self.serial, attempt.name, &self.facts)?;
            // The daemon is asked while the tenant tries, so that a blocked daemon shows.
            let (said, answered) = tokio::join!(self.said(), self.neighbour.answers_after(TIMEOUT));
            let mut harm = self.neighbour.harm().await?;
            match answered {
                Ok(after) => outcome.slowest = outcome.slowest.max(after),
                Err(error) => harm.push(format!("{error:#}")),
            }
            let said = said?;
            harm.extend(GAINS.iter().any(|gain| said.contains(gain)).then(|| said.clone()));
            if !outcome.said.contains(&said) {
                outcome.said.push(said);
            }
            outcome.harm = (!harm.is_empty()).then(|| harm.join("; "));
        }
        Ok(outcome)
    }

    /// The tenant's output for the last order.
    async fn said(&self) -> anyhow::Result<String> {
        let mut said = None;
        let reported = async || {
            let lines = self.scene.lines(&self.pod);
            let last = lines.iter().rev().find_map(|line| line.strip_prefix("TRIED "));
            let last: Option<Tried> = last.map(serde_json::from_str).transpose()?;
            said = last.filter(|tried| tried.serial == self.serial).map(|tried| tried.said);
            Ok(said.is_some())
        };
        if let Err(error) = wait(TIMEOUT, "the tenant to have tried", reported).await {
            let pod = self.scene.pods.get(self.tenant.name()).await?;
            return Err(error.context(format!("the tenant is {}: {}", phase_of(&pod), state_of(&pod))));
        }
        said.context("the tenant said nothing")
    }

    async fn strike(self) -> anyhow::Result<()> {
        self.neighbour.end()?;
        self.scene.clear().await
    }
}

impl Outcome {
    fn text(&self, attempt: Attempt) -> String {
        let Self { tries, said, slowest, harm } = self;
        let others = match said.len() {
            0 | 1 => String::new(),
            more => format!(" (and {} other outcomes)", more - 1),
        };
        let harm = harm.as_ref().map_or_else(String::new, |harm| format!(", HURT: {harm}"));
        let said = said.first().map_or("", String::as_str);
        let slowest = slowest.as_millis();
        format!(
            "{tries} times {}: {said}{others}; the daemon answered others within {slowest} ms{harm}",
            attempt.tries
        )
    }
}

/// Checks that no process of the tenant is root on the host: by the pod's spec, by the tenant's report, and
/// by the host's `/proc`.
fn ensure_unprivileged(tenant: Tenant, pod: &Pod, ready: &Ready) -> anyhow::Result<()> {
    let separated = pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false);
    let wanted = tenant == Tenant::Root;
    ensure!(separated == wanted, "{}: kerf let it through with hostUsers {separated:?}", tenant.name());
    ensure!(ready.is_separated() == wanted, "{} is in the wrong user namespace: {ready:?}", tenant.name());
    ensure!((ready.user == 0) == wanted, "{} runs as {}", tenant.name(), ready.user);
    let name = format!("--name\0{}\0", tenant.name());
    let processes = Process::all();
    let process = processes.values().find(|process| process.arguments.contains(&name));
    let id = process.context("no process of the tenant is on this machine")?.id;
    let user = fs::metadata(format!("/proc/{id}")).context("the tenant's process is gone")?.uid();
    ensure!(user != 0, "{} is root on the host", tenant.name());
    Ok(())
}
