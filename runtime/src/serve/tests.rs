use super::*;
use crate::tls::{Clients, Material, ServingCertificate, made_for_test, server_config};
use axum::http::StatusCode;
use axum::routing::get;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;

struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

async fn start(tls: Arc<ServerConfig>) -> Server {
    let slow = async || {
        tokio::time::sleep(Duration::from_millis(300)).await;
        "slow"
    };
    let router = Router::new().route("/", get(async || "hello")).route("/slow", get(slow));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let task = tokio::spawn(serve(listener, tls, router, stop.clone()));
    Server { address, stop, task }
}

/// A client that trusts `material`'s authority and presents `shown`'s client certificate.
fn client(material: &Material, shown: Option<&Material>) -> tokio_rustls::TlsConnector {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(material.ca_pem.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => {
            let cert = CertificateDer::from_pem_slice(shown.client_cert_pem.as_ref().unwrap().as_bytes());
            let key = PrivateKeyDer::from_pem_slice(shown.client_key_pem.as_ref().unwrap().as_bytes());
            builder.with_client_auth_cert(vec![cert.unwrap()], key.unwrap()).unwrap()
        }
    };
    Arc::new(config).into()
}

async fn fetch(
    address: SocketAddr,
    client: tokio_rustls::TlsConnector,
    path: &str,
) -> std::io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let mut stream = client.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: kerf\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

#[tokio::test]
async fn a_client_that_trusts_the_authority_is_served() {
    let material = made_for_test();
    let server = start(server_config(&material, Clients::Any).unwrap()).await;
    let reply = fetch(server.address, client(&material, None), "/").await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK") && reply.ends_with("hello"), "{reply}");
    let stranger = made_for_test();
    assert!(fetch(server.address, client(&stranger, None), "/").await.is_err());
}

#[tokio::test]
async fn only_verified_clients_are_let_in() {
    let material = made_for_test();
    let server = start(server_config(&material, Clients::Verified).unwrap()).await;
    assert!(fetch(server.address, client(&material, Some(&material)), "/").await.unwrap().ends_with("hello"));
    let stranger = made_for_test();
    assert!(fetch(server.address, client(&material, Some(&stranger)), "/").await.is_err());
    assert!(fetch(server.address, client(&material, None), "/").await.is_err());
}

#[tokio::test]
async fn a_replaced_certificate_is_presented_from_the_next_connection_on() {
    let (old, new) = (made_for_test(), made_for_test());
    let shown = ServingCertificate::new(&old).unwrap();
    let server = start(shown.server_config(&old, Clients::Any).unwrap()).await;
    shown.replace(&new).unwrap();
    assert!(fetch(server.address, client(&new, None), "/").await.is_ok());
    assert!(fetch(server.address, client(&old, None), "/").await.is_err());
    let bad = Material { server_key_pem: "garbage".into(), ..old };
    assert!(shown.replace(&bad).is_err());
    assert!(fetch(server.address, client(&new, None), "/").await.is_ok());
}

