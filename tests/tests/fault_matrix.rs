//! A sample of the fault matrix, which `cargo xtask bench faults --all` plays completely.

use std::time::Duration;

use kerf_tests::fault_matrix::{self, Settings};

/// The number of cells, which take two minutes on two busy cores.
const CELLS: usize = 12;

#[tokio::test(flavor = "multi_thread")]
async fn no_slice_is_lost_or_held_twice_whatever_happens_to_a_call() -> anyhow::Result<()> {
    let settings = Settings {
        period: Duration::from_secs(1),
        nodes: 2,
        seed: 1,
        sample: Some(CELLS),
        only: None,
        // Only the bench checks the time.
        lenient: true,
    };
    let report = fault_matrix::run(&settings, |line| println!("{line}")).await?;
    assert_eq!(report.cells.len(), CELLS);
    assert_eq!(report.failures(), Vec::<String>::new());
    Ok(())
}
