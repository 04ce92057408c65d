use super::*;
use crate::api_stand_in::{ApiStandIn, Fault};
use clap::Parser;
use kerf_runtime::tls::key;

const CONFIG_MAP: &str = "/api/v1/namespaces/kerf-system/configmaps/kerf-extender-ca";
const AGENTS: &str = "--agents-address=[::]:9445";

async fn ensure(api: &Arc<ApiStandIn>, flags: &[&str]) -> Certificates {
    let args = ExtenderArgs::parse_from([&["kerf-extender"], flags].concat());
    Certificates::ensure(&args, &api.client(), Expiry::default()).await.unwrap()
}

#[tokio::test]
async fn the_authority_is_published_without_keys_if_agents_use_it() {
    let api = ApiStandIn::new();
    for flags in [&[][..], &["--agents-address=127.0.0.1:1", "--agents-unauthenticated"]] {
        ensure(&api, flags).await;
        assert_eq!(api.get(CONFIG_MAP), None, "{flags:?}");
    }
    let certificates = ensure(&api, &[AGENTS]).await;
    let published = api.get(CONFIG_MAP).unwrap()["data"].clone();
    assert_eq!(published, serde_json::json!({key::CA_CERT: certificates.material.ca_pem}));
    assert!(!published.to_string().contains("PRIVATE"));
    for server in [certificates.for_agents(), certificates.for_scheduler()] {
        assert_eq!(server.unwrap().alpn_protocols, [b"http/1.1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn publishing_the_authority_is_retried_while_kube_scheduler_is_served() {
    let api = ApiStandIn::new();
    ensure(&api, &[]).await;
    api.fail([Fault::Answer(403)]);
    let certificates = ensure(&api, &[AGENTS]).await;
    assert!(!certificates.is_published);
    let renewing = tokio::spawn(async move { certificates.renew().await });
    let second = Duration::from_secs(1);
    let is_there = async |within: Duration| {
        sleep(within).await;
        api.get(CONFIG_MAP).is_some()
    };
    assert!(!is_there(RETRY_INTERVAL.saturating_sub(second)).await);
    assert!(is_there(2 * second).await);
    // An admin may delete the ConfigMap.
    api.delete(CONFIG_MAP);
    assert!(!is_there(INTERVAL.saturating_sub(5 * second)).await);
    assert!(is_there(10 * second).await);
    renewing.abort();
}
