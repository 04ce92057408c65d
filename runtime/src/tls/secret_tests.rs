//! `ensure` against an API server with one Secret that rejects stale writes, as the real one does.

use super::*;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

#[derive(Debug, Default)]
struct Stored {
    secret: Option<Value>,
    version: u64,
    writes: u32,
    stale: u32,
}

#[derive(Debug, Clone, Default)]
struct Server(Arc<Mutex<Stored>>);

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let answer = move |request| {
            let server = server.clone();
            async move { Ok::<_, std::convert::Infallible>(server.answer(request).await) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.0.lock().unwrap()
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let method = request.method().clone();
        let body = request.into_body().collect_bytes().await.unwrap();
        // Gives other replicas time between a read and its write, because the test is about writes that collide.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let (status, body) = self.stored().answer(&method, serde_json::from_slice(&body).ok());
        let body = Body::from(body.to_string().into_bytes());
        Response::builder().status(status).body(body).unwrap()
    }
}

impl Stored {
    fn answer(&mut self, method: &Method, sent: Option<Value>) -> (StatusCode, Value) {
        let failure = |status: StatusCode, reason: &str| {
            let code = status.as_u16();
            let text = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason, "reason": reason, "code": code});
            (status, text)
        };
        match (method, sent, &self.secret) {
            (&Method::GET, _, None) => failure(StatusCode::NOT_FOUND, "NotFound"),
            (&Method::GET, _, Some(secret)) => (StatusCode::OK, secret.clone()),
            (&Method::POST, _, Some(_)) => {
                self.stale += 1;
                failure(StatusCode::CONFLICT, "AlreadyExists")
            }
            (&Method::PUT, Some(sent), Some(secret))
                if sent["metadata"]["resourceVersion"] != secret["metadata"]["resourceVersion"] =>
            {
                self.stale += 1;
                failure(StatusCode::CONFLICT, "Conflict")
            }
            (_, Some(mut sent), _) => {
                (self.version, self.writes) = (self.version + 1, self.writes + 1);
                sent["metadata"]["resourceVersion"] = json!(self.version.to_string());
                self.secret = Some(sent.clone());
                (StatusCode::OK, sent)
            }
            _ => failure(StatusCode::BAD_REQUEST, "BadRequest"),
        }
    }
}

fn wanted(names: &[&str]) -> Wanted {
    Wanted { server_names: names.iter().map(ToString::to_string).collect(), client_name: None }
}

async fn ensure(client: &Client, names: &[&str]) -> Material {
    TlsSecret::ensure(client, "kerf-system", "tls", &wanted(names)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn replicas_that_start_at_once_serve_one_certificate() {
    let server = Server::default();
    let client = server.client();
    let replicas = [(); 4].map(|()| {
        let client = client.clone();
        tokio::spawn(async move { ensure(&client, &["localhost"]).await })
    });
    let mut materials = Vec::new();
    for replica in replicas {
        materials.push(replica.await.unwrap());
    }
    assert!(materials.iter().all(|material| *material == materials[0]));
    let stored = server.stored();
    assert_eq!((stored.writes, stored.stale), (1, 3));
}

#[tokio::test]
async fn a_usable_secret_is_not_written() {
    let server = Server::default();
    let first = ensure(&server.client(), &["localhost"]).await;
    assert_eq!(ensure(&server.client(), &["localhost"]).await, first);
    assert_eq!(server.stored().writes, 1);
}

#[tokio::test]
async fn a_new_name_renews_the_certificate_and_keeps_other_entries() {
    let server = Server::default();
    let first = ensure(&server.client(), &["localhost"]).await;
    if let Some(secret) = &mut server.stored().secret {
        secret["data"]["note"] = json!("bm90ZQ==");
        secret["metadata"]["labels"]["team"] = json!("a");
    }
    let second = ensure(&server.client(), &["localhost", "10.0.0.1"]).await;
    assert_eq!(first.ca_pem, second.ca_pem);
    assert_ne!(first.server_cert_pem, second.server_cert_pem);
    let stored = server.stored();
    let secret = stored.secret.as_ref().unwrap();
    assert_eq!(
        (&secret["data"]["note"], &secret["metadata"]["labels"]["team"]),
        (&json!("bm90ZQ=="), &json!("a"))
    );
}

#[tokio::test]
async fn a_name_that_no_certificate_can_have_is_an_error() {
    let server = Server::default();
    let error = TlsSecret::ensure(&server.client(), "kerf-system", "tls", &wanted(&["no name"])).await;
    let error = error.unwrap_err().to_string();
    assert_eq!(
        error,
        "the certificates just made do not serve: \"no name\" is no DNS name and no IP address"
    );
    assert_eq!(server.stored().writes, 0);
}
