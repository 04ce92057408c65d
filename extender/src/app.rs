//! Puts the program together: certificates, listener, election, and one term after another.

use crate::agents::{self, Listening};
use crate::args::{AgentsArgs, ExtenderArgs, PluginArgs, RightsArgs};
use crate::cluster_index::{ClusterIndex, Limits};
use crate::in_force::InForce;
use crate::leader::{Candidate, Held, LeaseSettings, OwnPod};
use crate::metrics::Metrics;
use crate::routes::{self, Shared};
use crate::term::{Standing, Term};
use crate::{another_kind, confirm, former_epoch, node_policies, plugin_layout, timers, wake, watch};
use anyhow::Context;
use kerf_core::packing::Terms;
use kerf_runtime::admin::{self, Readiness};
use kerf_runtime::args::NamespacedName;
use kerf_runtime::policy_file::PolicyStore;
use kerf_runtime::serve;
use kerf_runtime::shutdown::CancellationToken;
use kerf_runtime::tls::{Clients, Expiry, ServingCertificate, TlsSecret, Wanted};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::interval;

/// The name in kube-scheduler's client certificate.
const SCHEDULER: &str = "kerf-scheduler";
/// How often the certificates are looked at. They are renewed weeks before their end.
const CERTIFICATE_CHECK: Duration = Duration::from_hours(1);
/// The pause before this replica tries to lead again after it lost the lead.
const BREATH: Duration = Duration::from_secs(1);

/// What a replica waits for until it is ready: that somebody leads. One that waits to take over is as ready as it can be, so
/// that a rollout, and `helm --wait`, go on.
const LEASE: &str = "lease";
/// What a leader waits for beyond that: to have listed everything.
const INVENTORY: &str = "inventory";
/// And that its pod has the label by which the Service leads to it.
const SERVICE: &str = "service";

/// Runs the extender until `stop`.
pub async fn run(args: ExtenderArgs, stop: CancellationToken) -> anyhow::Result<()> {
    let client = args.client.client().await?;
    let standing = Arc::new(Standing::default());
    let (metrics, mut registry) = Metrics::new(&standing);
    let store = args.policy.as_ref().map(PolicyStore::open).transpose().context("--policy")?;
    if let Some(store) = &store {
        store.register(&mut registry);
    }
    let policies = InForce::of(store.clone());
    let readiness = Readiness::new(&[LEASE]);
    let shared = Shared {
        standing: standing.clone(),
        metrics: metrics.clone(),
        bind_timeout: args.bind_timeout,
        lag: Arc::default(),
    };
    let expiry = Expiry::default();
    expiry.register(&mut registry);
    let serving = serve_scheduler(&args, &client, (shared, expiry), &stop);
    let admin = admin::serve(args.admin.admin_address, readiness.clone(), registry, stop.clone());
    let terms = Terms { weights: policies.current().weights(), ..Terms::default() };
    let namespace = args.lease.namespace.clone();
    let (client, rights, plugin) = (client.clone(), args.rights, args.plugin.clone());
    let agents = args.agents.clone();
    let pod = args.pod.clone();
    let limits = Limits { reservation: args.reservation_lifetime, request: args.request_lifetime };
    let replica = Replica {
        client,
        metrics,
        standing,
        readiness,
        terms,
        limits,
        policies,
        namespace,
        rights,
        plugin,
        agents,
        pod,
    };
    let following = async {
        match store {
            Some(store) => store.watch(stop.clone()).await,
            None => stop.cancelled().await,
        }
        anyhow::Ok(())
    };
    let leading = async {
        replica.lead(lease_settings(&args)?, &stop).await;
        anyhow::Ok(())
    };
    // If one of them fails the others stop too, the lease is released, and the program ends.
    let ended = async |part: anyhow::Result<()>| {
        stop.cancel();
        part
    };
    let (serving, admin, leading, following) = tokio::join!(
        async { ended(serving.await).await },
        async { ended(admin.await.context("failed to serve --admin-address")).await },
        async { ended(leading.await).await },
        async { ended(following.await).await },
    );
    serving.and(admin).and(leading).and(following)
}

