use super::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const NAME: &str = "kerf-extender.kerf-system.svc";

struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        // Without it a verifier would try its key on another authority's signature, which is a different error.
        params.distinguished_name.push(DnType::CommonName, key.public_key_pem());
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    fn trusted(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }

    async fn replica(&self, name: &str) -> SocketAddr {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let chain = vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that rejects the certificate hangs up.
                let _ = acceptor.accept(stream).await;
            }
        });
        address
    }
}

/// A network whose authority is the one in `now`, and how often it was read.
fn secured(now: &Arc<Mutex<Arc<Authority>>>) -> (impl Network, Arc<AtomicUsize>) {
    let (now, reads) = (Arc::clone(now), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&reads);
    let authority = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let config = now.lock().unwrap().trusted();
        async move { Ok(config) }
    };
    (Secured::new(Vec::new(), NAME, "token".into(), authority).unwrap(), reads)
}

/// Advances time past the interval. A clock that stays paused would end the timeouts of connections at once.
async fn after_the_interval() {
    tokio::time::pause();
    tokio::time::advance(AUTHORITY_INTERVAL).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_replica_is_verified_by_its_name_at_any_address() {
    let authority = Arc::new(Authority::new());
    let (network, _) = secured(&Arc::new(Mutex::new(Arc::clone(&authority))));
    network.connect(authority.replica(NAME).await).await.unwrap();
    let error = network.connect(authority.replica("127.0.0.1").await).await.err().unwrap();
    assert!(is_of_certificate(&error), "{error}");
}

#[tokio::test]
async fn the_authority_is_read_at_the_first_dial_and_after_a_certificate_of_another() {
    let old = Authority::new();
    let old_replica = old.replica(NAME).await;
    let now = Arc::new(Mutex::new(Arc::new(old)));
    let (network, reads) = secured(&now);
    for _ in 0..3 {
        network.connect(old_replica).await.unwrap();
    }
    assert_eq!(reads.load(Ordering::Relaxed), 1);

    let new = Authority::new();
    let new_replica = new.replica(NAME).await;
    *now.lock().unwrap() = Arc::new(new);
    // A port without a listener proves nothing about the authority.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    after_the_interval().await;
    network.connect(gone).await.err().unwrap();
    network.connect(old_replica).await.unwrap();
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    network.connect(new_replica).await.err().unwrap();
    network.connect(new_replica).await.unwrap();
    assert_eq!(reads.load(Ordering::Relaxed), 2);
    // A replica with a wrong certificate does not make agents read at each dial.
    for _ in 0..3 {
        network.connect(old_replica).await.err().unwrap();
    }
    assert_eq!(reads.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn the_token_is_read_at_each_dial() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let authority = || async { Err(io::ErrorKind::NotFound.into()) };
    let network = Secured::new(Vec::new(), NAME, file.path().to_owned(), authority).unwrap();
    for token in ["one", "two"] {
        std::fs::write(file.path(), format!("{token}\n")).unwrap();
        assert_eq!(network.token().await.unwrap().as_deref(), Some(token));
    }
    std::fs::remove_file(file.path()).unwrap();
    let error = network.token().await.err().unwrap().to_string();
    assert!(error.contains(&file.path().display().to_string()), "{error}");
}
