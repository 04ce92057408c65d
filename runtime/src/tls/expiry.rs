//! When the certificate that is shown ends, for those who watch over it.

use super::Material;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// The end of the serving certificate as a metric; nothing is told before there is one. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Expiry(Family<NoLabels, Gauge>);

type NoLabels = [(&'static str, &'static str); 0];

impl Expiry {
    /// Adds it to a program's metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "When the certificate that the program shows ends, in seconds since 1970";
        registry.register_with_unit("kerf_certificate_expiry_timestamp", help, Unit::Seconds, self.0.clone());
    }

    /// This material's certificate is shown from now on.
    pub fn set(&self, material: &Material) {
        if let Ok(end) = material.end() {
            self.0.get_or_create(&[]).set(end.as_second());
        }
    }
}