async fn serve_scheduler(
    args: &ExtenderArgs,
    client: &kube::Client,
    (shared, expiry): (Shared, Expiry),
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let wanted = Wanted { server_names: args.tls_name.clone(), client_name: Some(SCHEDULER.to_owned()) };
    let secret = &args.tls_secret;
    let material = TlsSecret::ensure(client, &secret.namespace, &secret.name, &wanted).await?;
    let certificate = ServingCertificate::new(&material)?;
    expiry.set(&material);
    let mut tls = Arc::unwrap_or_clone(certificate.server_config(&material, Clients::Verified)?);
    // No HTTP/2. There a request that is not answered in time leaves the connection open, and the scheduler goes on asking a leader
    // whose machine is gone until its pings fail, 45 s later. In HTTP/1.1 it connects anew, to the leader of then.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let tls = Arc::new(tls);
    let listener = serve::listen(args.address, args.address_file.as_deref()).await;
    let listener = listener.with_context(|| format!("failed to listen on --address {}", args.address))?;
    // Each term serves on a copy of it.
    let listener = listener.into_std()?;
    let renewing = async {
        let mut check = interval(CERTIFICATE_CHECK);
        check.tick().await;
        loop {
            check.tick().await;
            let renewed = TlsSecret::ensure(client, &secret.namespace, &secret.name, &wanted).await;
            let shown = renewed.and_then(|material| {
                certificate.replace(&material)?;
                expiry.set(&material);
                Ok(())
            });
            if let Err(error) = shown {
                tracing::error!(%error, "failed to renew the certificates");
            }
        }
    };
    tokio::select! {
        served = serve_terms(&listener, &tls, shared, stop) => Ok(served?),
        () = renewing => Ok(()),
    }
}

/// Serves until `stop`. At the end of each term all connections are ended in order: kube-scheduler keeps its one open
/// for as long as it can, and would go on asking a replica that leads no more.
async fn serve_terms(
    listener: &std::net::TcpListener,
    tls: &Arc<rustls::ServerConfig>,
    shared: Shared,
    stop: &CancellationToken,
) -> std::io::Result<()> {
    let standing = shared.standing.clone();
    let router = routes::router(shared);
    let mut serving = JoinSet::new();
    while !stop.is_cancelled() {
        let term = stop.child_token();
        let listener = TcpListener::from_std(listener.try_clone()?)?;
        serving.spawn(serve::serve(listener, tls.clone(), router.clone(), term.clone()));
        tokio::select! {
            () = stop.cancelled() => {}
            () = standing.ended() => term.cancel(),
        }
    }
    while let Some(served) = serving.join_next().await {
        served.map_err(std::io::Error::other)??;
    }
    Ok(())
}

fn lease_settings(args: &ExtenderArgs) -> anyhow::Result<LeaseSettings> {
    let identity = args.identity.clone().map_or_else(default_identity, Ok)?;
    let (namespace, name) = (args.lease.namespace.clone(), args.lease.name.clone());
    Ok(LeaseSettings { namespace, name, identity, duration: args.lease_duration })
}

/// A name that no other process on any host has now.
fn default_identity() -> anyhow::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("failed to read the host's name; give --identity")?;
    Ok(format!("{}-{}", host.trim(), std::process::id()))
}

/// One replica, which leads in some terms.
struct Replica {
    client: kube::Client,
    metrics: Metrics,
    standing: Arc<Standing>,
    readiness: Readiness,
    terms: Terms,
    limits: Limits,
    policies: InForce,
    /// Kerf's own.
    namespace: String,
    rights: RightsArgs,
    plugin: PluginArgs,
    agents: AgentsArgs,
    /// None outside of a cluster.
    pod: Option<NamespacedName>,
}

impl Replica {
    async fn lead(&self, settings: LeaseSettings, stop: &CancellationToken) {
        let mut candidate = Candidate::new(self.client.clone(), settings);
        while !stop.is_cancelled() {
            let mut held = tokio::select! {
                () = stop.cancelled() => return,
                held = candidate.acquire(|| self.readiness.set(LEASE, true)) => held,
            };
            self.waits_as_leader(true);
            let in_order = self.term(&candidate, &mut held, stop).await;
            self.waits_as_leader(false);
            candidate.lost(&held);
            if stop.is_cancelled() {
                if in_order {
                    candidate.release(held).await;
                } else {
                    tracing::warn!("a Binding may still be under way: the Lease is not released");
                }
                return;
            }
            held.deadline().end();
            tokio::time::sleep(BREATH).await;
        }
    }

    /// Begins to wait for what a leader waits for, or for another leader.
    fn waits_as_leader(&self, leads: bool) {
        for (condition, holds) in [(LEASE, leads), (INVENTORY, !leads), (SERVICE, !leads)] {
            self.readiness.set(condition, holds);
        }
    }

    /// A term that knows nothing yet. Its client writes nothing after the Lease's deadline.
    fn new_term(&self, held: &Held) -> Arc<Term> {
        let term = Term::new(
            held.deadline().bound(self.client.clone()),
            self.metrics.clone(),
            held.epoch(),
            self.terms.clone(),
            self.policies.clone(),
            CancellationToken::new(),
        );
        term.set_lease_uid(held.uid());
        term.set_deadline(held.deadline().clone());
        term.with(|index| {
            index.set_limits(self.limits);
            index.await_former_epoch();
            index.succeed(held.former(), held.since().into_std());
        });
        if !self.rights.moves {
            term.with(ClusterIndex::move_nobody);
        }
        term
    }

