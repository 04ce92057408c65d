//! How long the extender takes for a filter of all nodes, from the first byte of the request to the last of the
//! response. The connection is as kube-scheduler's: kept open, over TLS, and without Nagle's algorithm.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::api::Api;
use super::check::pod;
use super::extender::Extender;
use super::population::{Population, node_name};
use crate::report::print;

const FILTERS: usize = 2000;
/// A name of which every node has slices left.
const NAME: &str = "nvidia.com/mig-1g.10gb";

/// The 99th percentile of filters of all nodes, one after the other and each for another pod, in milliseconds.
pub async fn measure(extender: &Extender, population: Population, api: &Api) -> anyhow::Result<f64> {
    let mut stream = connect(extender, api).await?;
    let names: Vec<String> = (0..population.nodes).map(node_name).collect();
    let mut took = Vec::new();
    for number in 0..FILTERS {
        let pod = pod(&format!("times-{number}"), NAME, 1)?;
        let body = json!({"Pod": pod, "NodeNames": names}).to_string();
        let request = format!(
            "POST /scheduler/filter HTTP/1.1\r\nhost: extender\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        took.push(time(&mut stream, request.as_bytes()).await?);
    }
    took.sort_unstable();
    let [half, most] = [50, 99].map(|percent| took[FILTERS * percent / 100].as_secs_f64() * 1000.0);
    print(&format!("# a filter of {} names takes {half:.2} ms, p99 {most:.2} ms", names.len()));
    Ok(most)
}

async fn time(stream: &mut TlsStream<TcpStream>, request: &[u8]) -> anyhow::Result<Duration> {
    let sent = Instant::now();
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    while !is_whole(&answer)? {
        ensure!(stream.read_buf(&mut answer).await? > 0, "the extender has hung up");
    }
    let took = sent.elapsed();
    let text = String::from_utf8_lossy(&answer);
    ensure!(text.starts_with("HTTP/1.1 200") && text.contains("\"NodeNames\":[\"gpu-h100-"), "{text:.500}");
    Ok(took)
}

/// Whether this is all of a response with a length.
fn is_whole(answer: &[u8]) -> anyhow::Result<bool> {
    let Some(head) = answer.windows(4).position(|end| end == b"\r\n\r\n") else { return Ok(false) };
    let text = str::from_utf8(&answer[..head])?.to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.with_context(|| format!("no length in {text}"))?.trim().parse()?;
    Ok(answer.len() >= head + 4 + length)
}

async fn connect(extender: &Extender, api: &Api) -> anyhow::Result<TlsStream<TcpStream>> {
    let folder = extender.scheduler_keys(api)?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.crt"))?)?;
    let certificate = CertificateDer::from_pem_file(folder.join("client.crt"))?;
    let key = PrivateKeyDer::from_pem_file(folder.join("client.key"))?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)?;
    let stream = TcpStream::connect(extender.address()?).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("127.0.0.1")?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
}
