//! Certificates that another program makes and mounts (`--tls-dir`), like cert-manager. A running replica takes over
//! the valid ones and no others, without disturbing clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::ensure;
use http::Request;
use kerf_tests::admission::{AdmissionScene, SecretVolume, asking, failures};
use kerf_tests::cluster::wait;
use kerf_tests::control_plane::{Authority, KeyAndCertificate};
use kube::{Client, Config};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

const TIMEOUT: Duration = Duration::from_secs(90);
const NAME: &str = "127.0.0.1";

/// An authority and the certificate that it made for the webhook.
struct Made {
    by: Authority,
    pair: KeyAndCertificate,
}

impl Made {
    fn new(name: &str) -> anyhow::Result<Self> {
        let by = Authority::new(name)?;
        Ok(Self { pair: by.server(&[NAME])?, by })
    }

    /// A certificate that ends in `life`.
    fn ending_in(name: &str, life: Duration) -> anyhow::Result<Self> {
        let by = Authority::new(name)?;
        let end = SystemTime::now().duration_since(UNIX_EPOCH)? + life;
        Ok(Self { pair: by.server_until(&[NAME], end)?, by })
    }

    /// The content of the Secret.
    fn content(&self) -> [(&str, &str); 3] {
        [("ca.crt", self.by.pem()), ("tls.crt", &self.pair.certificate), ("tls.key", &self.pair.key)]
    }
}

/// Whether a new connection to `address` gets a certificate by this authority.
async fn is_shown(address: SocketAddr, by: &Authority) -> anyhow::Result<bool> {
    let mut config = Config::new(format!("https://{address}").parse()?);
    config.root_cert = Some(vec![CertificateDer::from_pem_slice(by.pem().as_bytes())?.to_vec()]);
    let request = Request::get("/mutate").body(kube::client::Body::empty())?;
    Ok(Client::try_from(config)?.send(request).await.is_ok())
}

struct Stage {
    scene: AdmissionScene,
    volume: SecretVolume,
}

impl Stage {
    async fn shows(&self, made: &Made) -> anyhow::Result<()> {
        let address = self.scene.replicas()[0].address();
        let shown = async || is_shown(address, &made.by).await;
        wait(TIMEOUT, "new connections to be shown the certificate", shown).await
    }

    async fn logs(&self, text: &str) -> anyhow::Result<()> {
        let logged = async || Ok(self.scene.replicas()[0].log()?.contains(text));
        wait(TIMEOUT, &format!("the log to say {text:?}"), logged).await
    }

    async fn is_ready(&self, wanted: bool) -> anyhow::Result<()> {
        let ready = async || Ok(self.scene.ready().is_empty() != wanted);
        wait(TIMEOUT, &format!("the replica's readiness to be {wanted}"), ready).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mounted_certificate_is_reloaded_under_load_and_a_bad_one_is_ignored() -> anyhow::Result<()> {
    let (old, new, stranger) = (Made::new("old")?, Made::new("new")?, Made::new("stranger")?);
    let volume = SecretVolume::mount(&old.content())?;
    let flags = [format!("--tls-dir={}", volume.path().display()), "--grace=1s".to_owned()];
    let mut scene = AdmissionScene::start().await?;
    scene.trust(&[old.by.pem(), new.by.pem()]).await?;
    scene.add_replica(&flags.each_ref().map(String::as_str)).await?;
    let process = scene.replicas()[0].process();
    let done = Arc::new(AtomicBool::new(false));
    let (load, ended) = (scene.load(20), done.clone());
    let loading =
        tokio::spawn(async move { load.run(&asking(), true, || ended.load(Ordering::Relaxed)).await });
    let mut stage = Stage { scene, volume };
    stage.shows(&old).await?;

    stage.volume.renew(&new.content())?;
    stage.shows(&new).await?;
    let address = stage.scene.replicas()[0].address();
    ensure!(!is_shown(address, &old.by).await?, "the old certificate is shown too");
    // The API server reconnects when its trust bundle changes.
    stage.scene.trust(&[new.by.pem()]).await?;

    let past = Made::ending_in("past", Duration::ZERO)?;
    let [ca, crt, key] = new.content();
    let half = crt.1.split_at(crt.1.len() / 2).0;
    let (wrong_crt, wrong_key) = (("tls.crt", &*stranger.pair.certificate), ("tls.key", &*stranger.pair.key));
    // The same message twice in a row is logged only once, so neighbours in this list differ.
    let bad = [
        (vec![ca, crt, wrong_key], "tls.key cannot be used"),
        (vec![ca, ("tls.crt", half), key], "tls.crt cannot be used"),
        (vec![ca, wrong_crt, key], "tls.key cannot be used"),
        (vec![ca, wrong_crt, wrong_key], "tls.crt does not serve"),
        (vec![ca, crt], "tls.key is missing"),
        (past.content().to_vec(), "tls.crt is valid from"),
    ];
    for (content, complaint) in bad {
        let before = stage.scene.replicas()[0].log()?.len();
        stage.volume.renew(&content)?;
        let reported = async || {
            Ok(stage.scene.replicas()[0].log()?.get(before..).is_some_and(|log| log.contains(complaint)))
        };
        wait(TIMEOUT, complaint, reported).await?;
        ensure!(is_shown(address, &new.by).await?, "{complaint}: the good certificate is shown no more");
        ensure!(!stage.scene.ready().is_empty(), "{complaint}: the replica is not ready");
    }

    done.store(true, Ordering::Relaxed);
    let samples = loading.await?;
    ensure!(samples.len() > 200, "only {} admissions", samples.len());
    ensure!(failures(&samples).is_empty(), "of {}: {:#?}", samples.len(), failures(&samples));
    ensure!(stage.scene.replicas()[0].process() == process, "the replica was started again");
    stage.scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_not_ready_while_its_mounted_certificate_is_expired() -> anyhow::Result<()> {
    let mut scene = AdmissionScene::start().await?;
    // The certificate is made once the control plane runs, because it must not end before the replica is ready.
    let (short, next) = (Made::ending_in("short", Duration::from_secs(20))?, Made::new("next")?);
    let volume = SecretVolume::mount(&short.content())?;
    let flag = format!("--tls-dir={}", volume.path().display());
    scene.add_replica(&[&flag, "--grace=1s"]).await?;
    let mut stage = Stage { scene, volume };
    stage.is_ready(false).await?;
    stage.logs("tls.crt is valid from").await?;
    stage.volume.renew(&next.content())?;
    stage.is_ready(true).await?;
    stage.shows(&next).await?;
    stage.scene.stop().await
}
