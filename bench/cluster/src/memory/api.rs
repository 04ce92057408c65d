//! A stand-in for the API server. It serves a cluster's Nodes, `GpuNodes` and pods in pages, keeps what the
//! extender writes, and reviews the agents' tokens.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use futures::stream;
use kerf_tests::cluster::wait;
use kerf_tests::kubelet::locked;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::pages::{Parameters, page};
use super::population::Population;
use super::stored::{Stored, refusal};
use super::tokens;

/// What lists show. Requests for the rest wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shows {
    Nothing,
    Nodes,
    All,
}

pub struct Api {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    population: Population,
    shows: watch::Sender<Shows>,
    stored: Mutex<Stored>,
    /// Resources that a watch was begun for, which follows a list.
    watched: Mutex<Vec<String>>,
    unknown: Mutex<Vec<String>>,
}

impl Api {
    /// Serves this cluster, of which it shows nothing yet, until the process ends.
    pub async fn start(population: Population) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            population,
            shows: watch::Sender::new(Shows::Nothing),
            stored: Mutex::default(),
            watched: Mutex::default(),
            unknown: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, shared })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn client(&self) -> anyhow::Result<kube::Client> {
        Ok(kube::Client::try_from(kube::Config::new(self.url().parse()?))?)
    }

    /// Shows more from now on.
    pub fn show(&self, shows: Shows) {
        self.shared.shows.send_replace(shows);
    }

    /// Waits until all of these resources were listed and a watch of each was begun.
    pub async fn until_watched(&self, resources: &[&str], timeout: Duration) -> anyhow::Result<()> {
        let all = async || {
            let watched = locked(&self.shared.watched);
            Ok(resources.iter().all(|resource| watched.iter().any(|begun| begun == resource)))
        };
        wait(timeout, &format!("the extender to list {resources:?}"), all).await
    }

    /// An object that the extender has written.
    pub fn written(&self, path: &str) -> Option<Value> {
        locked(&self.shared.stored).get(path)
    }

    /// The requests that a real API server would have answered otherwise.
    pub fn unknown(&self) -> Vec<String> {
        locked(&self.shared.unknown).clone()
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    Query(parameters): Query<Parameters>,
    body: Bytes,
) -> Response {
    let path = uri.path();
    let resource = path.rsplit('/').next().unwrap_or_default().to_owned();
    let is_list = ["nodes", "gpunodes", "pods", "leases"].contains(&resource.as_str());
    if method == Method::GET && parameters.contains_key("watch") {
        return shared.watch(resource, &parameters);
    }
    let (code, answer) = if method == Method::GET && is_list {
        shared.list(path, resource, &parameters).await
    } else if resource == "tokenreviews" {
        (201, tokens::review(&serde_json::from_slice(&body).unwrap_or_default()))
    } else {
        let answer = locked(&shared.stored).answer(&method, path, &body);
        // Pods and GpuNodes are not stored, so a request for one of them means that the extender missed it in a list.
        if answer.0 == 405
            || (answer.0 == 404 && ["/pods/", "/gpunodes/", "/nodes/"].iter().any(|part| path.contains(part)))
        {
            locked(&shared.unknown).push(format!("{method} {uri}"));
        }
        answer
    };
    (StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(answer)).into_response()
}

impl Shared {
    /// A page of a list, once it is to be shown.
    async fn list(&self, path: &str, resource: String, parameters: &Parameters) -> (u16, Value) {
        if resource == "leases" {
            return (200, locked(&self.stored).list(path));
        }
        let needs = if resource == "pods" { Shows::All } else { Shows::Nodes };
        let mut shows = self.shows.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let _ = shows.wait_for(|shows| *shows >= needs).await;
        match page(self.population, &resource, parameters) {
            Ok(page) => (200, page),
            Err(error) => refusal(500, &format!("{error:#}")),
        }
    }

    /// A watch without events. It ends with a bookmark after the time that was asked for.
    fn watch(&self, resource: String, parameters: &Parameters) -> Response {
        locked(&self.watched).push(resource);
        let seconds = parameters.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(60);
        let bookmark = json!({"type": "BOOKMARK", "object": {
            "kind": "Status", "apiVersion": "v1", "metadata": {"resourceVersion": "1"},
        }});
        let line = Bytes::from(format!("{bookmark}\n"));
        let events = stream::once(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok::<_, std::convert::Infallible>(line)
        });
        Body::from_stream(events).into_response()
    }
}
