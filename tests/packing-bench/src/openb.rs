//! Alibaba's trace of 2023 (openb) under FGD's protocol. The trace is not committed.

use std::path::Path;

use crate::report::print;

/// Measures, where the folder of the trace was given.
pub fn run(data: Option<&Path>) {
    if data.is_none() {
        print(
            "openb: left out. The trace is not committed; give the folder of Alibaba's clusterdata, \
             cluster-trace-gpu-v2023/csv, by --data DIR",
        );
    }
}
