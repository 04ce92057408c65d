//! The program: what is started, in which order, and how it ends.

use crate::args::Args;
use crate::certificate::Keeper;
use crate::metrics::Metrics;
use crate::routes::{Webhook, routes};
use crate::supply_watch;
use anyhow::Context;
use kerf_runtime::admin::{self, Readiness};
use kerf_runtime::policy_file::PolicyStore;
use kerf_runtime::serve;
use kerf_runtime::shutdown::CancellationToken;
use kerf_runtime::tls::{Clients, ServingCertificate, Wanted};
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;

/// Runs the webhook until `stop`.
///
/// It accepts connections once it has a certificate and knows the cluster's GPUs: until then pods with GPU requests are
/// refused by the API server itself, and no other pod comes here.
pub async fn run(args: Args, stop: CancellationToken) -> anyhow::Result<()> {
    let policy = PolicyStore::open(&args.policy).context("--policy")?;
    let client = args.client.client().await?;
    let readiness = Readiness::new(&["policy", "certificate", "inventory"]);
    readiness.set("policy", true);
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    policy.register(&mut registry);
    let (publisher, supply) = supply_watch::channel();

    let mut tasks = JoinSet::new();
    let admin = admin::serve(args.admin.admin_address, readiness.clone(), registry, stop.clone());
    tasks.spawn(async { admin.await.context("--admin-address") });
    let (followed, ended) = (policy.clone(), stop.clone());
    tasks.spawn(async move {
        followed.watch(ended).await;
        Ok(())
    });
    let follow = supply_watch::follow(client.clone(), publisher, stop.clone());
    tasks.spawn(async {
        follow.await;
        Ok(())
    });

    let webhook = Webhook { policy, supply, metrics };
    let result = tokio::select! {
        result = serve_admissions(args, client, webhook, readiness, stop.clone()) => result,
        error = first_failure(&mut tasks) => Err(error),
    };
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    result
}

/// Waits for a task that fails. Those that end because of the stop do not count.
async fn first_failure(tasks: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Error {
    loop {
        match tasks.join_next().await {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => return error,
            Some(Err(error)) => return error.into(),
            None => std::future::pending().await,
        }
    }
}

async fn serve_admissions(
    args: Args,
    client: kube::Client,
    mut webhook: Webhook,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let wanted = Wanted { server_names: args.tls_names, client_name: None };
    let (namespace, secret) = (args.tls_secret.namespace, args.tls_secret.name);
    let keeper = Keeper { client, namespace, secret, wanted, configuration: args.configuration };
    let Some(material) = keeper.obtain(&stop).await else { return Ok(()) };
    let certificate = ServingCertificate::new(&material)?;
    let tls = certificate.server_config(&material, Clients::Any)?;
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        known = webhook.supply.known() => known?,
    }
    readiness.set("inventory", true);

    let listener = serve::listen(args.address, args.address_file.as_deref()).await.context("--address")?;
    let ended = stop.clone();
    let trusted = move || readiness.set("certificate", true);
    let keeping = tokio::spawn(async move { keeper.keep(certificate, trusted, ended).await });
    serve::serve(listener, tls, routes(webhook), stop).await?;
    Ok(keeping.await?)
}
