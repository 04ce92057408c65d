//! Assembles the program: certificates, listener, leader election, and one term after another.

use crate::agents::{self, Access, Listening, Reviewer};
use crate::args::{AgentsArgs, ExtenderArgs, PluginArgs, RightsArgs};
use crate::certificates::Certificates;
use crate::cluster::Cluster;
use crate::cluster_index::{ClusterIndex, Limits};
use crate::collector::TermCollector;
use crate::controllers::{
    another_kind, confirm, former_epoch, fresh, node_policies, plugin_layout, requeue, timers,
};
use crate::leader::{Candidate, Held, LeaseSettings, OwnPod};
use crate::metrics::Metrics;
use crate::policy_source::PolicySource;
use crate::scheduling::routes::{self, Shared};
use crate::seen_nodes::SeenNodes;
use crate::term::{CurrentTerm, Term};
use crate::watch;
use anyhow::Context;
use kerf_core::packing::Terms;
use kerf_runtime::admin::{self, Readiness};
use kerf_runtime::args::NamespacedName;
use kerf_runtime::policy_file::PolicyStore;
use kerf_runtime::serve;
use kerf_runtime::shutdown::CancellationToken;
use kerf_runtime::tls::Expiry;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The pause before this replica tries to lead again after it lost the lead.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Readiness condition: some replica leads. A standby counts as ready, because it is as ready as it can be; otherwise a
/// rollout, and `helm --wait`, would not finish.
const LEASE: &str = "lease";
/// Readiness condition: this replica has listed the cluster, so that it can take over at once. A new leader is not
/// ready until it answers.
const INVENTORY: &str = "inventory";
/// Readiness condition of a leader only: its pod has the label by which the Service selects it.
const SERVICE: &str = "service";

