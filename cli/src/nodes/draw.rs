//! Draws GPUs as their slices: held, reserved, idle and free. MIG instances are drawn at their placement, shares side
//! by side by their size. Pure.

use super::short_name;
use anstyle::AnsiColor;
use kerf_core::contract::{
    GpuNodeSpec, GpuNodeStatus, GpuStatus, Shape, SliceState, SliceStatus, WantedSlice,
};
use kerf_core::nvidia_keys::SHARED;
use kerf_core::units::MemoryMib;
use std::collections::BTreeSet;

pub const WIDTH: usize = 88;

/// The least width of a legible block.
const LEGIBLE: usize = 5;

pub type Paint<'p> = &'p dyn Fn(Option<SliceState>, &str) -> String;

#[must_use]
pub fn plain(_state: Option<SliceState>, text: &str) -> String {
    text.to_owned()
}

#[must_use]
pub fn coloured(state: Option<SliceState>, text: &str) -> String {
    let background = match state {
        None => return text.to_owned(),
        Some(SliceState::Held) => AnsiColor::Green,
        Some(SliceState::Idle) => AnsiColor::Yellow,
        Some(SliceState::Failed) => AnsiColor::Red,
        Some(SliceState::Preparing | SliceState::Waiting | SliceState::Ready) => AnsiColor::Cyan,
    };
    let style = AnsiColor::Black.on(background);
    format!("{style}{text}{style:#}")
}

struct Block {
    from: usize,
    to: usize,
    upper: String,
    lower: String,
    state: Option<SliceState>,
}

impl Block {
    fn width(&self) -> usize {
        self.to.saturating_sub(self.from)
    }
}

#[must_use]
pub fn node(
    name: &str,
    spec: &GpuNodeSpec,
    status: &GpuNodeStatus,
    width: usize,
    paint: Paint<'_>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for gpu in &status.gpus {
        let trouble = gpu.message.as_ref().map(|message| format!("  SICK: {message}")).unwrap_or_default();
        lines.push(format!("{name} GPU {}  {}{trouble}", gpu.index, gpu.model));
        lines.extend(picture(&blocks(gpu, spec, status, width), width, paint));
    }
    lines
}

/// The slices of a GPU: those that the agent reports, and the desired ones that it has not reported yet.
fn slices<'s>(gpu: &GpuStatus, spec: &'s GpuNodeSpec, status: &'s GpuNodeStatus) -> Vec<Slice<'s>> {
    let wanted = |id| spec.slices.iter().find(|slice| Some(&slice.id) == id);
    let seen = status.slices.iter().filter(|slice| slice.gpu == gpu.uuid);
    let seen = seen.map(|slice| Slice { seen: Some(slice), wanted: wanted(slice.id.as_ref()) });
    let is_new = |slice: &&WantedSlice| slice.gpu == gpu.uuid && status.slice(&slice.id).is_none();
    let new = spec.slices.iter().filter(is_new).map(|slice| Slice { seen: None, wanted: Some(slice) });
    seen.chain(new).collect()
}

struct Slice<'s> {
    seen: Option<&'s SliceStatus>,
    wanted: Option<&'s WantedSlice>,
}

impl Slice<'_> {
    fn shape(&self) -> Option<Shape> {
        self.seen.map(|slice| slice.shape).or_else(|| self.wanted.map(|slice| slice.shape))
    }

    fn state(&self) -> SliceState {
        self.seen.map_or(SliceState::Preparing, |slice| slice.state)
    }

    fn owner(&self) -> String {
        let holder = self.seen.and_then(|slice| slice.holder.as_ref());
        let reservation = self.wanted.and_then(|slice| slice.reservation.as_ref());
        match (holder, reservation, self.state()) {
            (Some(holder), _, _) => short_name(&holder.pod),
            (None, Some(reservation), SliceState::Held) => short_name(&reservation.pod),
            (None, Some(reservation), _) => format!("→ {}", short_name(&reservation.pod)),
            (None, None, SliceState::Failed) => "failed".to_owned(),
            (None, None, SliceState::Idle) => "idle".to_owned(),
            (None, None, _) => "in the making".to_owned(),
        }
    }
}

fn blocks(gpu: &GpuStatus, spec: &GpuNodeSpec, status: &GpuNodeStatus, width: usize) -> Vec<Block> {
    let slices = slices(gpu, spec, status);
    let axis = usize::from(gpu.profiles.axis());
    if axis == 0 { shares(gpu, &slices, width) } else { instances(axis, &slices, width) }
}