    /// Works as the leader until the lead is lost or `stop`. Whether a successor may go on at once.
    async fn term(&self, candidate: &Candidate, held: &mut Held, stop: &CancellationToken) -> bool {
        let deadline = held.deadline().clone();
        let term = self.new_term(held);
        let agents = self.listen_to_agents(&term, candidate.identity()).await;
        let lays_out = plugin_layout::begins(&term, self.rights);
        let (nodes, layouts) = mpsc::unbounded_channel();
        let watching = tokio::spawn(watch::run(term.clone(), nodes));
        let confirming = tokio::spawn(confirm::run(term.clone()));
        let waking = tokio::spawn(wake::run(term.clone()));
        let timing = tokio::spawn(timers::run(term.clone()));
        let filling = tokio::spawn(node_policies::run(term.clone()));
        let succeeding = tokio::spawn(former_epoch::run(term.clone(), self.namespace.clone()));
        let advising = tokio::spawn(another_kind::run(term.clone()));
        let configuring = plugin_layout::run(term.clone(), self.plugin.clone(), layouts);
        let configuring = tokio::spawn(async move {
            if lays_out {
                configuring.await;
            }
        });
        let listed = async {
            while !term.with(|index| index.is_listed()) {
                term.listed.notified().await;
            }
        };
        // A program that ends lets its last Bindings end first.
        let ending = async {
            stop.cancelled().await;
            term.closing.cancel();
            std::future::pending().await
        };
        let mut ending = pin!(ending);
        // The lease is kept alive while the cluster is listed, and long after.
        let is_listed = tokio::select! {
            () = candidate.keep(held, &term.closing) => false,
            () = listed => true,
            never = &mut ending => match never {},
        };
        if is_listed {
            let (epoch, nodes) = term.with(|index| {
                index.inherit();
                (index.epoch(), index.nodes().count())
            });
            held.raise(epoch);
            agents.iter().for_each(|agents| agents.lead(epoch));
            tracing::info!(epoch, nodes, "cluster listed, answering");
            self.standing.begin(term.clone());
            self.readiness.set(INVENTORY, true);
            tokio::select! {
                () = candidate.keep(held, &term.closing) => {}
                never = self.lead_the_service_here(&term) => match never {},
                never = &mut ending => match never {},
            }
        }
        self.standing.end();
        tokio::select! {
            () = term.close() => {}
            () = deadline.passed() => {}
        }
        agents.iter().for_each(Listening::follow);
        let in_order = term.with(|index| index.leaves_nothing_under_way());
        term.stop.cancel();
        for task in [watching, confirming, waking, timing, filling, succeeding, advising, configuring] {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the term failed");
            }
        }
        in_order && !deadline.has_passed()
    }

    /// Serves the agents that keep their node's ledger, until the term ends.
    async fn listen_to_agents(&self, term: &Arc<Term>, identity: &str) -> Option<Listening> {
        agents::listen(term, &self.agents, identity).await.unwrap_or_else(|error| {
            tracing::error!(%error, "failed to listen on --agents-address");
            None
        })
    }

    /// Keeps the label at this replica's pod, where it has one.
    async fn lead_the_service_here(&self, term: &Term) -> Infallible {
        let labelled = || self.readiness.set(SERVICE, true);
        if let Some(pod) = &self.pod {
            return OwnPod::new(term.client.clone(), pod).keep_label(labelled).await;
        }
        labelled();
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::ApiStandIn;
    use crate::bind::{Bind, bind};
    use clap::Parser;
    use http::Method;
    use kerf_core::names::PodKey;

    /// A leader that was frozen: a bind runs before anything else notices that the deadline has passed.
    #[tokio::test]
    async fn a_term_sends_no_binding_after_the_deadline_of_its_lease() {
        let api = ApiStandIn::new();
        let args = ExtenderArgs::parse_from(["kerf-extender", "--identity=a"]);
        let standing = Arc::default();
        let replica = Replica {
            client: api.client(),
            metrics: Metrics::new(&standing).0,
            standing,
            readiness: Readiness::new(&[]),
            terms: Terms::default(),
            limits: Limits::default(),
            policies: InForce::default(),
            namespace: args.lease.namespace.clone(),
            rights: args.rights,
            plugin: args.plugin.clone(),
            agents: AgentsArgs::default(),
            pod: None,
        };
        let mut candidate = Candidate::new(api.client(), lease_settings(&args).unwrap());
        let held = candidate.acquire(|| ()).await;
        let term = replica.new_term(&held);
        let bind = async |name: &str| {
            api.put_pod(name, None);
            let (uid, key) = (format!("uid-{name}").as_str().into(), PodKey::new("default", name));
            bind(&term, Bind { uid, key, node: "n".into() }, Duration::from_secs(1)).await
        };
        bind("a").await.unwrap();
        let sent = api.requests(&Method::POST);
        held.deadline().end();
        bind("b").await.unwrap_err();
        assert_eq!(api.requests(&Method::POST), sent);
    }
}
