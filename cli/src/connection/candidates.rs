//! Names that complete a command line, from the kubeconfig and from the cluster that the preceding words select. A user
//! waits for them, so a cluster that does not answer in time adds none.

use super::Connection;
use crate::completion_words;
use clap::FromArgMatches as _;
use clap_complete::CompletionCandidate;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kerf_core::mig::catalog;
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{Api, ListParams};
use kube::config::Kubeconfig;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

pub fn contexts() -> Vec<CompletionCandidate> {
    from_kubeconfig(|config| config.contexts.into_iter().map(|named| named.name).collect())
}

pub fn clusters() -> Vec<CompletionCandidate> {
    from_kubeconfig(|config| config.clusters.into_iter().map(|named| named.name).collect())
}

pub fn users() -> Vec<CompletionCandidate> {
    from_kubeconfig(|config| config.auth_infos.into_iter().map(|named| named.name).collect())
}

pub fn namespaces() -> Vec<CompletionCandidate> {
    of_cluster(async |client, _| names(Api::<Namespace>::all(client)).await)
}

/// The pods of the namespace that `-n` or the context names.
pub fn pods() -> Vec<CompletionCandidate> {
    of_cluster(async |client, namespace| names(Api::<Pod>::namespaced(client, &namespace)).await)
}

pub fn nodes() -> Vec<CompletionCandidate> {
    of_cluster(async |client, _| names(Api::<GpuNode>::all(client)).await)
}

pub fn machines() -> Vec<CompletionCandidate> {
    of_cluster(async |client, _| names(Api::<Node>::all(client)).await)
}

pub fn gpus() -> Vec<CompletionCandidate> {
    of_cluster(async |client, _| {
        let nodes = Api::<GpuNode>::all(client).list(&ListParams::default()).await?;
        let gpus = nodes.iter().filter_map(|node| node.read_status().ok()??.gpus.into());
        Ok(gpus.flat_map(|gpus: Vec<_>| gpus).map(|gpu| gpu.uuid.to_string()).collect())
    })
}

/// The GPU models with MIG profiles, in the spelling of users.
pub fn models() -> Vec<CompletionCandidate> {
    let models = catalog::MODELS.iter().filter(|model| model.mig_table().is_some());
    models.map(|model| CompletionCandidate::new(model.name.to_lowercase())).collect()
}

async fn names<K>(api: Api<K>) -> kube::Result<Vec<String>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let found = api.list_metadata(&ListParams::default()).await?;
    Ok(found.iter().map(ResourceExt::name_any).collect())
}

fn from_kubeconfig(names: impl Fn(Kubeconfig) -> Vec<String>) -> Vec<CompletionCandidate> {
    let found = typed().and_then(|(connection, _)| connection.files().read().ok()).map(names);
    found.unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

/// The names that the cluster returns in time. They are read in a thread, because a login that hangs must block only
/// that thread, which ends with the program.
fn of_cluster(
    question: impl AsyncFnOnce(Client, String) -> kube::Result<Vec<String>> + Send + 'static,
) -> Vec<CompletionCandidate> {
    let Some((connection, namespace)) = typed() else { return Vec::new() };
    let (sender, answer) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let names = runtime.block_on(async {
            let client = connection.client().await.ok()?;
            let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
            question(client, namespace).await.ok()
        });
        sender.send(names?).ok()
    });
    let names = answer.recv_timeout(ANSWER_TIMEOUT).unwrap_or_default();
    names.into_iter().map(CompletionCandidate::new).collect()
}

fn typed() -> Option<(Connection, Option<String>)> {
    let typed = completion_words::typed()?;
    let namespace = typed.try_get_one::<String>("namespace").ok().flatten().cloned();
    Some((Connection::from_arg_matches(&typed).ok()?.unattended(), namespace))
}