/// MIG instances at their placement. Compute instances and replicas divide the width of their GPU instance.
fn instances(axis: usize, slices: &[Slice<'_>], width: usize) -> Vec<Block> {
    let mut blocks: Vec<Block> = slices
        .iter()
        .filter_map(|slice| {
            let shape = slice.shape()?;
            let instance = shape.instance()?;
            let (start, size) = (usize::from(instance.placement.start), usize::from(instance.placement.size));
            let (mut from, mut to) = (width * start / axis, width * (start + size) / axis);
            let mut name = instance.profile.to_string();
            if let Some(part) = shape.part() {
                name = format!("{}c.{name}", part.compute);
                let (whole, left) = (to - from, from);
                let compute = usize::from(instance.profile.compute()).max(1);
                from = left + whole * usize::from(part.start) / compute;
                to = left + whole * usize::from(part.start + part.compute) / compute;
            }
            if let Some(number) = shape.replica() {
                let same = slices.iter().filter_map(Slice::shape).filter(|s| s.instance() == Some(instance));
                let turns: BTreeSet<u8> = same.filter_map(Shape::replica).collect();
                let (whole, left, rank) = (to - from, from, turns.range(..number).count());
                from = left + whole * rank / turns.len();
                to = left + whole * (rank + 1) / turns.len();
                name.push_str(SHARED);
            }
            Some(block(from, to, name, slice))
        })
        .collect();
    blocks.sort_by_key(|block| block.from);
    with_gaps(blocks, width)
}

/// Shares of memory from the left, and memory used outside of kerf at the right.
fn shares(gpu: &GpuStatus, slices: &[Slice<'_>], width: usize) -> Vec<Block> {
    let total = gpu.memory.0.max(1);
    let column = |memory: u64| {
        usize::try_from(u128::from(memory) * width as u128 / u128::from(total)).unwrap_or(width)
    };
    let mut taken = 0;
    let mut blocks = Vec::new();
    for slice in slices {
        let Some(shape) = slice.shape() else { continue };
        let memory = slice.seen.map_or_else(|| shape.memory_of(gpu.memory), |seen| seen.memory).0;
        let (from, to) = (column(taken), column(taken + memory));
        taken += memory;
        blocks.push(block(from, to, format!("{} {}", shape.size(), shape.kind()), slice));
    }
    if gpu.outside > MemoryMib(0) {
        let from = column(total.saturating_sub(gpu.outside.0)).max(blocks.last().map_or(0, |last| last.to));
        blocks.push(Block {
            from,
            to: width.max(from),
            upper: "outside".into(),
            lower: "of kerf".into(),
            state: None,
        });
    }
    with_gaps(blocks, width)
}

fn block(from: usize, to: usize, upper: String, slice: &Slice<'_>) -> Block {
    Block { from, to, upper, lower: slice.owner(), state: Some(slice.state()) }
}

fn with_gaps(blocks: Vec<Block>, width: usize) -> Vec<Block> {
    let free = |from, to| Block { from, to, upper: String::new(), lower: String::new(), state: None };
    let mut all = Vec::new();
    let mut at = 0;
    for block in blocks {
        // A gap of one character is left out, because it comes from rounding, or from shares that exceed the GPU's
        // memory.
        if block.from > at + 1 {
            all.push(free(at, block.from));
        }
        at = at.max(block.to);
        all.push(block);
    }
    if width > at + 1 {
        all.push(free(at, width));
    }
    all
}

fn picture(blocks: &[Block], width: usize, paint: Paint<'_>) -> Vec<String> {
    let is_legible = |block: &Block| block.width() >= LEGIBLE || block.state.is_none();
    // Shares may not fit the width, because together they may be larger than the GPU's memory.
    let fits = blocks.iter().map(Block::width).sum::<usize>() <= width + blocks.len();
    if fits && blocks.iter().all(is_legible) { boxes(blocks, paint) } else { list(blocks, paint) }
}

fn boxes(blocks: &[Block], paint: Paint<'_>) -> Vec<String> {
    let line = |left: &str, join: &str, right: &str, cell: &dyn Fn(&Block) -> String| {
        let cells: Vec<String> = blocks.iter().map(cell).collect();
        format!("{left}{}{right}", cells.join(join))
    };
    let inner = |block: &Block| block.width().saturating_sub(1);
    let rule = |block: &Block| "─".repeat(inner(block));
    let cell = |text: &str, block: &Block| {
        let width = inner(block);
        let shown: String = text.chars().take(width).collect();
        paint(block.state, &format!("{shown:^width$}"))
    };
    vec![
        line("┌", "┬", "┐", &rule),
        line("│", "│", "│", &|block| cell(&block.upper, block)),
        line("│", "│", "│", &|block| cell(&block.lower, block)),
        line("└", "┴", "┘", &rule),
    ]
}

fn list(blocks: &[Block], paint: Paint<'_>) -> Vec<String> {
    let taken = blocks.iter().filter(|block| block.state.is_some());
    taken.map(|block| paint(block.state, &format!("│ {:<24} {}", block.upper, block.lower))).collect()
}
