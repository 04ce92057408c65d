//! Obtains the webhook's certificate, renews it, and makes the API server trust it.
//!
//! The certificate is kerf's own (`own`), or another program issues and mounts it (`--tls-dir`).

mod own;

use crate::args::TlsArgs;
use crate::ca_bundle::BundleError;
use jiff::Timestamp;
use kerf_runtime::shutdown::CancellationToken;
use kerf_runtime::telemetry::chain;
use kerf_runtime::tls::{Expiry, InvalidLifetimes, Material, ServingCertificate, TlsError, TlsFolder};
use kube::Client;
use own::Own;
use std::time::Duration;
use thiserror::Error;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which a mounted folder is read. It need not be shorter, because the kubelet itself takes up to a
/// minute to update the folder.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

pub(crate) struct CertificateReconciler {
    source: Source,
    period: Duration,
}

enum Source {
    Own(Box<Own>),
    Folder(TlsFolder),
}

#[derive(Debug, Error)]
enum RenewError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("failed to read the certificate")]
    Task(#[from] tokio::task::JoinError),
}

struct Check {
    /// The certificate to serve; `None` keeps the current one.
    material: Option<Material>,
    /// Whether the API server trusts it; `None` if that is not known.
    trusted: Option<bool>,
    error: Option<RenewError>,
}

impl CertificateReconciler {
    pub fn new(client: Client, args: TlsArgs) -> Result<Self, InvalidLifetimes> {
        let Some(dir) = args.tls_dir else {
            let own = Own::new(client, args)?;
            return Ok(Self { period: own.period(), source: Source::Own(Box::new(own)) });
        };
        Ok(Self { source: Source::Folder(TlsFolder::new(dir, args.tls_names)), period: POLL_INTERVAL })
    }

    pub async fn obtain(&mut self, stop: &CancellationToken) -> Option<Material> {
        let mut last_error = LastError::default();
        loop {
            let check = tokio::select! {
                () = stop.cancelled() => return None,
                check = self.check() => check,
            };
            if check.material.is_some() {
                return check.material;
            }
            last_error.log_once(check.error.as_ref());
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
            }
        }
    }

    /// Keeps `serving`, which now has the certificate `shown`, up to date until `stop`. After each check it calls
    /// `report` with whether the API server accepts the certificate.
    pub async fn run(
        mut self,
        serving: ServingCertificate,
        (mut shown, expiry): (Material, Expiry),
        report: impl Fn(bool),
        stop: CancellationToken,
    ) {
        let (mut last_error, mut trusted) = (LastError::default(), false);
        loop {
            let check = self.check().await;
            let refused = check.material.and_then(|material| show(&serving, &mut shown, material).err());
            expiry.set(&shown);
            // If the configuration could not be read, the last known answer stays, so that an outage of the API server
            // does not change the readiness.
            trusted = check.trusted.unwrap_or(trusted);
            report(trusted && is_valid(&shown));
            let error = check.error.or(refused);
            last_error.log_once(error.as_ref());
            let delay = if error.is_some() { RETRY_INTERVAL.min(self.period) } else { self.period };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    async fn check(&mut self) -> Check {
        match &mut self.source {
            Source::Own(own) => own.check().await,
            Source::Folder(folder) => {
                let folder = folder.clone();
                // The folder is read in another thread, because the program answers pods in this one.
                let read = tokio::task::spawn_blocking(move || folder.read(Timestamp::now())).await;
                let read = read.map_err(RenewError::from).and_then(|read| read.map_err(RenewError::from));
                let (material, error) = match read {
                    Ok(material) => (Some(material), None),
                    Err(error) => (None, Some(error)),
                };
                // The issuer also maintains the caBundle, so the certificate counts as trusted.
                Check { material, trusted: Some(true), error }
            }
        }
    }
}

/// Serves `material` from the next connection on, if it is new. Invalid material changes nothing, because the present
/// certificate may still be valid.
fn show(serving: &ServingCertificate, shown: &mut Material, material: Material) -> Result<(), RenewError> {
    if *shown != material {
        serving.replace(&material)?;
        tracing::info!(end = %material.end()?, "serving another certificate");
        *shown = material;
    }
    Ok(())
}

fn is_valid(material: &Material) -> bool {
    material.end().is_ok_and(|end| Timestamp::now() < end)
}

/// Logs an error once and not at each retry, because a retry follows every second.
#[derive(Debug, Default)]
struct LastError(Option<String>);

impl LastError {
    fn log_once(&mut self, error: Option<&RenewError>) {
        let error = error.map(|error| chain(error));
        if let Some(error) = error.as_ref().filter(|error| self.0.as_ref() != Some(error)) {
            tracing::warn!(error, "the certificate is not valid and trusted yet");
        }
        self.0 = error;
    }
}
