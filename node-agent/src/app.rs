//! Wiring: the tasks of the agent and the channels between them.

mod keepers;
mod leaving;
mod record;

pub use keepers::Keepers;

use crate::args::{Action, Args};
use crate::device_plugin::Allocations;
use crate::ending::{Ending, Session};
use crate::executor::Executor;
use crate::gpu::GpuThread;
use crate::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use crate::metrics::Metrics;
use crate::node::{Node, Recalled, Settings, Xids};
use crate::others::{before, upgrade};
use crate::processes::Host;
use crate::reconcile::{Counts, Event, Events, Outlets, Reconciler};
use crate::recorder::Recorder;
use crate::recording::Before;
use crate::standing::Standing;
use crate::{gfd_labels, node_object, pod_resources, pod_watch, publisher, spec_watch};
use anyhow::Context as _;
use keepers::Orders;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus};
use kerf_core::gfd_labels::GfdLabels;
use kerf_core::names::NodeName;
use kerf_runtime::admin::{self, Readiness};
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::shutdown::CancellationToken;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tonic::transport::Channel;

/// The folder below the kubelet's.
const POD_RESOURCES: &str = "pod-resources";

/// The wait between two tries to read the GpuNode at start.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// How long a session that ended by itself may take to write what was told last.
const FINISHED_WITHIN: Duration = Duration::from_secs(5);

/// How long the first look at the GpuNode may take where the agent has a record of its own: it registers its names by
/// that, and after a boot makes slices anew. The API server may run on such a node itself.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// Runs the agent until `stop`.
pub async fn run(args: Args, stop: CancellationToken) -> anyhow::Result<()> {
    let client = args.client.client().await.context("--kubeconfig")?;
    if args.action == Action::Leave {
        return leaving::leave(args, client).await;
    }
    let thread = GpuThread::start(Box::new(keepers::opener(&args)), args.call_timeout)
        .context("failed to start the thread for NVML")?;
    let (operator, mut told) = watch::channel(upgrade::Told::default());
    let telling = move |now| {
        operator.send_if_modified(|told| {
            let differs = *told != now;
            *told = now;
            differs
        });
    };
    let node = (client.clone(), args.node.clone());
    let watching = tokio::spawn(upgrade::watch(node.0, node.1, telling, stop.clone()));
    let session = Session::until(&stop);
    tokio::select! {
        ran = run_with(&args, client, thread, told.clone(), &session) => ran?,
        () = overdue(&session) => tracing::warn!("not all that the session had begun was finished in time"),
    }
    match session.ending() {
        None => {}
        Some(ending @ Ending::Upgrade(_)) => {
            tracing::info!("{ending}");
            let is_over = told.wait_for(|told| told.upgrade.is_none());
            // Nothing is wrong with this process meanwhile, and there is none to begin: its container would have the old driver's root.
            tokio::select! {
                _ = stop.run_until_cancelled(is_over) => {}
                () = record::live(&args, &stop) => {}
            }
            tracing::info!("the driver's upgrade is over; the agent ends, and a new process serves the node");
        }
        Some(ending) => {
            tracing::error!("the agent ends: {ending}");
            anyhow::bail!("{ending}");
        }
    }
    watching.abort();
    Ok(())
}

/// Returns when a session that ended by itself had its time to finish: a process that has to be started anew ends in any case.
async fn overdue(session: &Session) {
    session.stop().cancelled().await;
    tokio::time::sleep(FINISHED_WITHIN).await;
    if session.ending().is_none() {
        std::future::pending::<()>().await;
    }
}

