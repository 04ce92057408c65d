//! Clients are not disturbed when the webhook's certificates rotate, or when its replicas restart one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use kerf_tests::admission::{AdmissionScene, asking, failures};
use kerf_tests::cluster::wait;

const TIMEOUT: Duration = Duration::from_secs(90);

/// Short lifetimes, and a grace period that is long compared with the proxy's probes.
const FLAGS: [&str; 3] = ["--tls-leaf-age=8s", "--tls-ca-age=24s", "--grace=1s"];

#[tokio::test(flavor = "multi_thread")]
async fn rotation_and_a_rolling_restart_under_load_lose_no_admission() -> anyhow::Result<()> {
    let mut scene = AdmissionScene::start().await?;
    scene.add_replica(&FLAGS).await?;
    scene.add_replica(&FLAGS).await?;
    let (first, leaf) = (scene.trusted().await?, scene.leaf().await?);
    ensure!(first.len() == 1, "{} authorities at the start", first.len());

    let done = Arc::new(AtomicBool::new(false));
    let (load, ended) = (scene.load(20), done.clone());
    let loading =
        tokio::spawn(async move { load.run(&asking(), true, || ended.load(Ordering::Relaxed)).await });

    // Both authorities are trusted while the old one's leaf still exists.
    wait(TIMEOUT, "a second authority", async || Ok(scene.trusted().await?.len() == 2)).await?;
    let both = scene.trusted().await?;
    ensure!(both[1] == first[0], "the first authority is gone too early");
    scene.restart(0).await?;
    scene.restart(1).await?;
    let alone = async || Ok(scene.trusted().await? == both[..1]);
    wait(TIMEOUT, "the first authority to go", alone).await?;
    ensure!(scene.leaf().await? != leaf, "the leaf is the first one");
    // The load continues a while, so that admissions with leaves of the new authority alone are counted, too.
    tokio::time::sleep(Duration::from_secs(2)).await;

    done.store(true, Ordering::Relaxed);
    let samples = loading.await?;
    ensure!(samples.len() > 200, "only {} admissions", samples.len());
    ensure!(failures(&samples).is_empty(), "of {}: {:#?}", samples.len(), failures(&samples));
    scene.stop().await
}
