//! The webhook's certificate: had from its Secret, renewed, and trusted by the API server. All replicas do the same, and
//! the Secret makes them agree.

use crate::ca_bundle::{self, BundleError};
use kerf_runtime::shutdown::CancellationToken;
use kerf_runtime::telemetry::chain;
use kerf_runtime::tls::{Material, ServingCertificate, TlsError, TlsSecret, Wanted};
use kube::Client;
use std::time::Duration;
use thiserror::Error;

/// How often Secret and configuration are looked at.
const CHECK: Duration = Duration::from_secs(30);
/// How soon a failed look is repeated.
const RETRY: Duration = Duration::from_secs(1);

/// Where the certificate is kept, and who must trust it.
#[derive(Clone)]
pub(crate) struct Keeper {
    /// The API server.
    pub client: Client,
    /// The Secret's namespace.
    pub namespace: String,
    /// The Secret's name.
    pub secret: String,
    /// What the certificate must do.
    pub wanted: Wanted,
    /// The `MutatingWebhookConfiguration`.
    pub configuration: String,
}

#[derive(Debug, Error)]
enum KeepError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

impl Keeper {
    /// The material, as soon as there is any. `None` if the stop comes first.
    pub async fn obtain(&self, stop: &CancellationToken) -> Option<Material> {
        let mut complaint = Complaint::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return None,
                material = self.material() => match material {
                    Ok(material) => return Some(material),
                    Err(error) => complaint.about(&error),
                },
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// Keeps `serving` and the caBundle what the Secret says, until `stop`. Calls `trusted` each time that both are.
    pub async fn keep(&self, serving: ServingCertificate, trusted: impl Fn(), stop: CancellationToken) {
        let (mut complaint, mut shown) = (Complaint::default(), None);
        loop {
            let pause = match self.look(&serving, &mut shown).await {
                Ok(()) => {
                    complaint = Complaint::default();
                    trusted();
                    CHECK
                }
                Err(error) => {
                    complaint.about(&error);
                    RETRY
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn material(&self) -> Result<Material, TlsError> {
        TlsSecret::ensure(&self.client, &self.namespace, &self.secret, &self.wanted).await
    }

    async fn look(
        &self,
        serving: &ServingCertificate,
        shown: &mut Option<Material>,
    ) -> Result<(), KeepError> {
        let material = self.material().await?;
        if shown.as_ref() != Some(&material) {
            serving.replace(&material)?;
        }
        ca_bundle::ensure(&self.client, &self.configuration, &material.ca_pem).await?;
        *shown = Some(material);
        Ok(())
    }
}

/// Logs an error that repeats every second once.
#[derive(Debug, Default)]
struct Complaint(Option<String>);

impl Complaint {
    fn about(&mut self, error: &dyn std::error::Error) {
        let error = chain(error);
        if self.0.as_ref() != Some(&error) {
            tracing::warn!(error, "the certificate is not in order yet");
            self.0 = Some(error);
        }
    }
}