/// Runs the agent on these GPUs until the session ends.
async fn run_with(
    args: &Args,
    client: Client,
    thread: GpuThread,
    operator: watch::Receiver<upgrade::Told>,
    session: &Session,
) -> anyhow::Result<()> {
    let stop = session.stop().clone();
    let Some((recording, left)) = record::open(args, &stop).await? else { return Ok(()) };
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(client.clone());
    let gpu_nodes = Api::<GpuNode>::all(client.clone());
    let (patience, has_record) = (patience(&left), matches!(left, Before::Recorded(_)));
    let object = first_look(&gpu_nodes, &nodes, &args.node, patience, &stop).await;
    let (before, recalled) = known(left, object.as_ref());
    if stop.is_cancelled() {
        return Ok(());
    }
    let plugin_before = before::evidence((&nodes, &args.node), has_record, before.as_ref()).await;
    let (readiness, mut registry) = (Readiness::new(&["nvml", "kubelet", "spec"]), Registry::default());
    let metrics = Metrics::register(&mut registry);
    let (recorder, writer) = Recorder::new(client.clone(), args.node.clone());
    let (outlets, inlets, queue) = channels(args, readiness.clone(), metrics, recorder);
    let (name, events) = (args.node.to_string(), outlets.events.clone());
    let mut tasks = JoinSet::new();
    // What was told last is written after the session too: why it has ended.
    tasks.spawn(writer.run(session.process().clone()));
    ask_kubelet(&mut tasks, args, &outlets, inlets.acknowledgements, &stop)?;
    let (node, watched) = (args.node.clone(), (gpu_nodes.clone(), nodes.clone()));
    let (show, shown) = mpsc::unbounded_channel();
    tasks.spawn(spec_watch::watch(watched, node.clone(), events.clone(), show, stop.clone()));
    let want_holders = Arc::clone(&outlets.want_holders);
    tasks.spawn(pod_watch::watch(client.clone(), node, events, want_holders, stop.clone()));
    let published = (gpu_nodes, name.clone());
    tasks.spawn(publisher::publish(published, inlets.statuses, shown, before.clone(), session.clone()));
    tasks.spawn(pass_on(operator, outlets.events.clone(), stop.clone()));
    tasks.spawn(node_object::keep_labels(nodes.clone(), name.clone(), inlets.labels, stop.clone()));
    let pace = (!args.no_gfd_labels).then_some(gfd_labels::Pace::OF_AN_AGENT);
    tasks.spawn(gfd_labels::keep((nodes.clone(), name.clone()), inlets.gfd_labels, pace, stop.clone()));
    tasks.spawn(node_object::show_counts(nodes, name, inlets.counts, stop.clone()));
    keepers::start(
        &mut tasks,
        args,
        &client,
        (&thread, &outlets, &recalled),
        plugin_before,
        inlets.orders,
        &stop,
    )?;
    let standing = Standing::of(&recalled);
    let mut node = Node::remembering(before.as_ref(), settings(args));
    node.recall(recalled, Instant::now());
    let host = Host { proc: args.proc_dir.clone(), cgroups: args.cgroup_dir.clone() };
    let executor = Executor::new(thread, recording, host);
    let reconciler = Reconciler::new((node, standing), outlets, executor, args.resync);
    tasks.spawn(reconciler.run(queue, session.clone()));
    serve_admin(args, readiness, registry, tasks, stop).await
}

/// Tells the loop of GPU Operator until `stop`.
async fn pass_on(mut operator: watch::Receiver<upgrade::Told>, events: Events, stop: CancellationToken) {
    operator.mark_changed();
    while let Some(Ok(())) = stop.run_until_cancelled(operator.changed()).await {
        let upgrade::Told { upgrade, clients } = operator.borrow_and_update().clone();
        events.send(Event::Upgrade(upgrade));
        events.send(Event::Deployed(clients));
    }
    stop.cancelled().await;
}

fn settings(args: &Args) -> Settings {
    Settings {
        mps: Some(args.mps_dir.clone()),
        access: true,
        others: true,
        pause_clients: !args.no_pause_dcgm,
        recover_after: args.recover_after,
        xids: Xids { disabled: args.disable_healthchecks.clone(), enabled: args.enable_healthchecks.clone() },
        probe: args.resync,
        orders: false,
    }
}

/// The other ends of the outlets.
struct Inlets {
    acknowledgements: watch::Receiver<pod_resources::Watched>,
    statuses: watch::Receiver<GpuNodeStatus>,
    counts: watch::Receiver<Counts>,
    labels: watch::Receiver<node_object::Labels>,
    gfd_labels: watch::Receiver<GfdLabels>,
    orders: Orders,
}

fn channels(
    args: &Args,
    readiness: Readiness,
    metrics: Metrics,
    recorder: Recorder,
) -> (Outlets, Inlets, mpsc::UnboundedReceiver<Event>) {
    let (events, queue) = Events::channel();
    let (watched, acknowledgements) = watch::channel(pod_resources::Watched::default());
    let (status, statuses) = watch::channel(GpuNodeStatus::default());
    let (counts, shown) = watch::channel(Counts::new());
    let (labels, kept) = watch::channel(node_object::Labels::new());
    let (gfd_labels, told) = watch::channel(GfdLabels::new());
    let (keepers, orders) = keepers::channels();
    let outlets = Outlets {
        events,
        allocations: Allocations::default(),
        plugin_folder: args.device_plugin_dir.clone(),
        want_holders: Arc::new(Notify::new()),
        watched,
        status,
        counts,
        labels,
        gfd_labels,
        keepers,
        recorder,
        readiness,
        metrics,
    };
    let inlets = Inlets { acknowledgements, statuses, counts: shown, labels: kept, gfd_labels: told, orders };
    (outlets, inlets, queue)
}

