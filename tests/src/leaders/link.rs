//! A replica's connection to the API server, which can be cut and can hold back Bindings. As in a network, a
//! request that entered it arrives, however late, even if its sender no longer waits for the answer or has
//! ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The largest request that kerf sends.
const BODY_LIMIT: usize = 4 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    Open,
    /// All requests but Bindings pass; Bindings wait.
    WithoutBindings,
    /// All but Bindings, which an overloaded API server refuses with this code.
    Overloaded(StatusCode),
    /// Nothing: requests and answers wait.
    Cut,
}

/// Counts of requests that entered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entered {
    pub bindings: usize,
    pub writes: usize,
    /// Lists of all pods, Nodes or `GpuNode`s.
    pub lists: usize,
}

/// Bindings, as the API server counts them.
#[derive(Debug, Default)]
struct Bindings {
    /// How many have come for each path, which names the pod.
    tries: BTreeMap<String, usize>,
    /// How many have no answer yet, of senders that still wait for one.
    open: usize,
    /// The most that were open at once since the gate was set last.
    most_open: usize,
}

struct Shared {
    client: Client,
    gate: watch::Sender<Gate>,
    entered: watch::Sender<Entered>,
    bindings: watch::Sender<Bindings>,
}

/// A Binding whose sender waits. When the sender gives up, its request's task ends, and drops this.
struct OpenBinding(Arc<Shared>);

impl OpenBinding {
    fn begin(shared: &Arc<Shared>, path: &str) -> Self {
        shared.bindings.send_modify(|bindings| {
            *bindings.tries.entry(path.to_owned()).or_default() += 1;
            bindings.open += 1;
            bindings.most_open = bindings.most_open.max(bindings.open);
        });
        Self(Arc::clone(shared))
    }
}

impl Drop for OpenBinding {
    fn drop(&mut self) {
        self.0.bindings.send_modify(|bindings| bindings.open -= 1);
    }
}

/// The connection, in plain HTTP. Dropping it closes it.
pub struct Link {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: AbortHandle,
}

impl Link {
    /// A connection that sends requests with the credentials of `client`.
    pub async fn start(client: Client) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (gate, entered) = (watch::Sender::new(Gate::Open), watch::Sender::default());
        let shared = Arc::new(Shared { client, gate, entered, bindings: watch::Sender::default() });
        let router = Router::new().fallback(pass).with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "a replica's way to the API server ended");
            }
        });
        Ok(Self { address, shared, serving: serving.abort_handle() })
    }

    /// The URL for the replica's kubeconfig.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets which requests pass from now on.
    pub fn set(&self, gate: Gate) {
        self.shared.gate.send_replace(gate);
        self.shared.bindings.send_modify(|bindings| bindings.most_open = bindings.open);
    }

    #[must_use]
    pub fn entered(&self) -> Entered {
        *self.shared.entered.borrow()
    }

    /// For each pod with a Binding, how often one was sent.
    #[must_use]
    pub fn tries(&self) -> Vec<usize> {
        self.shared.bindings.borrow().tries.values().copied().collect()
    }

    /// The most Bindings that waited for their answers at once since the gate was set last.
    #[must_use]
    pub fn most_open(&self) -> usize {
        self.shared.bindings.borrow().most_open
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Whether the request lists all objects of a kind of which clusters have many.
fn is_list(uri: &Uri) -> bool {
    let is_watch = uri.query().is_some_and(|query| query.contains("watch="));
    !is_watch && matches!(uri.path().rsplit('/').next(), Some("pods" | "nodes" | "gpunodes"))
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, BODY_LIMIT).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let is_write = head.method != Method::GET;
    let is_list = !is_write && is_list(&head.uri);
    let is_binding = is_write && head.uri.path().ends_with("/binding");
    shared.entered.send_modify(|entered| {
        entered.writes += usize::from(is_write);
        entered.bindings += usize::from(is_binding);
        entered.lists += usize::from(is_list);
    });
    let _open = is_binding.then(|| OpenBinding::begin(&shared, head.uri.path()));
    let refusal = match *shared.gate.borrow() {
        Gate::Overloaded(code) if is_binding => Some(code),
        _ => None,
    };
    if let Some(code) = refusal {
        // The words and the header of API Priority and Fairness.
        return (code, [(header::RETRY_AFTER, "1")], "Too many requests, please try again later.\n")
            .into_response();
    }
    head.headers.remove(header::HOST);
    let request = http::Request::from_parts(head, kube::client::Body::from(body));
    let mut gate = shared.gate.subscribe();
    // The request has its own task, so that it is sent even if the caller has closed the connection.
    let sent = tokio::spawn(async move {
        let passes = |gate: &Gate| match gate {
            Gate::Open => true,
            Gate::WithoutBindings | Gate::Overloaded(_) => !is_binding,
            Gate::Cut => false,
        };
        // The sender is in `shared`, so waiting cannot fail.
        drop(gate.wait_for(passes).await);
        shared.client.send(request).await.map(|answer| (answer, gate))
    });
    match sent.await {
        Ok(Ok((answer, gate))) => {
            let (head, body) = answer.into_parts();
            let chunks = Body::new(body).into_data_stream().then(move |chunk| {
                let mut gate = gate.clone();
                async move {
                    drop(gate.wait_for(|gate| *gate != Gate::Cut).await);
                    chunk
                }
            });
            Response::from_parts(head, Body::from_stream(chunks))
        }
        Ok(Err(error)) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
