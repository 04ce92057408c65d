//! The life of the serving certificate as metrics, for alerts.

use super::{Material, inspect, key};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// The life of the serving certificate as metrics, which are absent before there is one. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Expiry {
    start: Family<NoLabels, Gauge>,
    end: Family<NoLabels, Gauge>,
}

type NoLabels = [(&'static str, &'static str); 0];

impl Expiry {
    /// Adds the two metrics to a program's registry.
    pub fn register(&self, registry: &mut Registry) {
        let help = "When the certificate that the program shows began, in seconds since 1970";
        registry.register_with_unit(
            "kerf_certificate_start_timestamp",
            help,
            Unit::Seconds,
            self.start.clone(),
        );
        let help = "When the certificate that the program shows ends, in seconds since 1970";
        registry.register_with_unit(
            "kerf_certificate_expiry_timestamp",
            help,
            Unit::Seconds,
            self.end.clone(),
        );
    }

    /// Sets the metrics to the life of this material's server certificate.
    pub fn set(&self, material: &Material) {
        if let Ok(life) = inspect::life_of_pem(key::SERVER_CERT, &material.server_cert_pem) {
            self.start.get_or_create(&[]).set(life.begin.as_second());
            self.end.get_or_create(&[]).set(life.end.as_second());
        }
    }
}