/// Starts the two tasks that ask the kubelet.
fn ask_kubelet(
    tasks: &mut JoinSet<()>,
    args: &Args,
    outlets: &Outlets,
    acknowledgements: watch::Receiver<pod_resources::Watched>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let kubelet = pod_resources_of(args)?;
    let (wanted, events) = (Arc::clone(&outlets.want_holders), outlets.events.clone());
    let allocations = outlets.allocations.clone();
    tasks.spawn(pod_resources::list_holders(
        (kubelet.clone(), args.device_plugin_dir.clone()),
        wanted,
        allocations,
        events.clone(),
        stop.clone(),
    ));
    tasks.spawn(pod_resources::watch_allocatable(kubelet, acknowledgements, events, stop.clone()));
    Ok(())
}

fn pod_resources_of(args: &Args) -> anyhow::Result<PodResourcesListerClient<Channel>> {
    pod_resources::client(&args.kubelet_dir.join(POD_RESOURCES)).context("--kubelet-dir")
}

/// Serves the admin address until `stop`, and then waits for the tasks. One that ends early is a fault.
async fn serve_admin(
    args: &Args,
    readiness: Readiness,
    registry: Registry,
    mut tasks: JoinSet<()>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let serving = admin::serve(args.admin.admin_address, readiness, registry, stop.clone());
    let early = async {
        while let Some(ended) = tasks.join_next().await {
            if !stop.is_cancelled() {
                return ended
                    .context("a task of the agent's failed")
                    .and_then(|()| anyhow::bail!("a task of the agent's ended before its time"));
            }
        }
        Ok(())
    };
    tokio::pin!(early);
    let result = tokio::select! {
        result = serving => result.context("--admin-address"),
        result = &mut early => result,
    };
    stop.cancel();
    result?;
    early.await
}

/// How long the first look at the GpuNode may take; without a record nothing is known but by it.
fn patience(recorded: &Before) -> Option<Duration> {
    matches!(recorded, Before::Recorded(_)).then_some(FIRST_LOOK)
}

/// What the agent wrote into its GpuNode before, and what is recalled: where the record cannot be read, what the GpuNode tells.
fn known(recorded: Before, object: Option<&GpuNode>) -> (Option<GpuNodeStatus>, Recalled) {
    let status = object.map(GpuNode::read_status).transpose().unwrap_or_else(|error| {
        tracing::warn!(%error, "what the agent wrote before its restart cannot be read");
        None
    });
    let status = status.flatten();
    let recalled = match (recorded, object) {
        (Before::Recorded(recalled), _) => *recalled,
        (Before::Unreadable, Some(object)) => {
            let spec = object.read_spec().unwrap_or_else(|error| {
                tracing::error!(%error, "the GpuNode's spec cannot be read; its slices are not made again");
                GpuNodeSpec::default()
            });
            Recalled::from_gpu_node(spec, object.metadata.uid.clone(), status.as_ref())
        }
        (Before::Nothing | Before::Unreadable, _) => Recalled::default(),
    };
    (status, recalled)
}

/// The agent's GpuNode, which is made if it is not there; then it tells nothing. Waits for the API server until `stop`, or
/// as long as it has patience.
async fn first_look(
    api: &Api<GpuNode>,
    nodes: &Api<k8s_openapi::api::core::v1::Node>,
    node: &NodeName,
    patience: Option<Duration>,
    stop: &CancellationToken,
) -> Option<GpuNode> {
    let begun = Instant::now();
    while !stop.is_cancelled() && patience.is_none_or(|patience| begun.elapsed() < patience) {
        match api.get_opt(node.as_str()).await {
            Ok(Some(object)) => return Some(object),
            Ok(None) => {
                let made = spec_watch::ensure(api, nodes, node, stop);
                let left =
                    patience.map_or(Duration::MAX, |patience| patience.saturating_sub(begun.elapsed()));
                // Without a Node the watch goes on trying.
                drop(tokio::time::timeout(left, made).await);
            }
            Err(error) => {
                tracing::warn!(%error, "the GpuNode cannot be read; is the CRD applied? trying again");
                stop.run_until_cancelled(tokio::time::sleep(TRY_AGAIN)).await;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::{client, refusal};

    #[test]
    fn an_agent_with_a_record_does_not_wait_for_the_api_server_for_ever() {
        assert_eq!(patience(&Before::Nothing), None);
        assert_eq!(patience(&Before::Unreadable), None, "nothing else tells what to make again");
        for booted in [false, true] {
            let recalled = Recalled { booted, ..Recalled::default() };
            assert_eq!(patience(&Before::Recorded(Box::new(recalled))), Some(FIRST_LOOK));
        }
    }

    #[tokio::test]
    async fn the_first_look_ends_when_its_time_is_over() {
        let (client, _) = client(|_| refusal(503));
        let (gpu_nodes, nodes) = (Api::all(client.clone()), Api::all(client));
        let (patience, stop) = (Some(Duration::from_millis(50)), CancellationToken::new());
        let seen = first_look(&gpu_nodes, &nodes, &NodeName::new("n1"), patience, &stop).await;
        assert!(seen.is_none());
    }
}
