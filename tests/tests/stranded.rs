//! Random small clusters: no pod is pending while a kind that it may have has room where it may go.
//! `cargo xtask bench stranded` judges more.

use kerf_tests::stranded::{Case, Scene, Verdict, decide};

/// The wrong verdicts, with their cases' numbers.
fn wrong(verdicts: &[Verdict]) -> Vec<(usize, Verdict)> {
    verdicts.iter().copied().enumerate().filter(|(_, verdict)| verdict.is_wrong()).collect()
}

#[test]
fn core_leaves_no_pod_stranded() -> anyhow::Result<()> {
    let verdicts =
        (0..300).map(|number| decide(&Case::random(number))).collect::<anyhow::Result<Vec<_>>>()?;
    assert_eq!(wrong(&verdicts), []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_leaves_no_pod_stranded() -> anyhow::Result<()> {
    let cases: Vec<Case> = (0..20).map(Case::random).collect();
    let scene = Scene::start().await?;
    let outcome = scene.judge(&cases).await?;
    assert_eq!(wrong(&outcome.verdicts), []);
    scene.stop().await
}
