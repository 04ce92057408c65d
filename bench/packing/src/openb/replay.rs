//! Plays pods under a rule. It keeps its own accounts, so that what counts as legal and allocated does not come from
//! the rule.

use super::trace::{Node, Pod, capacity};
use crate::report::as_f64;

/// The resources that are left on a node.
#[derive(Debug, Clone)]
pub struct Left {
    pub cpu: u32,
    pub memory: u32,
    /// Thousandths of each GPU.
    pub gpus: Vec<u16>,
    pub model: String,
}

impl Left {
    fn from_node(node: &Node) -> Self {
        Self { cpu: node.cpu, memory: node.memory, gpus: vec![1000; node.gpus], model: node.model.clone() }
    }

    /// Whether CPU, memory and model suit the pod, whatever the GPUs.
    pub fn may_take(&self, pod: &Pod) -> bool {
        let model = pod.gpus == 0 || pod.models.is_empty() || pod.models.contains(&self.model);
        model && self.cpu >= pod.cpu && self.memory >= pod.memory
    }

    /// Takes a pod. If something is wrong with that it returns what, and takes nothing.
    pub fn take(&mut self, pod: &Pod, gpus: &[usize]) -> Result<(), &'static str> {
        let mut after = self.clone();
        if !self.may_take(pod) {
            return Err("CPU, memory or model");
        }
        if gpus.len() != usize::from(pod.gpus) {
            return Err("number of GPUs");
        }
        (after.cpu, after.memory) = (self.cpu - pod.cpu, self.memory - pod.memory);
        for (at, gpu) in gpus.iter().enumerate() {
            let left = after.gpus.get_mut(*gpu).filter(|_| !gpus[..at].contains(gpu)).ok_or("GPU named")?;
            *left = left.checked_sub(pod.milli).ok_or("room on the GPU")?;
        }
        *self = after;
        Ok(())
    }
}

/// The node and the GPUs of a pod.
pub struct Place {
    pub node: usize,
    pub gpus: Vec<usize>,
}

/// A rule with its state.
pub trait Decider {
    /// Decides and records where the next pod goes; `None` if it is dropped.
    fn decide(&mut self, left: &[Left], pod: &Pod) -> Option<Place>;
}

/// The result of a replay.
pub struct Outcome {
    /// Percent of all GPUs.
    pub allocated: f64,
    pub decisions: usize,
    pub illegal: Vec<String>,
}

/// Plays the pods one after the other. An illegal decision takes nothing.
pub fn play(nodes: &[Node], pods: &[Pod], decider: &mut dyn Decider) -> Outcome {
    let mut left: Vec<Left> = nodes.iter().map(Left::from_node).collect();
    let (mut allocated, mut illegal) = (0, Vec::new());
    for (number, pod) in pods.iter().enumerate() {
        let Some(place) = decider.decide(&left, pod) else { continue };
        let taken = left.get_mut(place.node).ok_or("node").and_then(|node| node.take(pod, &place.gpus));
        match taken {
            Ok(()) => allocated += pod.volume(),
            Err(what) => illegal.push(format!("pod {number}: no such {what} on node {}", place.node)),
        }
    }
    let part = as_f64(usize::try_from(allocated).unwrap_or(0))
        / as_f64(usize::try_from(capacity(nodes)).unwrap_or(0));
    Outcome { allocated: 100.0 * part, decisions: pods.len(), illegal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_illegal_placement_is_reported_and_takes_nothing() {
        let node = Node { cpu: 4, memory: 4, gpus: 2, model: "T4".to_owned() };
        let pod = |cpu: u32, gpus: u8, milli: u16, model: &str| Pod {
            cpu,
            memory: 1,
            gpus,
            milli,
            models: [model.to_owned()].into_iter().filter(|m| !m.is_empty()).collect(),
        };
        let mut left = Left::from_node(&node);
        left.take(&pod(1, 1, 600, "T4"), &[1]).unwrap();
        for (pod, gpus, wrong) in [
            (pod(4, 0, 0, ""), vec![], "CPU, memory or model"),
            (pod(1, 1, 10, "A10"), vec![0], "CPU, memory or model"),
            (pod(1, 1, 10, ""), vec![], "number of GPUs"),
            (pod(1, 1, 10, ""), vec![2], "GPU named"),
            (pod(1, 2, 10, ""), vec![0, 0], "GPU named"),
            (pod(1, 2, 1000, ""), vec![0, 1], "room on the GPU"),
        ] {
            assert_eq!(left.take(&pod, &gpus), Err(wrong));
        }
        assert_eq!((left.cpu, left.memory, left.gpus), (3, 3, vec![1000, 400]));
    }
}
