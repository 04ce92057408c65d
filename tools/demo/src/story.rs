//! The demo's acts. Each prints what it does, and fails if a claim does not hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kerf_core::contract::SliceState;
use kerf_core::keys;
use kerf_tests::cluster::{Cluster, wait};

use crate::checks;
use crate::clock::{PodClock, Way};
use crate::screen::Screen;
use kerf_cli::nodes::draw;

/// Plays all acts, and returns the demo's last line.
pub async fn tell(cluster: &Cluster, screen: &Screen) -> anyhow::Result<String> {
    let clock = PodClock::start(cluster.pods());
    let mut asked = BTreeSet::new();
    let first = arrive(cluster, screen, &clock, &mut asked).await?;
    let recut = grow(cluster, screen, &clock, &mut asked, &first).await?;
    let gpus = if recut == 1 { "GPU" } else { "GPUs" };
    refuse(cluster, screen).await?;
    plain_pod_is_untouched(&clock)?;
    let count = asked.len();
    Ok(format!(
        "demo: {count} pods asked, {count} running on the slices they asked for, {recut} {gpus} recut, 1 refused as it should be"
    ))
}

/// Act one: the example pods arrive, and each gets a new slice.
async fn arrive(
    cluster: &Cluster,
    screen: &Screen,
    clock: &PodClock,
    asked: &mut BTreeSet<String>,
) -> anyhow::Result<Held> {
    screen.title("1. Pods ask for GPU memory; nothing is cut yet");
    let mut count = 0;
    for (example, pods, what) in [
        ("mig-small.yaml", 2, "a notebook and a classifier of 5 GB"),
        ("mig-large.yaml", 1, "a fine-tuning job of 40 GB, isolated by hardware"),
        ("detectors.yaml", 7, "seven detectors of 10 GB, isolated by hardware (a Deployment)"),
        ("llm-on-t4.yaml", 2, "two language models of 7 GB that may share by time slices"),
        ("plain.yaml", 1, "and a pod without a GPU, through the default scheduler"),
    ] {
        screen.step(&format!("kubectl apply -f deploy/examples/{example}: {what}"));
        cluster.apply_example(example).await?;
        count += pods;
        clock.all_running(count).await?;
    }
    show(cluster, screen, clock, asked).await?;
    checks::held(cluster)
}

type Held = BTreeMap<String, BTreeSet<String>>;

/// Act two: some pods are deleted and larger ones are created. Idle slices give way, and the other pods keep
/// their devices.
async fn grow(
    cluster: &Cluster,
    screen: &Screen,
    clock: &PodClock,
    asked: &mut BTreeSet<String>,
    before: &Held,
) -> anyhow::Result<usize> {
    screen.title("2. Some detectors go; two jobs of 40 GB come and need the room");
    let leaving = upper_half(cluster, before)?;
    ensure!(!leaving.is_empty(), "no detector lies in the upper half of a GPU");
    let keep = 7 - leaving.len();
    screen.step(&format!("kubectl scale deployment detector --replicas={keep}: their slices stay, idle"));
    scale_down(cluster, clock, &leaving, keep).await?;
    let staying = before.len() - leaving.len() + 1;
    clock.all_running(staying).await?;
    wait(Duration::from_secs(20), "idle slices to be reported", async || {
        Ok(idle(cluster).await? >= leaving.len())
    })
    .await?;
    let cut_before = instances(cluster)?;
    draw_all(cluster, screen).await?;
    screen.step("two pods of 40 GB: idle slices are destroyed, bigger ones cut in their place");
    for name in ["render-a", "render-b"] {
        let manifest = include_str!("../../../deploy/examples/mig-large.yaml").replace("finetune", name);
        cluster.plane().apply(&manifest).await?;
    }
    clock.all_running(staying + 2).await?;
    show(cluster, screen, clock, asked).await?;
    let after = checks::held(cluster)?;
    for (pod, devices) in before.iter().filter(|(pod, _)| !leaving.contains(*pod)) {
        ensure!(after.get(pod) == Some(devices), "{pod} held {devices:?} and now holds {:?}", after.get(pod));
    }
    let untouched = before.len() - leaving.len();
    screen.step(&format!("the other {untouched} pods hold the very devices that they held before"));
    let recut = recut(&cut_before, &instances(cluster)?);
    ensure!(recut > 0, "no GPU was cut anew");
    Ok(recut)
}

/// Act three: a request that no GPU can serve is refused at once, with field and remedy.
async fn refuse(cluster: &Cluster, screen: &Screen) -> anyhow::Result<()> {
    screen.title("3. A request that no GPU can serve");
    screen.step("kubectl apply -f deploy/examples/refused.yaml: limits {gpu-999gb: 1}");
    let error = cluster.apply_example("refused.yaml").await.err().context("the pod was accepted")?;
    let text = format!("{error:#}");
    let message = text.lines().find(|l| l.contains("gpu-999gb")).unwrap_or(&text).trim();
    let message = message.find("Error from server").map_or(message, |at| &message[at..]);
    screen.say(&format!("  {message}"));
    ensure!(
        message.contains("resources.limits[gpu-999gb]") && message.contains("278Gi"),
        "the message does not name field and remedy"
    );
    let plain = cluster.pods().get_opt("greedy").await?;
    ensure!(plain.is_none(), "the refused pod exists");
    Ok(())
}

