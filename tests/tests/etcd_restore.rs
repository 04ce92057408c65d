//! etcd is put back to an earlier state: the API server has forgotten pods, Bindings and leaders. The agents have not.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::Shape;
use kerf_core::names::GpuUuid;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NAMESPACE, NodeSpec, sized_pod, wait};
use kerf_tests::kubelet::PodKey;
use kerf_tests::oracle::Truth;
use kerf_tests::pods::assignment_of;
use kube::Api;
use kube::api::ListParams;

const TIMEOUT: Duration = Duration::from_mins(1);
/// After it a pod is tried again.
const SCHEDULERS_BACKOFF: Duration = Duration::from_secs(10);
const SCHEDULER: &str = "kerf-scheduler";
/// How many slices the nodes have together.
const SLICES: usize = 14;

fn asking(name: &str) -> Pod {
    sized_pod(name, "10Gi", "hardware")
}

/// The epoch of the Lease.
async fn epoch(cluster: &Cluster) -> anyhow::Result<u64> {
    let leases = Api::<Lease>::namespaced(cluster.plane().client(), NAMESPACE);
    let spec = leases.get("kerf-extender").await?.spec.context("the Lease is empty")?;
    Ok(u64::try_from(spec.lease_transitions.unwrap_or_default())? + 1)
}

/// The highest epoch on the agents' disks.
fn recorded_epoch(cluster: &Cluster) -> anyhow::Result<u64> {
    let epochs = cluster.nodes().iter().map(|node| node.node().recorded_epoch());
    epochs.collect::<anyhow::Result<Vec<_>>>()?.into_iter().max().context("there are no agents")
}

/// The node on which a pod has devices by its kubelet, and which.
fn held(cluster: &Cluster, pod: &str) -> Option<(String, String)> {
    let key = PodKey::new("default", pod);
    cluster.nodes().iter().find_map(|node| {
        let devices = node.kubelet().allocations().remove(&key)?;
        Some((node.name().to_owned(), format!("{devices:?}")))
    })
}

/// Restarts all programs that watch, as Kubernetes asks after a restore of etcd, but not the kubelets.
async fn restart_watchers(cluster: &mut Cluster) -> anyhow::Result<()> {
    for node in cluster.nodes_mut() {
        node.agent().restart()?;
    }
    cluster.extender().restart()?;
    cluster.webhook().restart()?;
    cluster.plane_mut().restart(SCHEDULER).await
}

/// The places that bound pods were assigned, with the pods' names.
async fn places(cluster: &Cluster) -> anyhow::Result<BTreeMap<(GpuUuid, Shape), String>> {
    let pods = cluster.pods().list(&ListParams::default()).await?.items;
    let bound = pods.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
    let mut places = BTreeMap::new();
    for pod in bound {
        let name = pod.metadata.name.clone().unwrap_or_default();
        for slice in assignment_of(pod)?.slices {
            let before = places.insert((slice.gpu, slice.shape), name.clone());
            ensure!(before.is_none(), "{before:?} and {name} were assigned the same place");
        }
    }
    Ok(places)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_an_etcd_restore_has_forgotten_is_not_given_out_again() -> anyhow::Result<()> {
    let nodes = ["h1", "h2"].map(|name| NodeSpec::new(name, Model::H100, 1));
    let mut cluster =
        Cluster::start(ClusterOptions::without_controller_manager(nodes.into()), |_| ()).await?;
    cluster.create(&asking("stays")).await?;
    cluster.running("stays").await?;
    // Without a scheduler the pod is bound only after etcd was copied, so the copy does not have its Binding.
    cluster.plane_mut().child(SCHEDULER)?.kill()?;
    cluster.create(&asking("again")).await?;
    let saved = epoch(&cluster).await?;
    let before = cluster.plane_mut().save_etcd("etcd-before").await?;
    cluster.plane_mut().restart(SCHEDULER).await?;
    cluster.running("again").await?;
    let first = epoch(&cluster).await?;
    for _ in 0..3 {
        let last = epoch(&cluster).await?;
        cluster.extender().restart()?;
        let follows = async || Ok(epoch(&cluster).await? > last);
        wait(TIMEOUT, "the next leader", follows).await?;
    }
    // This pod is reserved in the last epoch, so its agent has that epoch on disk.
    cluster.create(&asking("forgotten")).await?;
    cluster.running("forgotten").await?;
    let heard = recorded_epoch(&cluster)?;
    ensure!(heard >= first + 3, "agents have recorded epoch {heard}, the first was {first}");
    let kept = ["stays", "again"].map(|pod| (pod, held(&cluster, pod)));
    ensure!(kept.iter().all(|(_, devices)| devices.is_some()), "{kept:?}");
    let all = places(&cluster).await?;
    let (in_use, _) = all.iter().find(|(_, pod)| *pod == "forgotten").context("it has no place")?;

    // A leader that lived on would write its Lease as it was; the next leader must find an older Lease.
    cluster.extender().kill()?;
    cluster.plane_mut().restore_etcd(&before).await?;
    ensure!(cluster.pods().get_opt("forgotten").await?.is_none(), "nothing was put back");
    ensure!(epoch(&cluster).await? == saved, "the Lease was not put back");
    restart_watchers(&mut cluster).await?;
    // With the other two there are as many pods as slices. All but the last are bound as long as the forgotten pod
    // runs.
    let names: Vec<String> = (kept.len()..SLICES).map(|number| format!("new-{number}")).collect();
    for name in &names {
        cluster.create(&asking(name)).await?;
    }
    let but_one = async || Ok(places(&cluster).await?.len() == SLICES - 1);
    wait(TIMEOUT, "all pods but one to be bound", but_one).await?;
    ensure!(held(&cluster, "forgotten").is_some(), "its kubelet has observed that it is gone");
    tokio::time::sleep(SCHEDULERS_BACKOFF).await;
    let taken = places(&cluster).await?;
    ensure!(!taken.contains_key(in_use), "{in_use:?} is given to {:?} while a pod runs there", taken[in_use]);

    for node in cluster.nodes() {
        node.kubelet().restart().await?;
    }
    for name in &names {
        cluster.running(name).await?;
    }
    for (pod, devices) in &kept {
        let now = held(&cluster, pod);
        ensure!(now == *devices, "{pod} held {devices:?}, and now {now:?}");
    }
    ensure!(places(&cluster).await?.contains_key(in_use), "{in_use:?} is lost");
    let epochs = recorded_epoch(&cluster)?;
    ensure!(epochs > heard, "pods are bound in epoch {epochs}, and {heard} was recorded before");
    let truth = Truth::observe(&cluster).await?;
    let problems = [truth.violations(), truth.unexplained()].concat();
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    cluster.stop().await
}
