//! The program: what it starts, in which order, and how it ends.

use crate::args::Args;
use crate::certificate::CertificateReconciler;
use crate::match_conditions::MatchConditionReconciler;
use crate::metrics::Metrics;
use crate::routes::{Webhook, routes};
use crate::{namespaces, policy_events, supply_watch};
use anyhow::Context;
use kerf_runtime::admin::{self, Readiness};
use kerf_runtime::policy_file::PolicyStore;
use kerf_runtime::serve;
use kerf_runtime::shutdown::CancellationToken;
use kerf_runtime::tls::{Clients, ServingCertificate};
use prometheus_client::registry::Registry;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// The readiness condition that the stop signal clears.
const STAYING: &str = "restart";

/// Runs the webhook until `stop` and for a grace period after it. In that period it is not ready but still serves,
/// because some clients have not noticed yet.
///
/// It accepts connections once it has a certificate and has read the cluster's GPUs, and also the namespaces if its
/// policies need their labels. Until then the API server itself rejects pods with GPU requests. It sends no other pods
/// here.
pub async fn run(args: Args, stop: CancellationToken) -> anyhow::Result<()> {
    let policy = PolicyStore::open(&args.policy).context("--policy")?;
    let client = args.client.client().await?;
    let readiness = Readiness::new(&["policy", "certificate", "inventory", STAYING]);
    // Without a policy for pods the program has ended above, so this is ready from the start.
    readiness.set("policy", true);
    readiness.set(STAYING, true);
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    policy.register(&mut registry);
    let (publisher, supply) = supply_watch::channel();
    // All tasks run until the end, which follows the stop after the grace period.
    let end = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let admin = admin::serve(args.admin.admin_address, readiness.clone(), registry, end.clone());
    tasks.spawn(async { admin.await.context("--admin-address") });
    let (followed, ended) = (policy.clone(), end.clone());
    tasks.spawn(async move {
        followed.watch(ended).await;
        Ok(())
    });
    let configuration = args.tls.configuration.clone();
    let write_events = policy_events::run(client.clone(), configuration, policy.clone(), end.clone());
    tasks.spawn(async {
        write_events.await;
        Ok(())
    });
    let (labels, known) = namespaces::channel();
    let follow = namespaces::follow(client.clone(), policy.changes(), labels, end.clone());
    tasks.spawn(async {
        follow.await;
        Ok(())
    });
    let (first_try, first_try_ended) = oneshot::channel();
    let conditions = MatchConditionReconciler::new(&args, client.clone(), policy.clone());
    let write_conditions = conditions.run(first_try, end.clone());
    tasks.spawn(async {
        write_conditions.await;
        Ok(())
    });
    let follow = supply_watch::follow(client.clone(), publisher, args.neutral_names, end.clone());
    tasks.spawn(async {
        follow.await;
        Ok(())
    });
    let grace = Duration::try_from(args.grace).context("--grace")?;
    tasks.spawn(leave(readiness.clone(), grace, stop.clone(), end.clone()));

    let webhook = Webhook { policy, supply, namespaces: known, metrics };
    let result = tokio::select! {
        result = serve_admissions(args, client, webhook, (readiness, first_try_ended), Stops { stop, end: end.clone() }) => result,
        error = first_failure(&mut tasks) => Err(error),
    };
    end.cancel();
    while tasks.join_next().await.is_some() {}
    result
}

struct Stops {
    stop: CancellationToken,
    end: CancellationToken,
}

/// Cancels `end` after `stop`: after `grace` if requests may still arrive, and at once if the webhook never was ready.
async fn leave(
    readiness: Readiness,
    grace: Duration,
    stop: CancellationToken,
    end: CancellationToken,
) -> anyhow::Result<()> {
    tokio::select! {
        () = stop.cancelled() => {}
        () = end.cancelled() => return Ok(()),
    }
    let was_ready = readiness.is_ready();
    readiness.set(STAYING, false);
    if was_ready {
        tracing::info!(?grace, "not ready any more; serving until the end of the grace period");
        tokio::select! {
            () = tokio::time::sleep(grace) => {}
            () = end.cancelled() => {}
        }
    }
    end.cancel();
    Ok(())
}

/// Waits for a task that fails. Tasks that end because of the stop do not count.
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
    (readiness, first_try_ended): (Readiness, oneshot::Receiver<()>),
    Stops { stop, end }: Stops,
) -> anyhow::Result<()> {
    let mut reconciler =
        CertificateReconciler::new(client, args.tls).context("--tls-ca-age, --tls-leaf-age")?;
    let Some(material) = reconciler.obtain(&end).await else { return Ok(()) };
    let certificate = ServingCertificate::new(&material)?;
    let tls = certificate.server_config(&material, Clients::Any)?;
    tokio::select! {
        () = end.cancelled() => return Ok(()),
        known = webhook.supply.known() => known?,
    }
    // Without such a policy the namespaces are not watched, and waiting for them would never end.
    if webhook.policy.current().read_namespace_labels() {
        tokio::select! {
            () = end.cancelled() => return Ok(()),
            known = webhook.namespaces.known() => known?,
        }
    }
    readiness.set("inventory", true);
    // From here on every pod that the policies take is sent here. If the first try has failed, the present match
    // condition stays.
    let _ = first_try_ended.await;

    let listener = serve::listen(args.address, args.address_file.as_deref()).await.context("--address")?;
    let ended = end.clone();
    let report = move |trusted| readiness.set("certificate", trusted);
    let expiry = webhook.metrics.expiry.clone();
    let renewal = reconciler.run(certificate, (material, expiry), report, ended);
    let renewal = tokio::spawn(renewal);
    serve::serve(listener, tls, serve::closing(routes(webhook), stop), end).await?;
    Ok(renewal.await?)
}
