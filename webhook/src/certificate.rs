//! The webhook's certificate: had, renewed, and trusted by the API server.
//!
//! It is our own (`own`), or another makes it and mounts it (`--tls-dir`).

mod own;

use crate::args::TlsArgs;
use crate::ca_bundle::BundleError;
use jiff::Timestamp;
use kerf_runtime::shutdown::CancellationToken;
use kerf_runtime::telemetry::chain;
use kerf_runtime::tls::{BadAges, Expiry, Material, ServingCertificate, TlsError, TlsFolder};
use kube::Client;
use own::Own;
use std::time::Duration;
use thiserror::Error;

/// How soon a failed look is repeated, where looks are not more frequent anyway.
const RETRY: Duration = Duration::from_secs(1);
/// How often a mounted folder is looked at. The kubelet itself needs up to a minute to renew it.
const LOOK: Duration = Duration::from_secs(10);

/// Keeps the certificate in order.
pub(crate) struct Keeper {
    source: Source,
    period: Duration,
}

/// Who makes the certificate.
enum Source {
    Own(Box<Own>),
    Folder(TlsFolder),
}

#[derive(Debug, Error)]
enum KeepError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("failed to look at the certificate")]
    Task(#[from] tokio::task::JoinError),
}

/// What one look at the certificate found.
struct Look {
    /// What to show to the API server; what is shown stays where there is none.
    material: Option<Material>,
    /// Whether the API server trusts it, where that is known.
    trusted: Option<bool>,
    /// What is not in order.
    error: Option<KeepError>,
}

impl Keeper {
    /// As the flags say.
    pub fn new(client: Client, args: TlsArgs) -> Result<Self, BadAges> {
        let Some(dir) = args.tls_dir else {
            let own = Own::new(client, args)?;
            return Ok(Self { period: own.period(), source: Source::Own(Box::new(own)) });
        };
        Ok(Self { source: Source::Folder(TlsFolder::new(dir, args.tls_names)), period: LOOK })
    }

    /// The material, as soon as there is any. `None` if the stop comes first.
    pub async fn obtain(&mut self, stop: &CancellationToken) -> Option<Material> {
        let mut complaint = Complaint::default();
        loop {
            let look = tokio::select! {
                () = stop.cancelled() => return None,
                look = self.look() => look,
            };
            if look.material.is_some() {
                return look.material;
            }
            complaint.about(look.error.as_ref());
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// Keeps `serving`, which shows `shown`, in order until `stop`. `told` hears after each look whether the API server takes
    /// what is shown.
    pub async fn keep(
        mut self,
        serving: ServingCertificate,
        (mut shown, expiry): (Material, Expiry),
        told: impl Fn(bool),
        stop: CancellationToken,
    ) {
        let (mut complaint, mut trusted) = (Complaint::default(), false);
        loop {
            let look = self.look().await;
            let refused = look.material.and_then(|material| show(&serving, &mut shown, material).err());
            expiry.set(&shown);
            trusted = look.trusted.unwrap_or(trusted);
            told(trusted && is_valid(&shown));
            let error = look.error.or(refused);
            complaint.about(error.as_ref());
            let pause = if error.is_some() { RETRY.min(self.period) } else { self.period };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn look(&mut self) -> Look {
        match &mut self.source {
            Source::Own(own) => own.look().await,
            Source::Folder(folder) => {
                let folder = folder.clone();
                let read = tokio::task::spawn_blocking(move || folder.read(Timestamp::now())).await;
                let read = read.map_err(KeepError::from).and_then(|read| read.map_err(KeepError::from));
                let (material, error) = match read {
                    Ok(material) => (Some(material), None),
                    Err(error) => (None, Some(error)),
                };
                // Who makes it tells the API server too.
                Look { material, trusted: Some(true), error }
            }
        }
    }
}

/// Shows `material` from the next connection on, if it is another than before. A bad one changes nothing.
fn show(serving: &ServingCertificate, shown: &mut Material, material: Material) -> Result<(), KeepError> {
    if *shown != material {
        serving.replace(&material)?;
        tracing::info!(end = %material.end()?, "another certificate is shown from now on");
        *shown = material;
    }
    Ok(())
}

fn is_valid(material: &Material) -> bool {
    material.end().is_ok_and(|end| Timestamp::now() < end)
}

/// Logs an error that repeats every second once.
#[derive(Debug, Default)]
struct Complaint(Option<String>);

impl Complaint {
    fn about(&mut self, error: Option<&KeepError>) {
        let error = error.map(|error| chain(error));
        if let Some(error) = error.as_ref().filter(|error| self.0.as_ref() != Some(error)) {
            tracing::warn!(error, "the certificate is not in order yet");
        }
        self.0 = error;
    }
}