/// Checks that the pod without a GPU used the default scheduler and has no annotation of kerf's.
fn plain_pod_is_untouched(clock: &PodClock) -> anyhow::Result<()> {
    let way = clock.ways().remove("plain").context("the pod without a GPU is gone")?;
    let text = serde_json::to_string(&way.pod)?;
    let annotations = way.pod.metadata.annotations.clone().unwrap_or_default();
    ensure!(
        annotations.keys().all(|k| !k.starts_with(keys::GROUP)),
        "the plain pod has annotations of kerf's"
    );
    ensure!(
        text.contains("\"schedulerName\":\"default-scheduler\""),
        "the plain pod went to another scheduler"
    );
    Ok(())
}

/// Prints the times of each new pod and all GPUs, and checks every running pod.
async fn show(
    cluster: &Cluster,
    screen: &Screen,
    clock: &PodClock,
    asked: &mut BTreeSet<String>,
) -> anyhow::Result<()> {
    screen.say(&format!("  {:<28} {:<38} {:>9} {:>9}", "pod", "runs on", "bound", "running"));
    for (name, way) in clock.ways() {
        if name == "plain" {
            screen.say(&row(&name, "a node's CPU", &way));
            continue;
        }
        let slices = checks::runs_on_what_it_asked_for(cluster, &way.pod)?;
        if asked.insert(name.clone()) {
            screen.say(&row(&name, &slices.join(", "), &way));
        }
    }
    wait(Duration::from_secs(20), "holders to be reported", async || all_held(cluster).await).await?;
    draw_all(cluster, screen).await
}

fn row(name: &str, slice: &str, way: &Way) -> String {
    let ms = |time: Option<Duration>| time.map_or("-".to_owned(), |t| format!("{} ms", t.as_millis()));
    format!("  {name:<28} {slice:<38} {:>9} {:>9}", ms(way.to_bound()), ms(way.to_running()))
}

async fn draw_all(cluster: &Cluster, screen: &Screen) -> anyhow::Result<()> {
    for node in cluster.nodes() {
        let object = cluster.gpu_node(node.name()).await?;
        if let Some(status) = object.read_status()? {
            let spec = object.read_desired()?;
            for line in draw::node(node.name(), &spec, &status, draw::WIDTH, &draw::coloured) {
                screen.say(&format!("  {line}"));
            }
        }
    }
    Ok(())
}

/// Whether the agents have reported a holder for every device that a kubelet has allocated.
async fn all_held(cluster: &Cluster) -> anyhow::Result<bool> {
    let mut reported = 0;
    for node in cluster.nodes() {
        let status = cluster.gpu_node(node.name()).await?.read_status()?.unwrap_or_default();
        reported += status.slices.iter().filter(|s| s.holder.is_some()).count();
    }
    Ok(reported == checks::held(cluster)?.values().map(BTreeSet::len).sum::<usize>())
}

async fn idle(cluster: &Cluster) -> anyhow::Result<usize> {
    let mut idle = 0;
    for node in cluster.nodes() {
        let status = cluster.gpu_node(node.name()).await?.read_status()?.unwrap_or_default();
        idle += status.slices.iter().filter(|s| s.state == SliceState::Idle).count();
    }
    Ok(idle)
}

/// Detectors whose slices are in the upper half of a GPU.
fn upper_half(cluster: &Cluster, held: &Held) -> anyhow::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for node in cluster.nodes() {
        for slice in node.gpus()?.slices().iter().filter(|s| s.placement.start >= 4) {
            let holds = |(pod, devices): &(&String, &BTreeSet<String>)| {
                pod.starts_with("detector") && slice.mig_uuids.iter().any(|u| devices.contains(u))
            };
            found.extend(held.iter().find(holds).map(|(pod, _)| pod.clone()));
        }
    }
    Ok(found)
}

/// Scales the Deployment so that exactly `leaving` are deleted.
async fn scale_down(
    cluster: &Cluster,
    clock: &PodClock,
    leaving: &BTreeSet<String>,
    keep: usize,
) -> anyhow::Result<()> {
    // The deletion cost makes the ReplicaSet controller choose these pods.
    for pod in leaving {
        let cost = "controller.kubernetes.io/pod-deletion-cost=-1";
        cluster.plane().kubectl(&["annotate", "pod", pod, cost]).await?;
    }
    cluster.plane().kubectl(&["scale", "deployment", "detector", &format!("--replicas={keep}")]).await?;
    let gone = async || Ok(leaving.iter().all(|pod| !clock.ways().contains_key(pod)));
    wait(Duration::from_secs(30), "the detectors to go", gone).await
}

/// All GPU instances, as GPU, MIG UUID and a bit mask of memory slices.
fn instances(cluster: &Cluster) -> anyhow::Result<Vec<(String, String, u32)>> {
    let mut all = Vec::new();
    for node in cluster.nodes() {
        for slice in node.gpus()?.slices() {
            let mask = ((1_u32 << slice.placement.size) - 1) << slice.placement.start;
            all.extend(slice.mig_uuids.iter().map(|u| (slice.gpu_uuid.clone(), u.clone(), mask)));
        }
    }
    Ok(all)
}

/// Counts GPUs on which a new instance covers memory slices of an old one.
fn recut(before: &[(String, String, u32)], after: &[(String, String, u32)]) -> usize {
    let new = after.iter().filter(|(_, uuid, _)| !before.iter().any(|(_, old, _)| old == uuid));
    let over = new.filter(|(gpu, _, mask)| before.iter().any(|(g, _, m)| g == gpu && m & mask != 0));
    over.map(|(gpu, ..)| gpu).collect::<BTreeSet<_>>().len()
}