/// Runs the extender until `stop`.
pub async fn run(args: ExtenderArgs, stop: CancellationToken) -> anyhow::Result<()> {
    args.agents.check()?;
    let client = args.client.client().await?;
    let current_term = Arc::new(CurrentTerm::default());
    let (metrics, mut registry) = Metrics::new();
    registry.register_collector(Box::new(TermCollector::new(current_term.clone())));
    let store = args.policy.as_ref().map(PolicyStore::open).transpose().context("--policy")?;
    if let Some(store) = &store {
        store.register(&mut registry);
    }
    let policies = PolicySource::from_store(store.clone());
    let readiness = Readiness::new(&[LEASE, INVENTORY]);
    let shared = Shared {
        current_term: current_term.clone(),
        metrics: metrics.clone(),
        bind_timeout: args.bind_timeout,
        lag: Arc::default(),
    };
    let expiry = Expiry::default();
    expiry.register(&mut registry);
    let certificates = Certificates::ensure(&args, &client, expiry).await?;
    let access = Arc::new(access(&args, &client, &certificates)?);
    let serving = serve_scheduler(&args, &certificates, shared, &stop);
    let admin = admin::serve(args.admin.admin_address, readiness.clone(), registry, stop.clone());
    let replica = Replica {
        client: client.clone(),
        metrics,
        current_term,
        readiness,
        cluster: cluster(&args, policies),
        namespace: args.lease.namespace.clone(),
        rights: args.rights,
        plugin: args.plugin.clone(),
        pod: args.pod.clone(),
    };
    let following = async {
        match store {
            Some(store) => store.watch(stop.clone()).await,
            None => stop.cancelled().await,
        }
        anyhow::Ok(())
    };
    let leading = async {
        let candidate = Candidate::new(client.clone(), lease_settings(&args)?);
        replica.run(candidate, (&args.agents, &access), &stop).await
    };
    // If one of them fails the others stop too, the Lease is released, and the program ends.
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

/// Builds an empty index with the limits and rights of `args`.
fn cluster(args: &ExtenderArgs, policies: PolicySource) -> Arc<Cluster> {
    let mut index =
        ClusterIndex::following(Terms { weights: policies.current().weights(), ..Terms::default() });
    index
        .bindings()
        .set_limits(Limits { reservation: args.reservation_lifetime, request: args.request_lifetime });
    if !args.rights.moves {
        index.room_maker().forbid();
    }
    let seen_nodes = SeenNodes::new(plugin_layout::applies(&policies, args.rights));
    Cluster::new(index, policies, seen_nodes)
}

/// Decides from the flags how agents authenticate themselves.
fn access(args: &ExtenderArgs, client: &kube::Client, certificates: &Certificates) -> anyhow::Result<Access> {
    if !args.agents.are_reviewed() {
        return Ok(Access::Open);
    }
    let reviewer = Reviewer::new(client.clone(), &args.agents.agent_account);
    Ok(Access::Reviewed(certificates.for_agents()?, Box::new(reviewer)))
}

async fn serve_scheduler(
    args: &ExtenderArgs,
    certificates: &Certificates,
    shared: Shared,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let tls = certificates.for_scheduler()?;
    let listener = serve::listen(args.address, args.address_file.as_deref()).await;
    let listener = listener.with_context(|| format!("failed to listen on --address {}", args.address))?;
    // Each term serves on a duplicate of this socket, so that the address stays bound between terms.
    let listener = listener.into_std()?;
    tokio::select! {
        served = serve_terms(&listener, &tls, shared, stop) => Ok(served?),
        never = certificates.renew() => match never {},
    }
}

/// Serves until `stop`. At the end of each term all connections are closed in order. kube-scheduler keeps its
/// connection open for as long as it can, and would otherwise go on asking a replica that no longer leads.
async fn serve_terms(
    listener: &std::net::TcpListener,
    tls: &Arc<rustls::ServerConfig>,
    shared: Shared,
    stop: &CancellationToken,
) -> std::io::Result<()> {
    let current_term = shared.current_term.clone();
    let router = routes::router(shared);
    let mut serving = JoinSet::new();
    while !stop.is_cancelled() {
        let term = stop.child_token();
        let listener = TcpListener::from_std(listener.try_clone()?)?;
        serving.spawn(serve::serve(listener, tls.clone(), router.clone(), term.clone()));
        tokio::select! {
            () = stop.cancelled() => {}
            () = current_term.ended() => term.cancel(),
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

/// The host's name and the process id: no other running process has the same.
fn default_identity() -> anyhow::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .context("failed to read the host's name; give --identity")?;
    Ok(format!("{}-{}", host.trim(), std::process::id()))
}

struct Replica {
    client: kube::Client,
    metrics: Metrics,
    current_term: Arc<CurrentTerm>,
    readiness: Readiness,
    cluster: Arc<Cluster>,
    /// The namespace that kerf is installed in.
    namespace: String,
    rights: RightsArgs,
    plugin: PluginArgs,
    /// `None` outside of a cluster.
    pod: Option<NamespacedName>,
}

impl Replica {
    /// Serves agents and watches the cluster until `stop`, and leads while it holds the Lease.
    async fn run(
        &self,
        candidate: Candidate,
        (agents, access): (&AgentsArgs, &Arc<Access>),
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        // Agents are served until the term has ended, which is after `stop`, because they still need the outcomes of
        // its last Bindings.
        let ended = CancellationToken::new();
        let agents = agents::listen(&self.cluster, agents, access, candidate.identity(), ended.clone()).await;
        let agents = agents.context("failed to listen on --agents-address")?;
        let watching = tokio::spawn(watch::run(self.cluster.clone(), self.client.clone(), ended.clone()));
        self.lead(candidate, agents.as_ref(), stop).await;
        ended.cancel();
        watching.await.context("a watch failed")
    }

    async fn lead(&self, mut candidate: Candidate, agents: Option<&Listening>, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            candidate.hear(self.cluster.with(|index| index.leadership().highest_epoch()));
            let another_leads = || {
                self.readiness.set(LEASE, true);
                self.readiness.set(INVENTORY, self.cluster.with(|index| index.is_listed()));
            };
            let mut held = tokio::select! {
                () = stop.cancelled() => return,
                held = candidate.acquire(another_leads) => held,
            };
            self.reset_readiness(true);
            let in_order = self.term(&candidate, &mut held, agents, stop).await;
            self.reset_readiness(false);
            candidate.lost(&held);
            if stop.is_cancelled() {
                if in_order {
                    candidate.release(held).await;
                } else {
                    tracing::warn!("a Binding may still be under way: the Lease is not released");
                }
                return;
            }
            // A task may outlive the term, and its client must send no write while another replica may lead.
            held.deadline().end();
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Resets the readiness conditions: to those of a leader that does not answer yet, or to those of a standby.
    fn reset_readiness(&self, leads: bool) {
        let is_warm = !leads && self.cluster.with(|index| index.is_listed());
        for (condition, holds) in [(LEASE, leads), (INVENTORY, is_warm), (SERVICE, !leads)] {
            self.readiness.set(condition, holds);
        }
    }

    /// Begins a term that answers no questions yet. Its client sends no write after the Lease's deadline.
    fn new_term(&self, held: &Held) -> Arc<Term> {
        let client = held.deadline().bound(self.client.clone());
        let stop = CancellationToken::new();
        let term = Term::begin(&self.cluster, client, self.metrics.clone(), held.epoch(), stop);
        term.set_lease_uid(held.uid());
        term.set_deadline(held.deadline().clone());
        term.with(|index| {
            index.leadership_mut().await_former_epoch();
            index.nodes().static_nodes().succeed(held.former(), held.since().into_std());
        });
        term
    }

    /// Runs one term as the leader, until the lead is lost or `stop`. Returns true if a successor may start at once,
    /// because no Binding of this term may still be made.
    async fn term(
        &self,
        candidate: &Candidate,
        held: &mut Held,
        agents: Option<&Listening>,
        stop: &CancellationToken,
    ) -> bool {
        let deadline = held.deadline().clone();
        let term = self.new_term(held);
        let lays_out = plugin_layout::begins(&term, self.rights);
        let reading = tokio::spawn(fresh::run(term.clone()));
        let confirming = tokio::spawn(confirm::run(term.clone()));
        let requeueing = tokio::spawn(requeue::run(term.clone()));
        let timing = tokio::spawn(timers::run(term.clone()));
        let filling = tokio::spawn(node_policies::run(term.clone()));
        let succeeding = tokio::spawn(former_epoch::run(term.clone(), self.namespace.clone()));
        let advising = tokio::spawn(another_kind::run(term.clone()));
        let configuring = plugin_layout::run(term.clone(), self.plugin.clone());
        let configuring = tokio::spawn(async move {
            if lays_out {
                configuring.await;
            }
        });
        // A program that ends closes the term, and then waits for its last Bindings.
        let ending = async {
            stop.cancelled().await;
            term.closing.cancel();
            std::future::pending().await
        };
        let mut ending = pin!(ending);
        // The Lease is renewed while the cluster is being listed too, because that may take longer than the Lease
        // lasts.
        let is_listed = tokio::select! {
            () = candidate.renew_until_lost(held, &term.closing) => false,
            () = term.until(ClusterIndex::can_answer) => true,
            never = &mut ending => match never {},
        };
        if is_listed {
            let (epoch, nodes) = term.with(|index| {
                index.take_over();
                (index.leadership().epoch(), index.managed().count())
            });
            held.raise(epoch);
            if let Some(agents) = agents {
                agents.lead(epoch);
            }
            tracing::info!(epoch, nodes, "cluster listed, answering");
            self.current_term.begin(term.clone());
            self.readiness.set(INVENTORY, true);
            tokio::select! {
                () = candidate.renew_until_lost(held, &term.closing) => {}
                never = self.lead_the_service_here(&term) => match never {},
                never = &mut ending => match never {},
            }
        }
        self.current_term.end();
        // After the deadline a successor may lead, so there is no point in waiting for the last Bindings.
        tokio::select! {
            () = term.close() => {}
            () = deadline.passed() => {}
        }
        // Orders stop only now, because the agents need the outcomes of the Bindings that were under way.
        if let Some(agents) = agents {
            agents.follow();
        }
        let in_order = term.with(|index| index.leaves_nothing_under_way());
        term.stop.cancel();
        term.end();
        for task in [reading, confirming, requeueing, timing, filling, succeeding, advising, configuring] {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the term failed");
            }
        }
        in_order && !deadline.has_passed()
    }

    /// Keeps the Service's label on this replica's pod, if the pod is known.
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
    use crate::scheduling::bind::bind;
    use crate::scheduling::binding::Bind;
    use clap::Parser;
    use http::Method;
    use kerf_core::names::PodKey;

    /// A frozen leader: a bind runs before any other task notices that the deadline has passed.
    #[tokio::test]
    async fn a_term_sends_no_binding_after_the_deadline_of_its_lease() {
        let api = ApiStandIn::new();
        let args = ExtenderArgs::parse_from(["kerf-extender", "--identity=a"]);
        let current_term = Arc::default();
        let replica = Replica {
            client: api.client(),
            metrics: Metrics::new().0,
            current_term,
            readiness: Readiness::new(&[]),
            cluster: cluster(&args, PolicySource::default()),
            namespace: args.lease.namespace.clone(),
            rights: args.rights,
            plugin: args.plugin.clone(),
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
