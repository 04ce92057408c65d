//! Reads the trace's files, and orders its pods into arrivals.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, anyhow, ensure};

use super::mersenne::Mersenne;

/// A node of the trace, empty.
#[derive(Debug, Clone)]
pub struct Node {
    pub cpu: u32,
    pub memory: u32,
    pub gpus: usize,
    pub model: String,
}

/// A pod of the trace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    pub cpu: u32,
    pub memory: u32,
    pub gpus: u8,
    /// Thousandths of each GPU.
    pub milli: u16,
    /// The allowed models; any if it is empty.
    pub models: BTreeSet<String>,
}

impl Pod {
    /// All that the pod asks of GPUs, in thousandths of one.
    pub fn volume(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.milli)
    }
}

pub struct Trace {
    folder: PathBuf,
    pub nodes: Vec<Node>,
}

impl Trace {
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let node = |row: &Row<'_>| -> anyhow::Result<Node> {
            let (cpu, memory) = (row.number("cpu_milli")?, row.number("memory_mib")?);
            Ok(Node { cpu, memory, gpus: row.number("gpu")?, model: row.field("model")?.to_owned() })
        };
        let nodes = read(&folder.join("openb_node_list_gpu_node.csv"), node)?;
        ensure!(nodes.iter().any(|node| node.gpus > 0), "openb_node_list_gpu_node.csv: no node has a GPU");
        Ok(Self { folder: folder.to_owned(), nodes })
    }

    /// The pods of a workload, in the file's order.
    pub fn pods(&self, variant: &str) -> anyhow::Result<Vec<Pod>> {
        read(&self.folder.join(format!("openb_pod_list_{variant}.csv")), |row| {
            // The files of multi-GPU workloads have no such column.
            let models = row.field("gpu_spec").unwrap_or_default();
            Ok(Pod {
                cpu: row.number("cpu_milli")?,
                memory: row.number("memory_mib")?,
                gpus: row.number("num_gpu")?,
                milli: row.number("gpu_milli")?,
                models: models.split('|').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            })
        })
    }
}

struct Row<'t> {
    names: &'t [&'t str],
    fields: Vec<&'t str>,
}

impl<'t> Row<'t> {
    fn field(&self, name: &str) -> anyhow::Result<&'t str> {
        let column = self.names.iter().position(|n| *n == name);
        column.and_then(|column| self.fields.get(column).copied()).ok_or_else(|| anyhow!("no {name}"))
    }

    fn number<T: FromStr>(&self, name: &str) -> anyhow::Result<T> {
        let text = self.field(name)?;
        text.parse().map_err(|_| anyhow!("{name}: {text:?} is no number that will do"))
    }
}

fn read<T>(path: &Path, parse: impl Fn(&Row<'_>) -> anyhow::Result<T>) -> anyhow::Result<Vec<T>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    let mut lines = (1..).zip(text.lines());
    let names: Vec<&str> = lines.next().map_or("", |(_, header)| header).split(',').map(str::trim).collect();
    let parse = |(number, line): (usize, &str)| {
        let row = Row { names: &names, fields: line.split(',').map(str::trim).collect() };
        parse(&row).with_context(|| format!("{}: line {number}", path.display()))
    };
    lines.filter(|(_, line)| !line.is_empty()).map(parse).collect()
}

/// The sum of the nodes' GPUs, in thousandths of one.
pub fn capacity(nodes: &[Node]) -> u64 {
    nodes.iter().map(|node| 1000 * u64::try_from(node.gpus).unwrap_or(0)).sum()
}

/// The pods shuffled, then random ones of them, until all GPUs were asked for.
pub fn arrivals(nodes: &[Node], pods: &[Pod], seed: u32) -> Vec<Pod> {
    let mut random = Mersenne::new(seed);
    let mut list = pods.to_vec();
    random.shuffle(&mut list);
    let (mut asked, mut count) = (0, 0);
    while asked < capacity(nodes) {
        if count == list.len() {
            let Some(pod) = random.choice(pods) else { break };
            list.push(pod.clone());
        }
        asked += list[count].volume();
        count += 1;
    }
    list.truncate(count);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(gpus: u8, milli: u16) -> Pod {
        Pod { cpu: 1, memory: 1, gpus, milli, models: BTreeSet::new() }
    }

    #[test]
    fn pods_come_until_all_gpus_are_asked_for() {
        let nodes = [Node { cpu: 1, memory: 1, gpus: 4, model: "T4".to_owned() }];
        let few = arrivals(&nodes, &[pod(1, 500), pod(0, 0)], 42);
        let asked: Vec<u64> = few.iter().map(Pod::volume).collect();
        assert_eq!((asked.iter().sum::<u64>(), asked.last()), (4000, Some(&500)));
        assert_eq!(arrivals(&nodes, &vec![pod(1, 1000); 9], 42).len(), 4);
    }
}
