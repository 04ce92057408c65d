//! Tests logins: by token, by plugin, by OIDC, and with impersonation.

use super::Home;
use super::stand_in::{Certificate, StandIn, nodes};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

fn home(api: &StandIn, user: &Value) -> Home {
    Home::new(&json!({"server": format!("http://{}", api.address)}), user)
}

fn last(api: &StandIn) -> String {
    api.asked().last().cloned().unwrap_or_default().to_lowercase()
}

#[test]
fn the_api_server_gets_a_plugins_token_and_the_user_its_stderr() {
    let api = StandIn::api(&nodes(&["gpu-1"]));
    let credential = r#"{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "of-the-plugin"}}"#;
    let user = |script: &str| {
        json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script],
            "interactiveMode": "Never",
        }})
    };
    let ran = home(&api, &user(&format!("echo '{credential}'"))).run(&["nodes"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(last(&api).contains("authorization: bearer of-the-plugin"), "{}", last(&api));
    let ran = home(&api, &user("echo secret; echo 'the login has ended' >&2; exit 7")).run(&["nodes"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(
        ran.stderr.contains("gives no credentials") && ran.stderr.contains("the login has ended"),
        "{ran:?}"
    );
    assert!(!ran.stderr.contains("secret"), "{ran:?}");
}

/// A token with this end. Its other parts are empty, because kerf reads nothing else of it.
fn id_token(expires: i64) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.x", part(json!({"alg": "none"})), part(json!({"exp": expires})))
}

#[test]
fn an_expired_oidc_token_is_refreshed_at_its_provider() {
    let api = StandIn::api(&nodes(&["gpu-1"]));
    let certificate = Certificate::new("localhost");
    let fresh = id_token(4_000_000_000);
    let answer = json!({"id_token": fresh, "refresh_token": "next"});
    let tokens = StandIn::api_with_tls(&certificate, &[("/token", answer)]);
    let metadata = json!({"token_endpoint": format!("https://localhost:{}/token", tokens.address.port())});
    let provider = StandIn::api_with_tls(&certificate, &[("/.well-known/openid-configuration", metadata)]);
    let config = json!({
        "idp-issuer-url": format!("https://localhost:{}", provider.address.port()),
        "client-id": "kerf", "client-secret": "s", "id-token": id_token(1), "refresh-token": "first",
    });
    let home = home(&api, &json!({"auth-provider": {"name": "oidc", "config": config}}));
    let authorities = home.path().join("ca.pem");
    std::fs::write(&authorities, &certificate.pem).unwrap();
    let ran = super::Ran::from(home.kerf(&["nodes"]).env("SSL_CERT_FILE", &authorities).output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        last(&api).contains(&format!("authorization: bearer {}", fresh.to_lowercase())),
        "{}",
        last(&api)
    );
    let renewed = tokens.asked().join("\n");
    assert!(renewed.contains("grant_type=refresh_token") && renewed.contains("first"), "{renewed}");
}

#[test]
fn a_valid_oidc_token_is_not_refreshed() {
    let api = StandIn::api(&nodes(&["gpu-1"]));
    let token = id_token(4_000_000_000);
    let user = json!({"auth-provider": {"name": "oidc", "config": {"id-token": token}}});
    let ran = home(&api, &user).run(&["nodes"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        last(&api).contains(&format!("authorization: bearer {}", token.to_lowercase())),
        "{}",
        last(&api)
    );
}

#[test]
fn the_api_server_gets_the_impersonation_headers() {
    let api = StandIn::api(&nodes(&["gpu-1"]));
    let home = home(&api, &json!({}));
    let ran = home.run(&["nodes", "--as", "jane", "--as-group", "a", "--as-group", "b", "--as-uid", "7"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let asked = last(&api);
    for header in
        ["impersonate-user: jane", "impersonate-group: a", "impersonate-group: b", "impersonate-uid: 7"]
    {
        assert!(asked.contains(header), "{asked}");
    }
    assert_eq!(home.run(&["nodes", "--as-group", "a"]).code, Some(2));
}

#[test]
fn flags_name_another_server_cluster_and_user() {
    let (api, other) = (StandIn::api(&nodes(&["gpu-1"])), StandIn::api(&nodes(&["gpu-2"])));
    let home = home(&api, &json!({"token": "own"}));
    let server = format!("http://{}", other.address);
    let ran = home.run(&["nodes", "-s", &server]);
    assert_eq!(ran.stdout, "gpu-2: its agent has not reported yet\n", "{ran:?}");
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(home.kubeconfig()).unwrap()).unwrap();
    let more = |list: &mut Value, it: Value| list.as_array_mut().unwrap().push(it);
    more(&mut config["clusters"], json!({"name": "d", "cluster": {"server": server}}));
    more(&mut config["users"], json!({"name": "v", "user": {"token": "others"}}));
    std::fs::write(home.kubeconfig(), config.to_string()).unwrap();
    let ran = home.run(&["nodes", "--cluster", "d", "--user", "v"]);
    assert_eq!(ran.stdout, "gpu-2: its agent has not reported yet\n", "{ran:?}");
    assert!(last(&other).contains("authorization: bearer others"), "{}", last(&other));
}

#[test]
fn the_request_timeout_ends_the_wait_for_an_unresponsive_server() {
    let home = home(&StandIn::silent(), &json!({}));
    let begun = std::time::Instant::now();
    let ran = home.run(&["nodes", "--request-timeout", "1"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("does not answer"), "{ran:?}");
    assert!(begun.elapsed().as_secs() < 8, "{:?}", begun.elapsed());
}
