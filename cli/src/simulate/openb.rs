//! `kerf simulate --openb`: places the pods of Alibaba's trace of 2023 (openb) on its nodes by FGD's protocol, one
//! after the other and without departures. It runs the extender's own code.

use crate::counted::counted;
use kerf_core::packing::fraction::{
    CpuMilli, GPUS_LIMIT, GpuDemand, GpuMilli, ModelId, ModelSet, Models, Node, Nodes, Part, Placement,
    Request, Sharing, TooManyModels,
};
use kerf_core::units::MemoryMib;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OpenbError {
    #[error("nodes: no column {0:?} in the first line; a file has cpu_milli, memory_mib, gpu and model")]
    Column(&'static str),
    #[error("nodes: no node has a GPU")]
    NoGpus,
    #[error("nodes: line {line}: {fault}")]
    Node { line: usize, fault: Fault },
    #[error("pods: line {line}: {fault}")]
    Pod { line: usize, fault: Fault },
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("{0} is missing: write as many fields as the first line has")]
    Field(&'static str),
    #[error("{}; write `cpu_milli memory_mib num_gpu gpu_milli gpu_spec`, with - for any model", counted(*.0, "word"))]
    Words(usize),
    #[error("{field}: {text:?} is no whole number from 0 to {most}")]
    Number { field: &'static str, text: String, most: u64 },
    /// The number of GPUs and the share of each do not fit together.
    #[error("num_gpu {count}, gpu_milli {milli}: write 1 GPU with 1 to 1000, or several with 1000 each")]
    Share { count: u8, milli: u16 },
    #[error("model: {0}")]
    Models(#[from] TooManyModels),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placed {
    pod: usize,
    place: Option<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Place {
    node: usize,
    gpus: Vec<usize>,
}

/// The form that the judge reads: `J place NODE GPU[,GPU...]`, with `-` for no GPU, or `J reject`.
impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Place { node, gpus }) = &self.place else { return write!(f, "{} reject", self.pod) };
        let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        let gpus = if gpus.is_empty() { "-".to_owned() } else { gpus.join(",") };
        write!(f, "{} place {node} {gpus}", self.pod)
    }
}

/// Decides on each line `cpu_milli memory_mib num_gpu gpu_milli gpu_spec` of `pods`, on the nodes of the csv file
/// `nodes`.
///
/// The usual requests are learned from the pods that have arrived. The list is not read ahead, because a scheduler
/// could not do that.
pub fn run(nodes: &str, pods: &str) -> Result<Vec<Placed>, OpenbError> {
    let mut models = Models::default();
    let nodes = read_nodes(nodes, &mut models)?;
    let pods = read_pods(pods, &mut models)?;
    let mut fleet = Nodes::default();
    for node in nodes {
        fleet.add(node);
    }
    let placed = pods.iter().enumerate().map(|(number, pod)| Placed {
        pod: number,
        place: decide(&mut fleet, pod)
            .map(|Placement { node, gpus, .. }| Place { node: node.index(), gpus: gpus.iter().collect() }),
    });
    Ok(placed.collect())
}

fn decide(fleet: &mut Nodes, pod: &Request) -> Option<Placement> {
    fleet.learn(pod);
    let place = fleet.place(pod)?;
    fleet.take(place.node, pod, place.gpus).ok().map(|()| place)
}

/// The positions of the columns in the nodes file. They are searched for, because they may have any order, and other
/// columns may be between them.
struct Columns {
    cpu: usize,
    memory: usize,
    gpus: usize,
    model: usize,
}

impl Columns {
    fn from_header(header: &str) -> Result<Self, OpenbError> {
        let names: Vec<&str> = header.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
        let find = |name| names.iter().position(|n| *n == name).ok_or(OpenbError::Column(name));
        Ok(Self {
            cpu: find("cpu_milli")?,
            memory: find("memory_mib")?,
            gpus: find("gpu")?,
            model: find("model")?,
        })
    }

    fn node(&self, line: &str, models: &mut Models) -> Result<Node, Fault> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |index: usize, name| fields.get(index).copied().ok_or(Fault::Field(name));
        let cpu = number("cpu_milli", field(self.cpu, "cpu_milli")?, u32::MAX)?;
        let memory = number("memory_mib", field(self.memory, "memory_mib")?, u64::from(u32::MAX))?;
        let most = u8::try_from(GPUS_LIMIT).unwrap_or(u8::MAX);
        let gpus = number("gpu", field(self.gpus, "gpu")?, most)?;
        let model = models.intern(field(self.model, "model")?)?;
        Ok(Node::new(CpuMilli(cpu), MemoryMib(memory), model, usize::from(gpus)))
    }
}

fn read_nodes(text: &str, models: &mut Models) -> Result<Vec<Node>, OpenbError> {
    let mut lines = (1..).zip(text.lines());
    let columns = Columns::from_header(lines.next().map_or("", |(_, header)| header))?;
    let mut nodes = Vec::new();
    for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
        nodes.push(columns.node(text, models).map_err(|fault| OpenbError::Node { line, fault })?);
    }
    let has_gpus = nodes.iter().any(|node| !node.gpus().is_empty());
    if has_gpus { Ok(nodes) } else { Err(OpenbError::NoGpus) }
}

/// Parses the pods. Empty lines are skipped. They count as lines in errors, so that errors name the file's line, but
/// not as pods.
fn read_pods(text: &str, models: &mut Models) -> Result<Vec<Request>, OpenbError> {
    let lines = (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty());
    lines.map(|(line, text)| pod(text, models).map_err(|fault| OpenbError::Pod { line, fault })).collect()
}

fn pod(line: &str, models: &mut Models) -> Result<Request, Fault> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [cpu, memory, count, milli, spec] = words[..] else { return Err(Fault::Words(words.len())) };
    let count = number("num_gpu", count, u8::MAX)?;
    let milli = number("gpu_milli", milli, GpuMilli::WHOLE.0)?;
    Ok(Request {
        cpu: CpuMilli(number("cpu_milli", cpu, u32::MAX)?),
        memory: MemoryMib(number("memory_mib", memory, u64::from(u32::MAX))?),
        gpus: gpus(count, milli).ok_or(Fault::Share { count, milli })?,
        models: allowed(spec, models)?,
    })
}

/// The GPUs that a pod asks for. A part counts as an MPS share, because it may share a GPU with any other parts.
fn gpus(count: u8, milli: u16) -> Option<GpuDemand> {
    match (count, milli) {
        (0, _) => Some(GpuDemand::None),
        (count, 1000) => Some(GpuDemand::whole(count)),
        (1, milli) => Part::new(GpuMilli(milli), Sharing::Mps).map(GpuDemand::Part),
        _ => None,
    }
}

/// Parses `-`, or names separated by `|`. A name that no node has allows nothing.
fn allowed(spec: &str, models: &mut Models) -> Result<ModelSet, TooManyModels> {
    if spec == "-" {
        return Ok(ModelSet::ANY);
    }
    spec.split('|')
        .map(|name| models.intern(name))
        .collect::<Result<Vec<ModelId>, _>>()
        .map(ModelSet::from_iter)
}

fn number<T>(field: &'static str, text: &str, most: T) -> Result<T, Fault>
where
    T: FromStr + PartialOrd + Into<u64>,
{
    let bad = |most: T| Fault::Number { field, text: text.to_owned(), most: most.into() };
    match text.parse::<T>() {
        Ok(value) if value <= most => Ok(value),
        _ => Err(bad(most)),
    }
}

#[cfg(test)]
#[path = "openb_tests.rs"]
mod tests;
