//! Plays a job list through the real scheduler, beside what `kerf simulate` decides for it.
//!
//! Jobs come one after another in the list's order; time is the list's, not the clock's. As in the
//! simulation, a job that cannot be placed is withdrawn.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use k8s_openapi::api::core::v1::Pod;
use kerf_cli::simulate::jobs::Job;
use kerf_cli::simulate::replay::{Decision, Place, Replay};
use kerf_core::contract::{GpuNodeSpec, SliceState};
use kerf_core::keys;
use kerf_core::mig::{MigTable, catalog};
use kerf_core::packing::Terms;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, wait, with_limit};
use kerf_tests::pods::{is_unschedulable, node_of};
use kerf_tests::random::Random;

use crate::report::{Figure, print, print_figures};

/// Timeout for a pod to be bound or refused, and for a slice to become idle.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Nodes of eight H100; at most nine, so that names sort as numbers.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=9))]
    nodes: u32,
    /// The number of jobs.
    #[arg(long, default_value_t = 600)]
    jobs: usize,
    /// The seed of all jobs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let model = catalog::by_name("H100-80GB").context("the catalog has no H100")?;
    let table = model.mig_table().context("an H100 has MIG")?;
    let gpus = usize::try_from(args.nodes)? * 8;
    let jobs = jobs(&table, gpus, args.jobs, args.seed);
    let mut replay = Replay::new(&table, gpus, Terms::default(), 0.0);
    let simulated: Vec<Decision> = jobs.iter().map(|job| replay.arrive(job)).collect();
    let scheduled = schedule(args, &jobs).await?;
    let accepted = |placed: &dyn Fn(usize) -> bool| {
        let size = |job: &Job| table.entry(job.profile).map_or(0.0, |entry| f64::from(entry.size));
        let all: f64 = jobs.iter().map(size).sum();
        let taken: f64 = jobs.iter().enumerate().filter(|(n, _)| placed(*n)).map(|(_, job)| size(job)).sum();
        100.0 * taken / all
    };
    let by_scheduler = accepted(&|n| scheduled[n].is_some());
    let by_simulation = accepted(&|n| simulated[n].place.is_some());
    let differing = (0..jobs.len()).filter(|n| scheduled[*n] != simulated[*n].place);
    let differing: Vec<usize> = differing.collect();
    for n in differing.iter().take(3) {
        print(&format!(
            "job {n} ({}): the scheduler {:?}, the simulation {:?}",
            jobs[*n].profile, scheduled[*n], simulated[*n].place
        ));
    }
    print(&format!(
        "{} jobs on {gpus} GPUs: {by_scheduler:.2} % of memory slices placed by the scheduler, {by_simulation:.2} % by the simulation; {} decisions differ, first {:?}",
        jobs.len(),
        differing.len(),
        differing.first()
    ));
    print_figures(&[Figure::at_most(
        "accepted through the scheduler and by the simulation, difference in points",
        (by_scheduler - by_simulation).abs(),
        0.5,
    )]);
    Ok(())
}

/// Jobs of all plain profiles with equal probability. They ask for 95 % of all memory slices, at 3.5 slices a
/// job on average.
fn jobs(table: &MigTable, gpus: usize, count: usize, seed: u64) -> Vec<Job> {
    let plain: Vec<_> = table.entries().iter().map(|e| e.profile).filter(|p| p.is_plain()).collect();
    let mut random = Random::new(seed);
    #[expect(clippy::cast_precision_loss, reason = "a handful of GPUs")]
    let rate = 0.95 * gpus as f64 * 8.0 / 3.5;
    let mut arrival = 0.0;
    (0..count)
        .map(|_| {
            arrival -= unit(&mut random).ln() / rate;
            let profile = plain[usize::try_from(high(&mut random)).unwrap_or(0) % plain.len().max(1)];
            Job { arrival, duration: -unit(&mut random).ln(), profile }
        })
        .collect()
}

fn high(random: &mut Random) -> u32 {
    u32::try_from(random.draw() >> 32).unwrap_or(u32::MAX)
}

/// A random number above 0, up to 1.
fn unit(random: &mut Random) -> f64 {
    (f64::from(high(random)) + 1.0) / (f64::from(u32::MAX) + 1.0)
}

