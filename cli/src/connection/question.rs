//! The first request to an API server: its version and its time.

use super::Trouble;
use super::trouble::{Failed, ended};
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::version::Info;
use kerf_runtime::args::client;
use kerf_runtime::duration;
use kube::client::Body;
use kube::{Client, Config};
use std::time::Duration;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Connected {
    pub client: Client,
    pub url: String,
    pub version: String,
    pub now: Timestamp,
    /// How far this machine's clock is ahead of it.
    pub skew: SignedDuration,
}

/// Sends the request. A timeout of zero means no timeout.
pub async fn ask(config: Config, timeout: Option<Duration>) -> Result<Connected, Trouble> {
    let url = config.cluster_url.to_string();
    let ended = ended(&config.auth_info, Timestamp::now());
    let plugin = config.auth_info.exec.as_ref().and_then(|exec| exec.command.clone());
    let judged = |failed| Trouble::from_failure(failed, ended, plugin, url.clone());
    // A credential plugin may prompt for a password here, so no timeout applies to it.
    let client = match client(config) {
        Ok(client) => client,
        Err(error) => return Err(judged(Failed::from(error))),
    };
    let answer = match timeout.unwrap_or(ANSWER_TIMEOUT) {
        Duration::ZERO => version(&client).await,
        limit => tokio::time::timeout(limit, version(&client))
            .await
            .unwrap_or_else(|_| Err(Failed::Text(format!("no answer in {}", duration::friendly(limit))))),
    };
    match answer {
        Ok((version, now, skew)) => Ok(Connected { client, url, version, now, skew }),
        Err(failed) => Err(judged(failed)),
    }
}

async fn version(client: &Client) -> Result<(String, Timestamp, SignedDuration), Failed> {
    let request = http::Request::get("/version").body(Body::empty());
    let request = request.map_err(|error| Failed::Text(error.to_string()))?;
    let response = client.send(request).await?;
    let here = Timestamp::now();
    let status = response.status();
    let date =
        response.headers().get(http::header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
    let body = response.into_body().collect_bytes().await?;
    if !status.is_success() {
        return Err(Failed::Status(status.as_u16(), String::from_utf8_lossy(&body).into_owned()));
    }
    let info: Info = serde_json::from_slice(&body).map_err(|error| Failed::Text(error.to_string()))?;
    let now = date.and_then(|date| time_of(&date)).unwrap_or(here);
    Ok((info.git_version, now, skew(here, now)))
}

fn time_of(date: &str) -> Option<Timestamp> {
    DateTimeParser::new().parse_zoned(date).ok().map(|zoned| zoned.timestamp())
}

/// How far `here` is ahead of `there`. Less than a second counts as zero, because `there` has whole seconds only.
fn skew(here: Timestamp, there: Timestamp) -> SignedDuration {
    let ahead = here.duration_since(there);
    if (SignedDuration::ZERO..SignedDuration::from_secs(1)).contains(&ahead) {
        SignedDuration::ZERO
    } else {
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_servers_clock_is_compared_with_the_local_clock() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let there = time_of("Sun, 22 Nov 2026 20:38:02 GMT").unwrap();
        assert_eq!(there, at("2026-11-22T20:38:02Z"));
        assert_eq!(skew(at("2026-11-22T20:38:02.9Z"), there), SignedDuration::ZERO);
        assert_eq!(skew(at("2026-11-22T20:38:12Z"), there), SignedDuration::from_secs(10));
        assert_eq!(skew(at("2026-11-22T20:37:02Z"), there), SignedDuration::from_secs(-60));
    }
}
