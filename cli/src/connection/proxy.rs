//! Chooses the proxy to an API server by kubectl's rules. The cluster's `proxy-url` always counts. Otherwise the
//! environment does, except for servers on this machine and those in `NO_PROXY`. Pure.

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use std::net::IpAddr;

/// The proxy; `None` for a direct connection. The error names the source but not the URL, which may contain a password.
pub fn choose(
    own: Option<&str>,
    server: &Uri,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, String> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty());
    let first = |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, set(name)?)));
    let found = match own.filter(|own| !own.is_empty()) {
        Some(own) => Some(("the kubeconfig's proxy-url", own.to_owned())),
        None if is_here(server) => None,
        None => {
            let names = if server.scheme_str() == Some("http") {
                ["HTTP_PROXY", "http_proxy"]
            } else {
                ["HTTPS_PROXY", "https_proxy"]
            };
            let excluded = first(["NO_PROXY", "no_proxy"]).map(|(_, list)| list).unwrap_or_default();
            first(names).filter(|_| !is_excluded(&excluded, server))
        }
    };
    found.map(|(origin, url)| parse(origin, &url)).transpose()
}

fn parse(origin: &str, url: &str) -> Result<Uri, String> {
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    // kube supports only this name. The meaning stays the same, because kube always lets the proxy resolve names.
    let url = url.replacen("socks5h://", "socks5://", 1);
    let parsed = url.parse::<Uri>().ok();
    let is_known = |url: &Uri| matches!(url.scheme_str(), Some("http" | "https" | "socks5"));
    let parsed = parsed.filter(is_known).ok_or_else(|| {
        format!("{origin} is no address of a proxy; write it like http://HOST:3128 or socks5://HOST:1080")
    })?;
    if parsed.scheme_str() == Some("socks5") && parsed.authority().is_some_and(|it| it.as_str().contains('@'))
    {
        return Err(format!("{origin} has a password for a SOCKS5 proxy, which kerf does not support"));
    }
    Ok(parsed)
}

/// Whether the server is on this machine. Such a server needs a direct connection, because a proxy cannot reach it.
fn is_here(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether `NO_PROXY` names the server. Empty entries, and those that are no host, address or network, match nothing,
/// as kubectl skips them.
fn is_excluded(excluded: &str, server: &Uri) -> bool {
    let entries = excluded.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let excluded = entries.collect::<Vec<_>>().join(",");
    Matcher::builder().all("http://proxy").no(excluded).build().intercept(server).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(own: Option<&str>, server: &str, environment: &[(&str, &str)]) -> Result<String, String> {
        let get = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let url = choose(own, &server.parse().unwrap(), get)?;
        Ok(url.map(|url| url.to_string()).unwrap_or_default())
    }

    #[test]
    fn a_proxy_is_chosen_as_kubectl_chooses_it() {
        let server = "https://api.example:6443";
        let proxy = ("HTTPS_PROXY", "http://proxy:3128");
        let through = "http://proxy:3128/";
        for (environment, expected) in [
            (&[][..], ""),
            (&[proxy], through),
            (&[("https_proxy", "proxy:3128")], through),
            (&[("HTTPS_PROXY", "socks5h://proxy:1080")], "socks5://proxy:1080/"),
            (&[("HTTP_PROXY", "http://proxy:3128")], ""),
            (&[proxy, ("NO_PROXY", ".example")], ""),
            (&[proxy, ("no_proxy", "10.0.0.0/8, api.example,")], ""),
            (&[proxy, ("NO_PROXY", "*")], ""),
            (&[proxy, ("NO_PROXY", "a,,*")], ""),
            (&[proxy, ("NO_PROXY", "a,,b")], through),
            (&[proxy, ("NO_PROXY", " , ,")], through),
            // The proxy's own name is in the list, because `NO_PROXY` names servers and not the proxy itself.
            (&[proxy, ("NO_PROXY", "proxy,localhost,169.254/16")], through),
        ] {
            assert_eq!(chosen(None, server, environment).as_deref(), Ok(expected), "{environment:?}");
        }
        for server in ["https://localhost:6443", "https://127.0.0.1:6443", "https://[::1]:6443"] {
            assert_eq!(chosen(None, server, &[proxy]).as_deref(), Ok(""), "{server}");
            assert_eq!(chosen(Some("http://own:1"), server, &[proxy]).as_deref(), Ok("http://own:1/"));
        }
        let own = chosen(Some("socks5://own:1"), server, &[proxy, ("NO_PROXY", "*")]);
        assert_eq!(own.as_deref(), Ok("socks5://own:1/"));
        assert_eq!(
            chosen(None, "http://api.example", &[("HTTP_PROXY", "proxy:1")]).as_deref(),
            Ok("http://proxy:1/")
        );
    }

    #[test]
    fn an_invalid_proxy_is_reported_without_its_password() {
        for url in [
            "ftp://me:secret@proxy",
            "http://me:secret@",
            "http://me:secret@pro xy",
            "socks5://me:secret@proxy",
        ] {
            let error = chosen(None, "https://api.example", &[("HTTPS_PROXY", url)]).unwrap_err();
            assert!(error.starts_with("HTTPS_PROXY ") && !error.contains("secret"), "{error}");
        }
    }
}
