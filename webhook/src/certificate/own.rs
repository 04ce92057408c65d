//! The certificate that kerf issues itself. All replicas do the same, and the Secret makes them agree.
//!
//! A new authority signs only after the configuration has named it for a while, so that every API server trusts its
//! certificates before the first one is served. Until then the previous authority signs.

use super::{Check, RenewError};
use crate::args::TlsArgs;
use crate::ca_bundle::{BundleError, Configuration};
use jiff::Timestamp;
use kerf_runtime::args::NamespacedName;
use kerf_runtime::tls::{InvalidLifetimes, Lifetimes, Material, Rotation, TlsSecret, Trust, Wanted};
use kube::Client;
use std::time::{Duration, Instant};

pub(super) struct Own {
    client: Client,
    secret: NamespacedName,
    wanted: Wanted,
    ages: Lifetimes,
    configuration: String,
    bundle_age: BundleAge,
}

impl Own {
    pub fn new(client: Client, args: TlsArgs) -> Result<Self, InvalidLifetimes> {
        let ages = Lifetimes::new(args.tls_leaf_age, args.tls_ca_age)?;
        let wanted = Wanted { server_names: args.tls_names, client_name: None };
        let bundle_age = BundleAge { settle: ages.settle(), bundle: None };
        Ok(Self {
            client,
            secret: args.tls_secret,
            wanted,
            ages,
            configuration: args.configuration,
            bundle_age,
        })
    }

    pub fn period(&self) -> Duration {
        self.ages.poll_interval()
    }

    pub async fn check(&mut self) -> Check {
        // The configuration is read before the Secret. Otherwise an older Secret could replace a newer caBundle.
        let configuration = Configuration::read(&self.client, &self.configuration).await;
        let bundle = configuration.as_ref().ok().and_then(Configuration::bundle);
        let settled = self.bundle_age.settled(bundle, Instant::now());
        let now = Timestamp::now();
        let rotation = Rotation { ages: self.ages, trust: Trust::Only(settled), now };
        let NamespacedName { namespace, name } = &self.secret;
        match TlsSecret::rotate(&self.client, namespace, name, &self.wanted, &rotation).await {
            Ok(material) => {
                let (trusted, error) = trust(configuration, &material, now).await;
                Check { material: Some(material), trusted, error: error.map(RenewError::from) }
            }
            Err(error) => Check { material: None, trusted: None, error: Some(error.into()) },
        }
    }
}

/// Makes the configuration trust `material`'s authorities. Returns whether it does, if that is known, and the error.
async fn trust(
    configuration: Result<Configuration, BundleError>,
    material: &Material,
    now: Timestamp,
) -> (Option<bool>, Option<BundleError>) {
    let configuration = match configuration {
        Ok(configuration) => configuration,
        Err(error) => return (matches!(error, BundleError::Absent(_)).then_some(false), Some(error)),
    };
    match configuration.trust(&material.ca_pem).await {
        Ok(()) => (Some(true), None),
        Err(error) => {
            // A failed write is not the end, because the present caBundle may trust the certificate already.
            let bundle = configuration.bundle();
            (Some(bundle.is_some_and(|bundle| material.is_trusted_by(&bundle, now))), Some(error))
        }
    }
}

/// The age of the configuration's caBundle. An authority may sign only once its caBundle is old enough.
struct BundleAge {
    /// The time that API servers have to receive a change of it.
    settle: Duration,
    bundle: Option<(String, Instant)>,
}

impl BundleAge {
    /// The caBundle that API servers trust by now, given the configuration's present one.
    fn settled(&mut self, bundle: Option<String>, now: Instant) -> &str {
        if self.bundle.as_ref().map(|(text, _)| text) != bundle.as_ref() {
            self.bundle = bundle.map(|text| (text, now));
        }
        match &self.bundle {
            Some((text, since)) if now.duration_since(*since) >= self.settle => text,
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_bundle_is_trusted_after_the_settling_time() {
        let (mut bundle_age, start) =
            (BundleAge { settle: Duration::from_mins(1), bundle: None }, Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut settled =
            |text: &str, seconds| bundle_age.settled(Some(text.to_owned()), at(seconds)).to_owned();
        assert_eq!(settled("old", 0), "");
        assert_eq!(settled("old", 59), "");
        assert_eq!(settled("old", 60), "old");
        assert_eq!(settled("new old", 61), "");
        assert_eq!(settled("new old", 121), "new old");
        assert_eq!(bundle_age.settled(None, at(122)), "");
        assert_eq!(bundle_age.settled(Some("new old".to_owned()), at(123)), "");
    }
}