#[tokio::test]
async fn a_stop_lets_open_requests_finish_and_no_new_ones_begin() {
    let material = made_for_test();
    let server = start(server_config(&material, Clients::Any).unwrap()).await;
    let open = tokio::spawn(fetch(server.address, client(&material, None), "/slow"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop.cancel();
    assert!(open.await.unwrap().unwrap().ends_with("slow"));
    server.task.await.unwrap().unwrap();
    assert!(fetch(server.address, client(&material, None), "/").await.is_err());
}

/// The API server keeps HTTP/1.1 connections open: each must get `Connection: close` with its next response.
#[tokio::test]
async fn a_leaving_server_answers_and_closes_each_connection() {
    let material = made_for_test();
    let leaving = CancellationToken::new();
    let router = Router::new().route("/", get(async || "hello"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let tls = server_config(&material, Clients::Any).unwrap();
    let task = tokio::spawn(serve(listener, tls, closing(router, leaving.clone()), stop.clone()));
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = client(&material, None).connect(name, stream).await.unwrap();
    let head = b"GET / HTTP/1.1\r\nhost: kerf\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut first = [0; 1024];
    let length = stream.read(&mut first).await.unwrap();
    let first = String::from_utf8_lossy(&first[..length]).into_owned();
    assert!(first.ends_with("hello") && !first.contains("connection: close"), "{first}");
    leaving.cancel();
    stream.write_all(head).await.unwrap();
    let mut second = String::new();
    stream.read_to_string(&mut second).await.unwrap();
    assert!(second.contains("connection: close") && second.ends_with("hello"), "{second}");
    assert!(fetch(address, client(&material, None), "/").await.unwrap().ends_with("hello"));
    stop.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_sends_nothing_delays_no_other() {
    let material = made_for_test();
    let server = start(server_config(&material, Clients::Any).unwrap()).await;
    let _silent = TcpStream::connect(server.address).await.unwrap();
    let reply = timeout(Duration::from_secs(5), fetch(server.address, client(&material, None), "/")).await;
    assert!(reply.unwrap().unwrap().ends_with("hello"));
}

#[tokio::test]
async fn the_chosen_address_is_written_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("address");
    let listener = listen("127.0.0.1:0".parse().unwrap(), Some(&file)).await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), listener.local_addr().unwrap().to_string());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A server of upgrades without TLS and with these limits. A request at `/` is answered once the sender is true.
async fn start_upgrades(limits: UpgradeLimits) -> (SocketAddr, watch::Sender<bool>) {
    let (release, held) = watch::channel(false);
    let wait = move || {
        let mut held = held.clone();
        async move { drop(held.wait_for(|released| *released).await) }
    };
    let upgrade = async |mut request: Request| {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgraded.await.unwrap());
            let mut byte = [0];
            while stream.read_exact(&mut byte).await.is_ok() {
                stream.write_all(&byte).await.unwrap();
            }
        });
        (StatusCode::SWITCHING_PROTOCOLS, [(header::CONNECTION, "upgrade"), (header::UPGRADE, "echo")])
    };
    let router = Router::new().route("/", get(wait)).route("/echo", get(upgrade));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_upgrades(listener, None, limits, router, CancellationToken::new()));
    (address, release)
}

/// Whether the server ends a connection within this time.
async fn ends(stream: &mut TcpStream, within: Duration) -> bool {
    timeout(within, stream.read_to_end(&mut Vec::new())).await.is_ok()
}

const QUIET_TIMEOUT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_connection_without_a_request_is_ended_in_time() {
    let (address, _held) = start_upgrades(UpgradeLimits { connections: 9, timeout: 2 * QUIET_TIMEOUT }).await;
    for sent in ["", "GET / HTTP/1.1\r\nho"] {
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(sent.as_bytes()).await.unwrap();
        assert!(!ends(&mut silent, QUIET_TIMEOUT).await);
        assert!(ends(&mut silent, 4 * QUIET_TIMEOUT).await, "{sent}");
    }
}

#[tokio::test]
async fn connections_without_an_upgrade_are_limited() {
    let limits = UpgradeLimits { connections: 2, timeout: 60 * QUIET_TIMEOUT };
    let (address, release) = start_upgrades(limits).await;
    // Connections that have been upgraded take no place.
    let mut upgraded = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = b"GET /echo HTTP/1.1\r\nhost: kerf\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let mut answer = [0; 1024];
        let length = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 101") && !answer.contains("close"), "{answer}");
        upgraded.push(stream);
    }
    tokio::time::sleep(QUIET_TIMEOUT).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut busy = TcpStream::connect(address).await.unwrap();
    busy.write_all(b"GET / HTTP/1.1\r\nhost: kerf\r\n\r\n").await.unwrap();
    for stream in [&mut silent, &mut busy] {
        assert!(!ends(stream, QUIET_TIMEOUT).await);
    }
    assert!(ends(&mut TcpStream::connect(address).await.unwrap(), QUIET_TIMEOUT).await);
    // A request that is no upgrade is the only one of its connection.
    release.send_replace(true);
    let mut answer = String::new();
    timeout(QUIET_TIMEOUT, busy.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(!ends(&mut TcpStream::connect(address).await.unwrap(), QUIET_TIMEOUT).await);
    for stream in &mut upgraded {
        stream.write_all(b"x").await.unwrap();
        assert_eq!(timeout(QUIET_TIMEOUT, stream.read_u8()).await.unwrap().unwrap(), b'x');
    }
}