/// The place that the scheduler gives each job; `None` if it refuses the job.
async fn schedule(args: &Args, jobs: &[Job]) -> anyhow::Result<Vec<Option<Place>>> {
    let nodes = (0..args.nodes).map(|n| NodeSpec::new(&format!("n{n}"), Model::H100, 8)).collect();
    let options = ClusterOptions::without_controller_manager(nodes);
    let cluster = Cluster::start(options, |step| print(&format!("# {step}"))).await?;
    let mut places: Vec<Option<Place>> = Vec::new();
    let mut running: Vec<(f64, usize)> = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        let ended: Vec<usize> =
            running.iter().filter(|(end, _)| *end <= job.arrival).map(|(_, n)| *n).collect();
        running.retain(|(end, _)| *end > job.arrival);
        let alive: Vec<String> = running.iter().map(|(_, n)| name(*n)).collect();
        end(&cluster, &ended, &alive).await?;
        let place = place(&cluster, number, job).await.with_context(|| format!("job {number}"))?;
        if place.is_some() {
            running.push((job.arrival + job.duration, number));
        }
        places.push(place);
        if places.len().is_multiple_of(50) {
            print(&format!("# job {} of {}: {} running", places.len(), jobs.len(), running.len()));
        }
    }
    cluster.stop().await?;
    Ok(places)
}

/// Deletes the pods of ended jobs. Then waits until only pods in `alive` have a reservation or a slice, and
/// all other slices are idle.
async fn end(cluster: &Cluster, ended: &[usize], alive: &[String]) -> anyhow::Result<()> {
    for number in ended {
        cluster.delete(&name(*number)).await?;
    }
    if ended.is_empty() {
        return Ok(());
    }
    wait(TIMEOUT, "slices to be given back", async || {
        for node in cluster.nodes() {
            let node = cluster.gpu_node(node.name()).await?;
            let (spec, status) = (node.read_desired()?, node.read_status()?.unwrap_or_default());
            let reserved = spec.slices.iter().filter_map(|s| s.reservation.as_ref()).map(|r| &r.pod);
            let held = status.slices.iter().filter_map(|s| s.holder.as_ref()).map(|h| &h.pod);
            // The extender offers a slice again only after its agent reports it idle.
            let open = status.slices.iter().any(|s| s.holder.is_none() && s.state != SliceState::Idle);
            if open || reserved.chain(held).any(|pod| !alive.contains(pod)) {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await
}

async fn place(cluster: &Cluster, number: usize, job: &Job) -> anyhow::Result<Option<Place>> {
    let name = name(number);
    cluster.create(&asking(&name, job)).await?;
    let decided = async || {
        let pod = cluster.pods().get(&name).await?;
        Ok(node_of(&pod).is_some() || is_unschedulable(&pod))
    };
    wait(TIMEOUT, &format!("{name} to be bound or refused"), decided).await?;
    let Some(node) = cluster.pods().get(&name).await?.spec.and_then(|spec| spec.node_name) else {
        cluster.delete(&name).await?;
        return Ok(None);
    };
    let spec = cluster.gpu_node(&node).await?.read_desired()?;
    let (gpu, start) = reserved_place(&spec, &name).context("no slice is reserved for the bound pod")?;
    let status = cluster.gpu_node(&node).await?.read_status()?.unwrap_or_default();
    let index = status.gpus.iter().find(|g| g.uuid.as_str() == gpu).context("an unknown GPU")?.index;
    let node: usize = node.trim_start_matches('n').parse()?;
    Ok(Some(Place { gpu: node * 8 + usize::try_from(index)?, start }))
}

fn reserved_place(spec: &GpuNodeSpec, pod: &str) -> Option<(String, u8)> {
    let slice = spec.slices.iter().find(|s| s.reservation.as_ref().is_some_and(|r| r.pod == pod))?;
    Some((slice.gpu.to_string(), slice.shape.instance()?.placement.start))
}

fn asking(name: &str, job: &Job) -> Pod {
    with_limit(pod(name, &[(keys::ISOLATION, "hardware")]), &format!("nvidia.com/mig-{}", job.profile), 1)
}

fn name(job: usize) -> String {
    format!("job-{job}")
}
