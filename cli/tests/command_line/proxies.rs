//! Tests proxies from the environment and from the kubeconfig.

use super::Home;
use super::stand_in::{Certificate, StandIn, nodes};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// No name server resolves this name, so only a proxy can reach the server.
const HOST: &str = "api.kerf.invalid";

fn server() -> (StandIn, Value) {
    let certificate = Certificate::new(HOST);
    let api = StandIn::api_with_tls(&certificate, &nodes(&["gpu-1"]));
    let authority = STANDARD.encode(&certificate.pem);
    (api, json!({"server": format!("https://{HOST}:6443"), "certificate-authority-data": authority}))
}

#[track_caller]
fn draws(home: &Home, variables: &[(&str, &str)]) {
    let output = home.kerf(&["nodes"]).envs(variables.iter().copied()).output().unwrap();
    let ran = super::Ran::from(output);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "gpu-1: its agent has not reported yet\n"),
        "{ran:?}"
    );
}

#[test]
fn requests_go_through_the_proxy_of_the_environment() {
    let (api, cluster) = server();
    let home = Home::new(&cluster, &json!({}));
    let proxy = StandIn::connect_proxy(api.address);
    draws(&home, &[("HTTPS_PROXY", &format!("http://me:secret@{}", proxy.address))]);
    let asked = proxy.asked().join("\n");
    assert!(asked.contains(&format!("CONNECT {HOST}:6443 HTTP/1.1")), "{asked}");
    assert!(asked.to_lowercase().contains(&"proxy-authorization: basic bwu6c2vjcmv0".to_owned()), "{asked}");
    assert!(api.asked().iter().any(|request| request.starts_with("GET /version")));
}

#[test]
fn requests_go_through_a_socks_proxy() {
    let (api, cluster) = server();
    let home = Home::new(&cluster, &json!({}));
    for scheme in ["socks5", "socks5h"] {
        let proxy = StandIn::socks_proxy(api.address);
        draws(&home, &[("https_proxy", &format!("{scheme}://{}", proxy.address))]);
        assert_eq!(proxy.asked().first(), Some(&format!("{HOST}:6443")));
    }
}

#[test]
fn the_kubeconfigs_proxy_comes_first_and_ignores_no_proxy() {
    let (api, mut cluster) = server();
    let (own, other) = (StandIn::connect_proxy(api.address), StandIn::connect_proxy(api.address));
    cluster["proxy-url"] = json!(format!("http://{}", own.address));
    let home = Home::new(&cluster, &json!({}));
    draws(&home, &[("HTTPS_PROXY", &format!("http://{}", other.address)), ("NO_PROXY", HOST)]);
    assert!(!own.asked().is_empty());
    assert_eq!(other.asked(), Vec::<String>::new());
}

#[test]
fn hosts_of_no_proxy_and_this_machine_are_reached_without_a_proxy() {
    let api = StandIn::api(&nodes(&["gpu-1"]));
    let proxy = StandIn::connect_proxy(api.address);
    let variable = format!("http://{}", proxy.address);
    let home = Home::for_server(&format!("http://{}", api.address));
    // The server must be reached by the proxy, because this `NO_PROXY` names the proxy and not the server.
    draws(&home, &[("HTTP_PROXY", &variable), ("NO_PROXY", "127.0.0.1")]);
    draws(&home, &[("HTTP_PROXY", &variable)]);
    assert_eq!(proxy.asked(), Vec::<String>::new());

    let (_, cluster) = server();
    let home = Home::new(&cluster, &json!({}));
    let mut kerf = home.kerf(&["nodes"]);
    let ran =
        super::Ran::from(kerf.env("HTTPS_PROXY", &variable).env("NO_PROXY", ".invalid").output().unwrap());
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains(&format!("https://{HOST}:6443/ does not answer")), "{ran:?}");
    assert_eq!(proxy.asked(), Vec::<String>::new());
}

#[test]
fn an_invalid_proxy_is_reported_without_its_password() {
    let (_, cluster) = server();
    let home = Home::new(&cluster, &json!({}));
    let mut kerf = home.kerf(&["nodes"]);
    let ran = super::Ran::from(kerf.env("HTTPS_PROXY", "ftp://me:secret@proxy").output().unwrap());
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("correct the kubeconfig's proxy-url and HTTPS_PROXY"), "{ran:?}");
    assert!(!ran.stderr.contains("secret"), "{ran:?}");
}

#[test]
fn empty_entries_of_no_proxy_are_skipped() {
    let (api, cluster) = server();
    let home = Home::new(&cluster, &json!({}));
    let proxy = StandIn::connect_proxy(api.address);
    let variable = format!("http://{}", proxy.address);
    for excluded in ["a,,b", ",", "169.254/16, ,b", "[half"] {
        draws(&home, &[("HTTPS_PROXY", &variable), ("NO_PROXY", excluded)]);
        assert!(!proxy.asked().is_empty(), "{excluded}");
    }
}
