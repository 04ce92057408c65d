//! `kerf bench sharing`: repeats the reference comparison on any cluster.

use super::args::SharingArgs;
use super::cluster::Cluster;
use super::measure;
use super::plan::{self, Plan, Planned, Wanted};
use super::subject::Subject;
use super::trial::TrialError;
use super::{Failed, Fit, Results, Technology, VERSION, publish, sensors, table};
use crate::counted::counted;
use anyhow::{Context as _, bail, ensure};
use kerf_core::mig::MigTable;
use kerf_core::quantity::parse_size;
use std::path::Path;

pub fn run(args: &SharingArgs) -> anyhow::Result<()> {
    measure::block_on(measure_all(args))
}

struct Record {
    results: Results,
    sensors: String,
    table: MigTable,
}

async fn measure_all(args: &SharingArgs) -> anyhow::Result<()> {
    let subject = measure::client(&args.pods, &args.run)?;
    let size = parse_size(&args.memory).context("--memory")?;
    let earlier = args.fit.as_deref().map(Earlier::read).transpose()?;
    measure::prepare(&args.run.results.folder)?;
    let cluster = Cluster::connect(&args.run).await?;
    let free = plan::free(&cluster.nodes().await?, args.run.gpu.as_deref())?;
    let technologies = sorted(&args.technologies);
    let copies = sorted(&args.copies);
    let wanted = Wanted { technologies: &technologies, copies: &copies, size, threads: args.threads };
    let Plan { points, left_out } = plan::plan(wanted, &free)?;
    let mut record =
        Record { results: empty(args), sensors: sensors::HEAD.to_owned(), table: MigTable::default() };
    record.results.left_out = left_out;
    if let (Some(earlier), Some(first)) = (&earlier, points.first()) {
        // This comes before the measuring, because it takes minutes.
        earlier.check(&first.target.gpu.model)?;
    }
    if points.is_empty() {
        bail!("there is nothing to measure\n{}", table::missing(&record.results).join("\n"));
    }
    let work = measure_points(&cluster, &subject, &points, args, &mut record);
    let worked = measure::leaving_nothing(&cluster, work).await;
    // Results from before an error are published, too, because a run takes long.
    publish::conclude(&mut record.results, &record.table, earlier.as_ref().map(|earlier| &earlier.fit));
    let published = measure::write(&args.run.results.folder, "sensors.csv", &record.sensors)
        .and_then(|()| publish::publish(&record.results, &args.run.results));
    worked?;
    published?;
    match record.results.failed.len() {
        0 => Ok(()),
        failed => {
            bail!("{failed} of {} could not be measured; each is named above", counted(points.len(), "point"))
        }
    }
}

struct Earlier {
    fit: Fit,
    models: Vec<String>,
}

impl Earlier {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let results = publish::read(path).context("--fit")?;
        let problem = results.fit_problem.unwrap_or_default();
        let fit = results.fit;
        let fit = fit.with_context(|| format!("--fit {}: that run has no fit: {problem}", path.display()))?;
        Ok(Self { fit, models: results.gpus.into_iter().map(|gpu| gpu.model).collect() })
    }

    /// Fails for another GPU model, because a workload's numbers hold on one model only.
    fn check(&self, model: &str) -> anyhow::Result<()> {
        let models = self.models.join(", ");
        ensure!(
            self.models.iter().any(|known| known == model),
            "--fit: it is of {models}, and this GPU is {model}"
        );
        Ok(())
    }
}

fn sorted<T: Ord + Copy>(values: &[T]) -> Vec<T> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

fn empty(args: &SharingArgs) -> Results {
    Results {
        version: VERSION,
        at: measure::now(),
        workload: args.pods.workload.as_str().to_owned(),
        command: args.pods.command.clone(),
        warm_up_seconds: args.run.warm_up.as_secs_f64(),
        measure_seconds: args.run.measure.as_secs_f64(),
        gpus: Vec::new(),
        points: Vec::new(),
        failed: Vec::new(),
        left_out: Vec::new(),
        fit: None,
        fit_problem: None,
        forecasts: Vec::new(),
    }
}

async fn measure_points(
    cluster: &Cluster,
    subject: &Subject,
    points: &[Planned],
    args: &SharingArgs,
    record: &mut Record,
) -> anyhow::Result<()> {
    cluster.bring_files(subject).await?;
    for planned in points {
        match measure::point(cluster, subject, planned, measure::times(&args.run)).await {
            Ok((point, trial)) => {
                let results = &mut record.results;
                if !results.gpus.iter().any(|gpu| gpu.uuid == point.gpu) {
                    results.gpus.push(measure::gpu(&planned.target, measure::start(&trial).as_ref()));
                }
                if planned.technology == Technology::Mig {
                    record.table = planned.target.gpu.table.clone();
                }
                let name = planned.technology.as_str();
                record.sensors += &sensors::rows(name, &trial.copies(0), trial.window);
                results.points.push(point);
            }
            Err(TrialError::Cluster(error)) => return Err(error),
            Err(error) => {
                // The alternate form is used because it appends the error's sources, which its own text leaves out.
                let reason = format!("{:#}", anyhow::Error::new(error));
                eprintln!("  failed: {reason}");
                let Planned { technology, copies, .. } = *planned;
                record.results.failed.push(Failed { technology, copies, reason });
            }
        }
    }
    Ok(())
}
