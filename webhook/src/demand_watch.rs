//! What pods wait for, from the one ConfigMap in which the extender's leader says it. Without it, or while it cannot be read,
//! pods are chosen for as if nobody waited.

use crate::supply_watch::Publisher;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kerf_core::contract::Demand;
use kerf_core::keys;
use kerf_runtime::shutdown::CancellationToken;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};

/// Follows the demand in kerf's `namespace` until `stop`.
pub(crate) async fn follow(client: Client, namespace: String, publisher: Publisher, stop: CancellationToken) {
    let events =
        watch_object(Api::<ConfigMap>::namespaced(client, &namespace), keys::DEMAND).default_backoff();
    let mut events = std::pin::pin!(events);
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            Some(Ok(object)) => publisher.demand(object.as_ref().and_then(read)),
            Some(Err(error)) => tracing::warn!(%error, "watch of the demand broke, it is begun again"),
            None => return,
        }
    }
}

fn read(object: &ConfigMap) -> Option<Demand> {
    let text = object.data.as_ref()?.get(keys::DEMAND_DOCUMENT)?;
    Demand::parse(text)
        .inspect_err(|error| tracing::warn!(%error, "the demand cannot be read: pods are chosen for as if nobody waited"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_cannot_be_read_is_no_demand() {
        let object = |key: &str, text: &str| ConfigMap {
            data: Some([(key.to_owned(), text.to_owned())].into()),
            ..ConfigMap::default()
        };
        let demand = Demand::of(3);
        assert_eq!(read(&object(keys::DEMAND_DOCUMENT, &demand.to_json())), Some(demand.clone()));
        assert_eq!(read(&object(keys::DEMAND_DOCUMENT, "{}")), None);
        assert_eq!(read(&object("demand", &demand.to_json())), None);
        assert_eq!(read(&ConfigMap::default()), None);
    }
}
