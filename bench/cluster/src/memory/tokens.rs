//! The agents' tokens, and their review by the API server.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use kerf_protocol::client::Network;
use kerf_tests::cluster::NAMESPACE;
use serde_json::{Value, json};

/// Before the node's name in an agent's token.
const TOKEN: &str = "token-of-the-agent-of-";

/// A network that all agents share, with one agent's token.
pub struct As<N> {
    network: Arc<N>,
    token: String,
}

impl<N> As<N> {
    /// The network as the agent of this node reaches it.
    pub fn agent(node: &str, network: Arc<N>) -> Self {
        Self { network, token: format!("{TOKEN}{node}") }
    }
}

impl<N: Network> Network for As<N> {
    type Stream = N::Stream;

    async fn resolve(&self) -> io::Result<BTreeSet<SocketAddr>> {
        self.network.resolve().await
    }

    async fn connect(&self, extender: SocketAddr) -> io::Result<Self::Stream> {
        self.network.connect(extender).await
    }

    async fn token(&self) -> io::Result<Option<String>> {
        Ok(Some(self.token.clone()))
    }
}

/// Answers the review of a token as the API server does.
pub fn review(review: &Value) -> Value {
    let node = review["spec"]["token"].as_str().and_then(|token| token.strip_prefix(TOKEN));
    let status = node.map_or_else(
        || json!({"authenticated": false}),
        |node| {
            json!({
                "authenticated": true,
                "audiences": review["spec"]["audiences"],
                "user": {
                    "username": format!("system:serviceaccount:{NAMESPACE}:kerf-node-agent"),
                    "extra": {"authentication.kubernetes.io/node-name": [node]},
                },
            })
        },
    );
    json!({
        "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
        "spec": review["spec"], "status": status,
    })
}
