//! Stand-ins for an API server with and without TLS, a proxy that takes CONNECT, and a proxy that speaks SOCKS5. Each
//! records its requests.

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

pub type Asked = Arc<Mutex<Vec<String>>>;

pub struct StandIn {
    pub address: SocketAddr,
    asked: Asked,
}

impl StandIn {
    fn start(serve: impl Fn(TcpStream, &Asked) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Asked::default());
        let (serve, notes) = (Arc::new(serve), asked.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (serve, notes) = (serve.clone(), notes.clone());
                thread::spawn(move || serve(stream, &notes));
            }
        });
        Self { address, asked }
    }

    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// An API server without TLS that has its version and these objects by path.
    pub fn api(objects: &[(&str, Value)]) -> Self {
        let objects = owned(objects);
        Self::start(move |stream, asked| answer(stream, asked, &objects))
    }

    pub fn api_with_tls(certificate: &Certificate, objects: &[(&str, Value)]) -> Self {
        let (config, objects) = (certificate.server(), owned(objects));
        Self::start(move |stream, asked| {
            let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
            answer(StreamOwned::new(connection, stream), asked, &objects)
        })
    }

    /// A proxy that connects every client to `to`, whatever address they request.
    pub fn connect_proxy(to: SocketAddr) -> Self {
        Self::start(move |mut stream, asked| {
            let head = head(&mut BufReader::new(stream.try_clone()?))?;
            asked.lock().unwrap().push(head.join("\n"));
            stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
            join(stream, TcpStream::connect(to)?)
        })
    }

    pub fn socks_proxy(to: SocketAddr) -> Self {
        Self::start(move |mut stream, asked| {
            let mut greeting = [0; 2];
            stream.read_exact(&mut greeting)?;
            stream.read_exact(&mut vec![0; usize::from(greeting[1])])?;
            stream.write_all(&[5, 0])?;
            let mut request = [0; 5];
            stream.read_exact(&mut request)?;
            assert_eq!(request[..4], [5, 1, 0, 3], "connect to a host by its name");
            let mut host = vec![0; usize::from(request[4])];
            stream.read_exact(&mut host)?;
            let mut port = [0; 2];
            stream.read_exact(&mut port)?;
            let host = String::from_utf8(host).unwrap();
            asked.lock().unwrap().push(format!("{host}:{}", u16::from_be_bytes(port)));
            stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
            join(stream, TcpStream::connect(to)?)
        })
    }

    pub fn silent() -> Self {
        Self::start(|mut stream, _| stream.read_to_end(&mut Vec::new()).map(drop))
    }
}

pub struct Certificate {
    pub pem: String,
    key: Vec<u8>,
    der: Vec<u8>,
}

impl Certificate {
    pub fn new(host: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        Self { pem: made.cert.pem(), key: made.signing_key.serialize_der(), der: made.cert.der().to_vec() }
    }

    fn server(&self) -> Arc<ServerConfig> {
        let (chain, key) = (CertificateDer::from(self.der.clone()), self.key.clone());
        let key = PrivateKeyDer::try_from(key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(config.with_no_client_auth().with_single_cert(vec![chain], key).unwrap())
    }
}

fn owned(objects: &[(&str, Value)]) -> Vec<(String, Value)> {
    objects.iter().map(|(path, object)| ((*path).to_owned(), object.clone())).collect()
}

fn head(stream: &mut impl io::BufRead) -> io::Result<Vec<String>> {
    let lines = stream.lines().take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
    lines.collect()
}

/// Answers one request and closes: with the object of the path, the version, or 404.
fn answer(stream: impl Read + Write, asked: &Asked, objects: &[(String, Value)]) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let head = head(&mut stream)?;
    let first = head.first().cloned().unwrap_or_default();
    let length =
        head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    asked.lock().unwrap().push(head.join("\n") + "\n\n" + &String::from_utf8_lossy(&body));
    let path = first.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
    let found = objects.iter().find(|(known, _)| known == path).map(|(_, object)| object.clone());
    let (code, body) = match (path, found) {
        ("/version", None) => (200, json!({"major": "1", "minor": "36", "gitVersion": "v1.36.1"})),
        (_, Some(found)) => (200, found),
        (_, None) => (
            404,
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
                "message": format!("{path} is not there"),
            }),
        ),
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} It\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let stream = stream.get_mut();
    stream.write_all((head + &body).as_bytes())?;
    stream.flush()
}

fn join(one: TcpStream, other: TcpStream) -> io::Result<()> {
    let (mut from, mut to) = (one.try_clone()?, other.try_clone()?);
    thread::spawn(move || io::copy(&mut from, &mut to));
    let (mut from, mut to) = (other, one);
    io::copy(&mut from, &mut to)?;
    to.shutdown(std::net::Shutdown::Both)
}

pub fn list(items: &[Value]) -> Value {
    json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})
}

pub fn nodes(names: &[&str]) -> Vec<(&'static str, Value)> {
    let metadata = |name: &&str| json!({"name": name, "uid": name});
    let gpu_nodes: Vec<Value> = names
        .iter()
        .map(|name| json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuNode", "metadata": metadata(name)}))
        .collect();
    let machines: Vec<Value> = names.iter().map(|name| json!({"metadata": metadata(name)})).collect();
    vec![("/apis/kerf.dev/v1alpha1/gpunodes", list(&gpu_nodes)), ("/api/v1/nodes", list(&machines))]
}
