//! GPUs that MIG cannot cut.

use super::layout::Layout;
use super::{GpuModel, model};

pub(super) const A10G: GpuModel = model("A10G-24GB", &["A10G"], 23_028, Layout::None);
pub(super) const L40S: GpuModel = model("L40S-48GB", &["L40S"], 46_068, Layout::None);
pub(super) const L4: GpuModel = model("L4-24GB", &["L4"], 23_034, Layout::None);
pub(super) const T4: GpuModel = model("T4-16GB", &["T4"], 15_360, Layout::None);
