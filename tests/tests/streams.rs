//! Agents' connections to the extender, which runs as a process and has a real API server review their tokens.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::{SinkExt as _, StreamExt as _};
use k8s_openapi::api::authentication::v1::BoundObjectReference;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys::EXTENDER_AUTHORITY;
use kerf_core::ledger::Change;
use kerf_core::names::NodeName;
use kerf_protocol::client::{Network as _, Secured};
use kerf_protocol::convert::{Hello, write_hello};
use kerf_protocol::limits::WINDOW;
use kerf_protocol::wire::{FromAgent, ToAgent, from_agent, to_agent};
use kerf_runtime::tls::PublishedAuthority;
use kerf_tests::cluster::{Cluster, ClusterOptions, NAMESPACE, wait};
use kerf_tests::control_plane::{ControlPlane, SERVICE_ACCOUNT_ISSUER};
use kerf_tests::gpu_nodes::NodeObject;
use kube::Api;
use kube::api::PostParams;
use prost::Message as _;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::client::ClientRequestBuilder;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{self, Message};

const TIMEOUT: Duration = Duration::from_secs(30);
const AGENT: &str = "kerf-node-agent";
const AUDIENCE: &str = "kerf-extender";
const NAME: &str = "kerf-extender.kerf-system.svc";

/// A cluster without nodes, and the address where its extender serves agents.
async fn cluster() -> anyhow::Result<(Cluster, SocketAddr)> {
    let cluster = Cluster::start(ClusterOptions::without_controller_manager(Vec::new()), |_| ()).await?;
    let address = *cluster.agents_addresses().first().context("it serves no agents")?;
    let is_served = async || Ok(TcpStream::connect(address).await.is_ok());
    wait(TIMEOUT, "the extender to serve agents", is_served).await?;
    Ok((cluster, address))
}

/// Creates the pod of the agent on a node, which a token is bound to.
async fn pod_of_agent(plane: &ControlPlane, node: &str) -> anyhow::Result<BoundObjectReference> {
    NodeObject::new(node).create_node(&plane.client()).await?;
    let pod = json!({
        "metadata": {"name": format!("{AGENT}-{node}"), "namespace": NAMESPACE},
        "spec": {"nodeName": node, "serviceAccountName": AGENT, "containers": [{"name": "node-agent", "image": "none"}]},
    });
    let pods = Api::<Pod>::namespaced(plane.client(), NAMESPACE);
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: pod.metadata.name,
        uid: pod.metadata.uid,
    })
}

/// An agent without a node.
struct Agent {
    extender: SocketAddr,
    authority: PublishedAuthority,
    folder: tempfile::TempDir,
}

impl Agent {
    /// An agent with the rights of one.
    async fn new(plane: &ControlPlane, extender: SocketAddr) -> anyhow::Result<Self> {
        let kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, AGENT).await?;
        let client = plane.client_as(&kubeconfig).await?;
        let authority = PublishedAuthority::new(&client, NAMESPACE, EXTENDER_AUTHORITY);
        Ok(Self { extender, authority, folder: tempfile::tempdir()? })
    }

    /// Says hello for a node. Returns whether the extender answers with its role.
    async fn greets(&self, node: &str, token: Option<&str>) -> anyhow::Result<Result<(), Refusal>> {
        let file = self.folder.path().join("token");
        std::fs::write(&file, token.unwrap_or_default())?;
        let authority = self.authority.clone();
        let authority = move || {
            let authority = authority.clone();
            async move { authority.client_config().await.map_err(std::io::Error::other) }
        };
        let network = Secured::new(vec![self.extender.to_string()], NAME, file, authority)?;
        let addresses = network.resolve().await?;
        ensure!(addresses == [self.extender].into(), "the extender is at {addresses:?}");
        let mut request = ClientRequestBuilder::new("wss://extender/kerf.agent.v1".parse()?);
        if token.is_some() {
            let token = network.token().await?.context("the file has a token")?;
            request = request.with_header("authorization", format!("Bearer {token}"));
        }
        let stream = network.connect(self.extender).await?;
        let answered = async {
            let mut socket = match client_async(request, stream).await {
                Err(tungstenite::Error::Http(answer)) => {
                    let text = String::from_utf8(answer.body().clone().unwrap_or_default())?;
                    return Ok(Err((answer.status().as_u16(), text)));
                }
                opened => opened?.0,
            };
            socket.send(Message::Binary(hello(node).encode_to_vec().into())).await?;
            match socket.next().await.context("the extender has gone")?? {
                Message::Close(Some(CloseFrame { code, reason })) => {
                    Ok(Err((code.into(), reason.to_string())))
                }
                frame => {
                    let first = ToAgent::decode(frame.into_data())?.message;
                    ensure!(matches!(first, Some(to_agent::Message::Role(_))), "{first:?}");
                    Ok(Ok(()))
                }
            }
        };
        tokio::time::timeout(TIMEOUT, answered).await.context("the extender is silent")?
    }
}

