//! Wiring: the tasks of the agent and the channels between them.

mod checkpoint_lock;
mod leaving;
mod reconcilers;

use crate::applied_settings::AppliedSettings;
use crate::args::{Action, Args};
use crate::conflicting::{before, upgrade};
use crate::device_plugin::Allocations;
use crate::ending::{Ending, Session};
use crate::event::{Event, Events};
use crate::executor::Executor;
use crate::gpu::GpuThread;
use crate::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use crate::metrics::Metrics;
use crate::node::{Node, Restored, Settings, Xids};
use crate::node_object::Counts;
use crate::processes::Host;
use crate::reconcile::{Outlets, Reconciler};
use crate::recorder::Recorder;
use crate::{gfd_labels, link, node_object, pod_lookup, pod_resources, pod_watch, policy_watch, publisher};
use anyhow::Context as _;
use kerf_core::contract::GpuNodeStatus;
use kerf_core::gfd_labels::GfdLabels;
use kerf_core::keys;
use kerf_core::ledger::{Limits, NodeState};
use kerf_protocol::client::{Network, Secured};
use kerf_runtime::admin::{self, Readiness};
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::shutdown::CancellationToken;
use kerf_runtime::tls::PublishedAuthority;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tonic::transport::Channel;

const POD_RESOURCES: &str = "pod-resources";

/// How long a session that ended by itself may take to write its last events and status.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

