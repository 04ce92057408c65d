//! GPUs drawn as their slices: who holds what, what is idle, what is free.
//!
//! Places come from the simulated NVML, holders from GpuNode.status.

use kerf_core::contract::{GpuNodeStatus, GpuStatus, SliceState, SliceStatus};
use kerf_core::mig::Placement;

use crate::screen::Screen;

/// The width of a GPU in characters.
const WIDTH: usize = 88;

/// A part of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    width: usize,
    upper: String,
    lower: String,
    state: Option<SliceState>,
}

/// Draws all GPUs of a node.
pub fn node(screen: &Screen, name: &str, status: &GpuNodeStatus) {
    for gpu in &status.gpus {
        let slices: Vec<_> = status.slices.iter().filter(|s| s.gpu == gpu.uuid).collect();
        screen.say(&format!("  {name} GPU {}  {}", gpu.index, gpu.model));
        for line in lines(screen, &blocks(gpu, &slices)) {
            screen.say(&format!("  {line}"));
        }
    }
}

fn blocks(gpu: &GpuStatus, slices: &[&SliceStatus]) -> Vec<Block> {
    let axis = usize::from(gpu.profiles.axis());
    if axis == 0 { shares(gpu, slices) } else { instances(axis, slices) }
}

fn instances(axis: usize, slices: &[&SliceStatus]) -> Vec<Block> {
    let placed = slices.iter().filter_map(|s| Some((s.shape.instance()?, *s)));
    let mut placed: Vec<_> = placed.collect();
    placed.sort_by_key(|(i, _)| i.placement.start);
    let mut blocks = Vec::new();
    let mut at = 0;
    for (instance, slice) in placed {
        let Placement { start, size } = instance.placement;
        blocks.extend(free(WIDTH * usize::from(start).saturating_sub(at) / axis));
        blocks.push(block(WIDTH * usize::from(size) / axis, instance.profile.to_string(), slice));
        at = usize::from(start + size);
    }
    blocks.extend(free(WIDTH * axis.saturating_sub(at) / axis));
    blocks
}

fn shares(gpu: &GpuStatus, slices: &[&SliceStatus]) -> Vec<Block> {
    let part = |mib: u64| usize::try_from(WIDTH as u64 * mib / gpu.memory.0.max(1)).unwrap_or(0);
    let mut blocks: Vec<_> = slices
        .iter()
        .map(|s| block(part(s.memory.0).max(4), format!("{} {}", s.shape.size(), s.shape.kind()), s))
        .collect();
    let used: usize = blocks.iter().map(|b| b.width).sum();
    blocks.extend(free(WIDTH.saturating_sub(used)));
    blocks
}

fn block(width: usize, upper: String, slice: &SliceStatus) -> Block {
    let lower = match (&slice.holder, slice.state) {
        (Some(holder), _) => short(&holder.pod),
        (None, state) => format!("{state:?}").to_lowercase(),
    };
    Block { width, upper, lower, state: Some(slice.state) }
}

/// A Deployment's pod by its Deployment's name and the last letters that tell it from its sisters.
fn short(pod: &str) -> String {
    match pod.rsplitn(3, '-').collect::<Vec<_>>()[..] {
        [last, hash, name] if hash.len() > 7 => format!("{name}-{last}"),
        _ => pod.to_owned(),
    }
}

fn free(width: usize) -> Option<Block> {
    (width > 0).then(|| Block { width, upper: String::new(), lower: String::new(), state: None })
}

fn lines(screen: &Screen, blocks: &[Block]) -> [String; 4] {
    let line = |left: &str, join: &str, right: &str, cell: &dyn Fn(&Block) -> String| {
        let cells: Vec<String> = blocks.iter().map(cell).collect();
        format!("{left}{}{right}", cells.join(join))
    };
    let rule = |b: &Block| "─".repeat(b.width.saturating_sub(1));
    let text = |text: &str, b: &Block| {
        let width = b.width.saturating_sub(1);
        let shown: String = text.chars().take(width).collect();
        let padded = format!("{shown:^width$}");
        match b.state {
            Some(SliceState::Held) => screen.paint("30;42", &padded),
            Some(SliceState::Idle) => screen.paint("30;43", &padded),
            Some(_) => screen.paint("30;46", &padded),
            None => padded,
        }
    };
    [
        line("┌", "┬", "┐", &rule),
        line("│", "│", "│", &|b| text(&b.upper, b)),
        line("│", "│", "│", &|b| text(&b.lower, b)),
        line("└", "┴", "┘", &rule),
    ]
}