/// The code and the text with which the extender refuses a connection: of HTTP, or of a WebSocket's end.
type Refusal = (u16, String);

fn hello(node: &str) -> FromAgent {
    let hello = Hello {
        node: NodeName::new(node),
        node_uid: "u1".to_owned(),
        boot_id: "b1".to_owned(),
        version: "0.1.0".to_owned(),
        instance: "i1".to_owned(),
        epoch: 0,
        window: WINDOW,
    };
    let hello = from_agent::Message::Hello(write_hello(hello, &Change::default()));
    FromAgent { message: Some(hello) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_hello_is_refused() -> anyhow::Result<()> {
    let (cluster, extender) = cluster().await?;
    let plane = cluster.plane();
    let [one, two] = [pod_of_agent(plane, "n1").await?, pod_of_agent(plane, "n2").await?];
    let agent = Agent::new(plane, extender).await?;
    let token = async |account: &str, audience: &str, bound: Option<&BoundObjectReference>| {
        plane.token(NAMESPACE, account, audience, bound.cloned()).await
    };
    let right = token(AGENT, AUDIENCE, Some(&one)).await?;
    ensure!(agent.greets("n1", Some(&right)).await? == Ok(()), "the right token is refused");

    let of_second = token(AGENT, AUDIENCE, Some(&two)).await?;
    // A newly signed token is accepted while it is valid, so the next one is refused only because it has expired.
    let in_time = plane.resigned(&right, |_| ())?;
    ensure!(agent.greets("n1", Some(&in_time)).await? == Ok(()), "a token that is signed anew is refused");
    let ended = plane.resigned(&right, |claims| {
        let begin = claims["iat"].as_i64().unwrap_or_default() - 7200;
        for (claim, at) in [("iat", begin), ("nbf", begin), ("exp", begin + 3600)] {
            claims[claim] = json!(at);
        }
    })?;
    let invalid = "the token is not valid for the audience kerf-extender";
    let named = "the token names no node";
    for (what, node, token, code, message) in [
        (
            "of another node",
            "n1",
            Some(of_second),
            1008,
            "hello.node is n1, but the token is of the agent of n2",
        ),
        ("absent", "n1", None, 401, "no token was sent"),
        ("no token", "n1", Some("a.b.c".to_owned()), 401, invalid),
        ("ended", "n1", Some(ended), 401, invalid),
        (
            "for the API server",
            "n1",
            Some(token(AGENT, SERVICE_ACCOUNT_ISSUER, Some(&one)).await?),
            401,
            invalid,
        ),
        (
            "of another account",
            "n1",
            Some(token("kerf-extender", AUDIENCE, None).await?),
            403,
            "the token is of system:serviceaccount:kerf-system:kerf-extender",
        ),
        ("of no pod", "n1", Some(token(AGENT, AUDIENCE, None).await?), 403, named),
    ] {
        let refusal = agent.greets(node, token.as_deref()).await?;
        let refusal = refusal.err().with_context(|| format!("a token {what} is taken"))?;
        ensure!(refusal.0 == code && refusal.1.starts_with(message), "{what}: {refusal:?}");
    }
    ensure!(agent.greets("n1", Some(&right)).await? == Ok(()), "the right token is refused at last");
    cluster.stop().await
}