pub async fn run(args: Args, stop: CancellationToken) -> anyhow::Result<()> {
    let client = args.client.client().await.context("--kubeconfig")?;
    if args.action == Action::Leave {
        return leaving::leave(args, client).await;
    }
    let thread = GpuThread::start(Box::new(reconcilers::opener(&args)), args.call_timeout)
        .context("failed to start the thread for NVML")?;
    let (operator, mut shown) = watch::channel(upgrade::Shown::default());
    let report = move |now| {
        operator.send_if_modified(|shown| {
            let differs = *shown != now;
            *shown = now;
            differs
        });
    };
    let node = (client.clone(), args.node.clone());
    let watching = tokio::spawn(upgrade::watch(node.0, node.1, report, stop.clone()));
    let session = Session::until(&stop);
    tokio::select! {
        ran = run_with(&args, client, thread, shown.clone(), &session) => ran?,
        () = overdue(&session) => tracing::warn!("not all that the session had begun was finished in time"),
    }
    match session.ending() {
        None => {}
        Some(ending @ Ending::Upgrade(_)) => {
            tracing::info!("{ending}");
            let is_over = shown.wait_for(|shown| shown.upgrade.is_none());
            // Stay alive meanwhile: nothing is wrong with this process, and a new one started now would have the old
            // driver's root in its container.
            tokio::select! {
                _ = stop.run_until_cancelled(is_over) => {}
                () = checkpoint_lock::live(&args, &stop) => {}
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

/// Returns once a session that ended by itself has had its time to finish. The process must restart in any case, so it
/// does not wait longer.
async fn overdue(session: &Session) {
    session.stop().cancelled().await;
    tokio::time::sleep(FINISH_TIMEOUT).await;
    if session.ending().is_none() {
        std::future::pending::<()>().await;
    }
}

async fn run_with(
    args: &Args,
    client: Client,
    thread: GpuThread,
    operator: watch::Receiver<upgrade::Shown>,
    session: &Session,
) -> anyhow::Result<()> {
    let stop = session.stop().clone();
    let Some((checkpoint_writer, left)) = checkpoint_lock::open(args, &stop).await? else { return Ok(()) };
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(client.clone());
    let gpu_nodes = Api::<GpuNode>::all(client.clone());
    let was_here = left.as_ref().and_then(Restored::plugin_was_here);
    let plugin_before = before::evidence((&nodes, &args.node), was_here).await;
    let restored = left.unwrap_or_default();
    let (readiness, mut registry) = (Readiness::new(&["nvml", "kubelet", "spec"]), Registry::default());
    let metrics = Metrics::register(&mut registry);
    let (recorder, writer) = Recorder::new(client.clone(), args.node.clone());
    let (outlets, inlets, queue) = channels(args, readiness.clone(), metrics, recorder);
    let (name, events) = (args.node.to_string(), outlets.events.clone());
    let mut tasks = JoinSet::new();
    // The recorder outlives the session, so that the event with the reason for the session's end is still written.
    tasks.spawn(writer.run(session.process().clone()));
    ask_kubelet(&mut tasks, args, &outlets, inlets.acknowledgements, &stop)?;
    let (node, watched) = (args.node.clone(), (gpu_nodes.clone(), nodes.clone()));
    let (show, shown) = mpsc::unbounded_channel();
    tasks.spawn(policy_watch::watch(watched, node.clone(), events.clone(), show, stop.clone()));
    let want_holders = Arc::clone(&outlets.want_holders);
    tasks.spawn(pod_watch::watch(client.clone(), node, events, want_holders, stop.clone()));
    let published = (gpu_nodes, name.clone());
    let interval = args.status_interval;
    tasks.spawn(publisher::publish(published, inlets.statuses, shown, interval, session.clone()));
    let process = link::Process {
        node: args.node.clone(),
        boot_id: checkpoint_writer.boot_id().to_owned(),
        epoch: restored.ledger.epoch,
    };
    let (network, events) = (network(args, &client)?, outlets.events.clone());
    tasks.spawn(link::run(process, nodes.clone(), network, inlets.reported, events, stop.clone()));
    let (node, events) = (args.node.clone(), outlets.events.clone());
    tasks.spawn(pod_lookup::look_up(client.clone(), node, inlets.look_up, events, stop.clone()));
    tasks.spawn(pass_on(operator, outlets.events.clone(), stop.clone()));
    tasks.spawn(node_object::keep_labels(nodes.clone(), name.clone(), inlets.labels, stop.clone()));
    let pace = (!args.no_gfd_labels).then_some(gfd_labels::Pace::OF_AN_AGENT);
    tasks.spawn(gfd_labels::keep((nodes.clone(), name.clone()), inlets.gfd_labels, pace, stop.clone()));
    tasks.spawn(node_object::show_counts(nodes, name, inlets.counts, stop.clone()));
    reconcilers::start(
        &mut tasks,
        args,
        &client,
        (&thread, &outlets, &restored),
        plugin_before,
        inlets.desired,
        &stop,
    )?;
    let applied = AppliedSettings::from_checkpoint(&restored);
    let mut node = Node::new(settings(args));
    node.restore(&restored, Instant::now());
    let host = Host { proc: args.proc_dir.clone(), cgroups: args.cgroup_dir.clone() };
    let executor = Executor::new(thread, checkpoint_writer, host);
    let reconciler = Reconciler::new((node, applied), outlets, executor, args.resync);
    tasks.spawn(reconciler.run(queue, session.clone()));
    serve_admin(args, readiness, registry, tasks, stop).await
}

fn network(args: &Args, client: &Client) -> anyhow::Result<impl Network + use<>> {
    let namespace = &args.extender_namespace;
    let authority = PublishedAuthority::new(client, namespace, keys::EXTENDER_AUTHORITY);
    let authority = move || {
        let authority = authority.clone();
        async move { authority.client_config().await.map_err(io::Error::other) }
    };
    let name = format!("kerf-extender.{namespace}.svc");
    let network = Secured::new(args.extender.clone(), &name, args.extender_token.clone(), authority);
    network.context("--extender-namespace")
}

/// Forwards what GPU Operator does to the loop until `stop`.
async fn pass_on(mut operator: watch::Receiver<upgrade::Shown>, events: Events, stop: CancellationToken) {
    // Send the current state first, because an upgrade may have begun before this task.
    operator.mark_changed();
    while let Some(Ok(())) = stop.run_until_cancelled(operator.changed()).await {
        let upgrade::Shown { upgrade, clients } = operator.borrow_and_update().clone();
        events.send(Event::Upgrade(upgrade));
        events.send(Event::Deployed(clients));
    }
    // A task that ends early counts as a fault, so wait even if the sender is gone.
    stop.cancelled().await;
}

fn settings(args: &Args) -> Settings {
    Settings {
        mps: Some(args.mps_dir.clone()),
        access: true,
        detect_conflicts: true,
        pause_clients: !args.no_pause_dcgm,
        recover_after: args.recover_after,
        xids: Xids { disabled: args.disable_healthchecks.clone(), enabled: args.enable_healthchecks.clone() },
        probe: args.resync,
        limits: Limits { request: args.request_lifetime, ..Limits::default() },
    }
}

/// The receiving ends of the outlets.
struct Inlets {
    acknowledgements: watch::Receiver<pod_resources::Watched>,
    statuses: watch::Receiver<GpuNodeStatus>,
    reported: watch::Receiver<Arc<NodeState>>,
    look_up: mpsc::UnboundedReceiver<pod_lookup::Wanted>,
    counts: watch::Receiver<Counts>,
    labels: watch::Receiver<node_object::Labels>,
    gfd_labels: watch::Receiver<GfdLabels>,
    desired: crate::reconcilers::Inputs,
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
    let (reported, node_states) = watch::channel(Arc::default());
    let (look_up, looked_up) = mpsc::unbounded_channel();
    let (counts, shown) = watch::channel(Counts::new());
    let (labels, kept) = watch::channel(node_object::Labels::new());
    let (gfd_labels, gfd_shown) = watch::channel(GfdLabels::new());
    let (desired, to_apply) = crate::reconcilers::channels();
    let outlets = Outlets {
        events,
        allocations: Allocations::default(),
        plugin_folder: args.device_plugin_dir.clone(),
        want_holders: Arc::new(Notify::new()),
        watched,
        status,
        reported,
        look_up,
        counts,
        labels,
        gfd_labels,
        desired,
        recorder,
        readiness,
        metrics,
    };
    let inlets = Inlets {
        acknowledgements,
        statuses,
        reported: node_states,
        look_up: looked_up,
        counts: shown,
        labels: kept,
        gfd_labels: gfd_shown,
        desired: to_apply,
    };
    (outlets, inlets, queue)
}

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

/// Serves the admin address until `stop`, then waits for the tasks. A task that ends earlier is a fault and ends the
/// agent.
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
