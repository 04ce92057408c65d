//! `kerf bench profile`: fits a pod's numbers from two short runs under MPS, and prints predictions and advice.

use super::args::ProfileArgs;
use super::cluster::Cluster;
use super::plan::{self, Planned, Wanted};
use super::subject;
use super::{Fit, ProfileResults, Technology, VERSION, forecast, measure, table};
use crate::counted::counted;
use crate::input::{self, InputError};
use crate::output::{self, Format, Report};
use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_core::kind::{IsolationClass, Kind};
use kerf_core::mig::{MigTable, catalog};
use kerf_core::quantity::parse_size;
use kerf_core::sharing::{self, Share, Supply, SwitchingCost, Target, Wish, predict_copies, recommend};
use kerf_core::units::{ComputePercent, SizeGb};
use serde::Serialize;
use std::num::NonZeroU32;
use std::path::Path;

const COPIES_LIMIT: u32 = 7;

pub fn run(args: &ProfileArgs) -> anyhow::Result<()> {
    measure::block_on(measure_pod(args))
}

async fn measure_pod(args: &ProfileArgs) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.run).await?;
    let pod = match (&args.filename, &args.pod) {
        (Some(file), _) => manifest(file)?,
        (None, Some(name)) => cluster.pod(name).await?,
        (None, None) => bail!("write a pod's name, or -f FILE"),
    };
    let asked = subject::asked(&pod, args.container.as_deref());
    let size = match &args.memory {
        Some(memory) => parse_size(memory).context("--memory")?,
        None => asked.context("the pod does not say how much GPU memory it asks for; say it by --memory")?,
    };
    let subject = subject::pod(pod, args.container.as_deref())?;
    measure::prepare(&args.run.results.folder)?;
    let points = points(args, size, &cluster).await?;
    let mut results = Vec::new();
    let mut gpu = None;
    measure::leaving_nothing(&cluster, async {
        for planned in &points {
            let (point, trial) =
                measure::point(&cluster, &subject, planned, measure::times(&args.run)).await?;
            gpu = Some(measure::gpu(&planned.target, measure::start(&trial).as_ref()));
            results.push(point);
        }
        Ok(())
    })
    .await?;
    let fit = forecast::fit(&results)?;
    let planned = points.first().context("nothing was measured")?;
    let (text, advice) = summary(&fit, size, planned);
    let gpu = gpu.context("nothing was measured")?;
    let (version, at, workload) = (VERSION, measure::now(), fit.workload);
    let results = ProfileResults { version, at, gpu, points: results, workload, advice };
    let out = &args.run.results.folder;
    measure::write(out, "profile.json", &(serde_json::to_string_pretty(&results)? + "\n"))?;
    eprintln!("in {}: profile.json", out.display());
    output::print(&ProfileOutput { results, text }, args.run.results.output)
}

#[derive(Serialize)]
struct ProfileOutput {
    #[serde(flatten)]
    results: ProfileResults,
    #[serde(skip)]
    text: String,
}

impl Report for ProfileOutput {
    fn text(&self, _format: Format) -> String {
        format!("{}\n", self.text)
    }
}

fn manifest(file: &Path) -> Result<Pod, InputError> {
    serde_saphyr::from_str(&input::read(file)?).map_err(|error| {
        InputError::Bad(format!("{}: it is no Pod: {}", input::place(file), error.without_snippet()))
    })
}

async fn points(args: &ProfileArgs, size: SizeGb, cluster: &Cluster) -> anyhow::Result<Vec<Planned>> {
    let free = plan::free(&cluster.nodes().await?, args.run.gpu.as_deref())?;
    // All numbers are planned, so that the last point of the plan is the largest that fits.
    let copies: Vec<u32> = args.copies.map_or_else(|| (1..=COPIES_LIMIT).collect(), |copies| vec![1, copies]);
    let threads = ComputePercent::ALL;
    let wanted = Wanted { technologies: &[Technology::Mps], copies: &copies, size, threads };
    let plan = plan::plan(wanted, &free)?;
    let (Some(alone), Some(together)) = (plan.points.first(), plan.points.last()) else {
        bail!("{}", reasons(&plan.left_out));
    };
    let fits = together.copies > 1 && args.copies.is_none_or(|copies| copies == together.copies);
    ensure!(fits, "several copies must run together: {}", reasons(&plan.left_out));
    if let Some(threads) = together.threads.filter(|threads| *threads < ComputePercent::ALL) {
        eprintln!(
            "warning: the node's policy leaves each of {} copies {threads} of the threads; if that slows them down, there are no \
             numbers: set gpus[].mps.computeLimit: none there",
            together.copies
        );
    }
    Ok(vec![alone.clone(), together.clone()])
}

fn reasons(left_out: &[super::LeftOut]) -> String {
    left_out.first().map_or_else(|| "there is room for one".to_owned(), |left| left.reason.clone())
}

fn summary(fit: &Fit, size: SizeGb, planned: &Planned) -> (String, Option<sharing::Advice>) {
    let gpu = &planned.target.gpu;
    let known = catalog::by_name(&gpu.model).and_then(catalog::GpuModel::mig_table).unwrap_or_default();
    // Other models count as an A100, because the cost of time slicing was measured on these two models only.
    let switching = if gpu.model.starts_with("H200") { SwitchingCost::H200 } else { SwitchingCost::A100 };
    let wish = Wish {
        workload: fit.workload,
        memory: size.share_memory(),
        isolation: IsolationClass::Memory,
        target: Target::None,
        share: Share::WhatIsLeft,
    };
    let supply = Supply { memory: gpu.memory, table: &known, kinds: &Kind::ALL, switching };
    let advice = recommend(&wish, &supply);
    let last = match &advice {
        Ok(advice) => format!(
            "advice, where memory must be fenced: {} by {}, {:.2} turns a second together",
            counted(advice.tenants.get(), "copy"),
            advice.technology.kind(),
            advice.throughput.per_second()
        ),
        Err(no_way) => format!("advice: {no_way}"),
    };
    let workload = serde_json::json!(fit.workload);
    let head = format!("the pod on {}, from 1 copy and {}:\n{workload}\n", gpu.model, fit.copies);
    let predicted = predictions(fit, switching, &known, size).text();
    (format!("{head}\npredicted mean seconds of a turn:\n{predicted}\n{last}"), advice.ok())
}

fn predictions(fit: &Fit, switching: SwitchingCost, known: &MigTable, size: SizeGb) -> table::Table<5> {
    let entries =
        known.entries().iter().filter(|entry| entry.profile.is_plain() && entry.profile.size() >= size);
    let instance = entries.min_by_key(|entry| (entry.profile.size(), entry.profile.compute()));
    let rows = (1..=COPIES_LIMIT).filter_map(NonZeroU32::new).map(|copies| {
        let seconds =
            |technology| format!("{:.4}", predict_copies(fit.workload, technology, copies).mean.seconds());
        let limit = u8::try_from(100 / copies.get()).ok().and_then(ComputePercent::new);
        let mig = instance.filter(|entry| u32::from(entry.max) >= copies.get());
        let mig = mig.and_then(|entry| sharing::Technology::mig(known, entry.profile));
        [
            copies.to_string(),
            seconds(sharing::Technology::TimeSlicing { switching }),
            seconds(sharing::Technology::MPS),
            seconds(sharing::Technology::Mps { limit: limit.filter(|limit| limit.get() < 100) }),
            mig.map_or_else(|| "-".to_owned(), seconds),
        ]
    });
    table::predictions(rows.collect(), ["COPIES", "TIME SLICES", "MPS", "MPS, EQUAL LIMITS", "MIG"])
}
