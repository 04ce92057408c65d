use super::*;
use crate::tls::{Clients, Material, ServingCertificate, made_for_test, server_config};
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
async fn an_exchanged_certificate_is_shown_from_the_next_connection_on() {
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
async fn who_leaves_serves_on_and_closes_connections_with_its_answers() {
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
async fn a_silent_client_holds_up_nobody() {
    let material = made_for_test();
    let server = start(server_config(&material, Clients::Any).unwrap()).await;
    let _silent = TcpStream::connect(server.address).await.unwrap();
    let reply = timeout(Duration::from_secs(5), fetch(server.address, client(&material, None), "/")).await;
    assert!(reply.unwrap().unwrap().ends_with("hello"));
}

#[tokio::test]
async fn a_chosen_address_is_announced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("address");
    let listener = listen("127.0.0.1:0".parse().unwrap(), Some(&file)).await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), listener.local_addr().unwrap().to_string());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn without_tls_http2_has_its_window_and_who_answers_no_ping_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let short = Duration::from_millis(50);
    let http2 = Http2 { ping_interval: short, ping_timeout: short, stream_window: 4321, idle: None };
    tokio::spawn(serve_with(listener, None, http2, Router::new(), CancellationToken::new()));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut sent = Vec::new();
    timeout(Duration::from_secs(5), stream.read_to_end(&mut sent)).await.unwrap().unwrap();
    let has = |bytes: &[u8]| sent.windows(bytes.len()).any(|part| part == bytes);
    assert!(has(&[0, 4, 0, 0, 0x10, 0xe1]), "SETTINGS_INITIAL_WINDOW_SIZE: {sent:?}");
    assert!(has(&[0, 0, 8, 6, 0]), "PING: {sent:?}");
}

/// A server of HTTP/2 without TLS and with these limits of idle connections.
async fn start_with(limits: IdleLimits, router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let http2 = Http2 { idle: Some(limits), ..Http2::default() };
    tokio::spawn(serve_with(listener, None, http2, router, CancellationToken::new()));
    address
}

/// Whether the server ends a connection within this time.
async fn ends(stream: &mut TcpStream, within: Duration) -> bool {
    timeout(within, stream.read_to_end(&mut Vec::new())).await.is_ok()
}

const MOMENT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_connection_without_a_request_is_ended_in_time() {
    let limits = IdleLimits { connections: 9, timeout: 2 * MOMENT };
    let address = start_with(limits, Router::new()).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    assert!(!ends(&mut silent, MOMENT).await);
    assert!(ends(&mut silent, 4 * MOMENT).await);
}

#[tokio::test]
async fn so_many_connections_may_be_without_a_request_and_no_more() {
    let (release, held) = watch::channel(false);
    let wait = move || {
        let mut held = held.clone();
        async move { drop(held.wait_for(|released| *released).await) }
    };
    let limits = IdleLimits { connections: 2, timeout: 60 * MOMENT };
    let address = start_with(limits, Router::new().route("/", get(wait))).await;
    // A connection with an open request is not idle.
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut requests, busy) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let busy = tokio::spawn(busy);
    let request = http::Request::get("http://kerf/").body(axum::body::Body::empty()).unwrap();
    let answer = tokio::spawn(requests.send_request(request));
    tokio::time::sleep(MOMENT).await;
    let mut idle = Vec::new();
    for _ in 0..2 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    for stream in &mut idle {
        assert!(!ends(stream, MOMENT).await);
    }
    assert!(ends(&mut TcpStream::connect(address).await.unwrap(), MOMENT).await);
    assert!(!busy.is_finished());
    // After the response this connection is beyond the limit.
    release.send_replace(true);
    assert!(answer.await.unwrap().unwrap().status().is_success());
    timeout(2 * LINGER, busy).await.unwrap().unwrap().ok();
    drop(idle);
    tokio::time::sleep(MOMENT).await;
    assert!(!ends(&mut TcpStream::connect(address).await.unwrap(), MOMENT).await);
}
