//! `kerf bench neighbours`: whether MIG instances feel a noisy neighbour, and how much energy a turn takes in each
//! size.

use super::args::{NeighboursArgs, PodArgs};
use super::cluster::Cluster;
use super::plan::{self, Planned, Target};
use super::subject::Subject;
use super::trial::{Group, Trial, TrialError, trial};
use super::{Neighbour, NeighbourResults, Technology, VERSION, measure, sensors, table};
use crate::counted::counted;
use crate::output::{self, Format, Report};
use anyhow::{Context as _, bail};
use kerf_core::keys;
use kerf_core::kind::{IsolationClass, Kind};
use kerf_core::mig::{ComputeProfile, Profile};
use std::collections::BTreeMap;

pub fn run(args: &NeighboursArgs) -> anyhow::Result<()> {
    measure::block_on(measure_all(args))
}

async fn measure_all(args: &NeighboursArgs) -> anyhow::Result<()> {
    let subject = measure::client(&args.pods, &args.run)?;
    let command = if args.neighbour == super::args::WorkloadName::Command {
        args.pods.command.clone()
    } else {
        Vec::new()
    };
    let noise = PodArgs { workload: args.neighbour, command, ..args.pods.clone() };
    let noise = measure::client(&noise, &args.run).context("--neighbour")?;
    measure::prepare(&args.run.results.folder)?;
    let cluster = Cluster::connect(&args.run).await?;
    let free = plan::free(&cluster.nodes().await?, args.run.gpu.as_deref())?;
    let target = free.into_iter().find(|target| target.gpu.kinds.contains(&Kind::Mig)).context(
        "no free GPU is cut by MIG now; wait until one is free (kubectl kerf nodes shows who holds them), or turn MIG mode on (nvidia-smi -mig 1, or `modeChange` in the node's policy) and see that the node's policy allows mig",
    )?;
    let profiles = profiles(&args.profiles, &target)?;
    let mut results = NeighbourResults {
        version: VERSION,
        at: measure::now(),
        workload: args.pods.workload.as_str().to_owned(),
        gpu: measure::gpu(&target, None),
        rows: Vec::new(),
        failed: Vec::new(),
    };
    let mut rows = sensors::HEAD.to_owned();
    let worked = measure::leaving_nothing(&cluster, async {
        cluster.bring_files(&subject).await?;
        for asked in &profiles {
            let pair = Pair { cluster: &cluster, subject: &subject, noise: &noise, args, target: &target };
            match pair.measure(asked, &mut results, &mut rows).await {
                Ok(row) => results.rows.push(row),
                Err(TrialError::Cluster(error)) => return Err(error),
                Err(error) => {
                    let reason = format!("{:#}", anyhow::Error::new(error));
                    eprintln!("  failed: {reason}");
                    results.failed.push((asked.name.clone(), reason));
                }
            }
        }
        Ok(())
    })
    .await;
    // Results from before an error are published, too, because a run takes long.
    let published = publish(&results, &rows, args);
    worked?;
    published?;
    match results.failed.len() {
        0 => Ok(()),
        failed => {
            bail!(
                "{failed} of {} could not be measured; each is named above",
                counted(profiles.len(), "profile")
            )
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    name: String,
    isolation: IsolationClass,
}

/// The profiles to measure: those named, or the GPU's plain ones that fit twice, because the neighbour needs one, too.
fn profiles(named: &[String], target: &Target) -> anyhow::Result<Vec<Asked>> {
    let gpu = &target.gpu;
    if named.is_empty() {
        let two = gpu.table.entries().iter().filter(|entry| entry.profile.is_plain() && entry.max >= 2);
        return Ok(two.map(|entry| asked(entry.profile.to_string(), IsolationClass::Hardware)).collect());
    }
    named.iter().map(|name| named_profile(name, target)).collect()
}

fn named_profile(name: &str, target: &Target) -> anyhow::Result<Asked> {
    let gpu = &target.gpu;
    let (whole, part) = match (name.parse::<Profile>(), name.parse::<ComputeProfile>()) {
        (Ok(whole), _) => (whole, false),
        (_, Ok(part)) => (part.gpu_profile(), true),
        _ => bail!("--profiles {name}: it is no MIG profile; write it like 1g.10gb, or 1c.3g.40gb"),
    };
    if gpu.table.entry(whole).is_none() {
        let known: Vec<String> = gpu.table.entries().iter().map(|entry| entry.profile.to_string()).collect();
        bail!("--profiles {name}: a {} has none; it has {}", gpu.model, known.join(", "));
    }
    if part && !gpu.rule.compute_instances {
        bail!(
            "--profiles {name}: the node's policy does not share GPU instances out; set gpus[].computeInstances there"
        );
    }
    // Compute instances share the memory of their GPU instance, so only the class `none` allows them.
    let class = if part { IsolationClass::None } else { IsolationClass::Hardware };
    Ok(asked(name.to_owned(), class))
}

fn asked(name: String, isolation: IsolationClass) -> Asked {
    Asked { name, isolation }
}

struct Pair<'p> {
    cluster: &'p Cluster,
    subject: &'p Subject,
    noise: &'p Subject,
    args: &'p NeighboursArgs,
    target: &'p Target,
}

impl Pair<'_> {
    async fn measure(
        &self,
        asked: &Asked,
        results: &mut NeighbourResults,
        rows: &mut String,
    ) -> Result<Neighbour, TrialError> {
        let size = asked.name.parse().map(Profile::size);
        let size = size.or_else(|_| asked.name.parse().map(|part: ComputeProfile| part.gpu_profile().size()));
        let size = size.map_err(anyhow::Error::msg)?;
        let target = self.target.clone();
        let planned = Planned { technology: Technology::Mig, copies: 1, threads: None, size, target };
        eprintln!("{}, alone", asked.name);
        let alone = self.trial(asked, &planned, false).await?;
        eprintln!("{}, beside {}", asked.name, self.args.neighbour.as_str());
        let beside = self.trial(asked, &planned, true).await?;
        results.gpu = measure::gpu(self.target, measure::start(&alone).as_ref());
        *rows += &sensors::rows(&format!("{}-alone", asked.name), &alone.copies(0), alone.window);
        *rows += &sensors::rows(&format!("{}-beside", asked.name), &beside.copies(0), beside.window);
        let shape = |trial: &Trial, group: usize| {
            trial.groups[group].first().map(|report| report.granted.shape.to_string()).unwrap_or_default()
        };
        Ok(Neighbour {
            profile: asked.name.clone(),
            slice: shape(&beside, 0),
            neighbour: format!("{} in {}", self.args.neighbour.as_str(), shape(&beside, 1)),
            alone: alone.window.figures(&alone.copies(0))?,
            beside: beside.window.figures(&beside.copies(0))?,
        })
    }

    async fn trial(&self, asked: &Asked, planned: &Planned, beside: bool) -> Result<Trial, TrialError> {
        let name = asked.name.replace(['.', '+'], "-");
        let asks = |subject: &Subject| -> BTreeMap<String, String> {
            [
                (keys::GPU_UUID.to_owned(), self.target.gpu.uuid.to_string()),
                (keys::ISOLATION.to_owned(), asked.isolation.to_string()),
                (format!("{}.{}", keys::GPU_PROFILE, subject.container), asked.name.clone()),
            ]
            .into()
        };
        let (measured, other) = (format!("kerf-neighbours-{name}"), format!("kerf-neighbours-{name}-noise"));
        let (mine, noise_asks) = (asks(self.subject), asks(self.noise));
        let group = Group { name: &measured, subject: self.subject, asks: &mine, planned };
        let noise = Group { name: &other, subject: self.noise, asks: &noise_asks, planned };
        let groups = [group, noise];
        trial(self.cluster, &groups[..if beside { 2 } else { 1 }], measure::times(&self.args.run)).await
    }
}

fn publish(results: &NeighbourResults, sensors: &str, args: &NeighboursArgs) -> anyhow::Result<()> {
    let out = &args.run.results.folder;
    measure::write(out, "neighbours.json", &(serde_json::to_string_pretty(results)? + "\n"))?;
    measure::write(out, "neighbours.md", &table::neighbours(&results.rows).markdown())?;
    measure::write(out, "sensors.csv", sensors)?;
    eprintln!("in {}: neighbours.json, neighbours.md, sensors.csv", out.display());
    output::print(results, args.run.results.output)
}

impl Report for NeighbourResults {
    fn text(&self, _format: Format) -> String {
        let failed = self.failed.iter().map(|(name, why)| format!("failed: {name}: {why}"));
        table::neighbours(&self.rows).text() + &output::lines(failed)
    }
}
