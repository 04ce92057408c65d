//! Admission by the real API server: which pods reach the webhook, what its patch does to a pod, and that a dry run has
//! no effect.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, sized_pod, wait};
use kerf_tests::random::Random;
use kube::api::{Api, PostParams};
use serde_json::{Map, Value, json};

const TIMEOUT: Duration = Duration::from_secs(30);

async fn cluster() -> anyhow::Result<Cluster> {
    let nodes = vec![NodeSpec::new("h", Model::H100, 1), NodeSpec::new("t", Model::T4, 1)];
    Cluster::start(ClusterOptions::without_controller_manager(nodes), |_| ()).await
}

fn pod_with_spec(spec: &Value) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec}))?)
}

fn limited(limit: &str) -> anyhow::Result<Pod> {
    pod_with_spec(
        &json!({"containers": [{"name": "main", "image": "none", "resources": {"limits": {limit: "1"}}}]}),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_has_no_effect() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let before = cluster.gpu_node("h").await?.read_desired()?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut ten = limited("gpu-10gb")?;
    ten.metadata.name = Some("dry".to_owned());
    let answered = cluster.pods().create(&dry_run, &ten).await?;
    assert!(
        answered.metadata.annotations.is_some_and(|a| a.contains_key(keys::REQUEST)),
        "it is patched all the same"
    );
    let (apply, manifest) = (["apply", "--dry-run=server", "-f", "-"], with_kind(&ten).to_string());
    let output = cluster.plane().kubectl_output(&apply, &manifest).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A later pod gets the place, because the dry run has reserved nothing.
    cluster.create(&sized_pod("real", "40Gi", "hardware")).await?;
    cluster.running("real").await?;
    assert!(cluster.pods().get_opt("dry").await?.is_none(), "a dry run made a pod");
    assert_eq!(before.slices.len(), 0);
    // The status is written for people, and may come after the pod runs.
    let is_alone = async || {
        let slices = cluster.gpu_node("h").await?.read_desired()?.slices;
        Ok(slices.into_iter().filter_map(|slice| Some(slice.reservation?.pod)).eq(["real".to_owned()]))
    };
    wait(TIMEOUT, "the reservation of the pod, and no other, to be reported", is_alone).await?;
    cluster.stop().await
}

fn with_kind(pod: &Pod) -> Value {
    let mut pod = json!(pod);
    (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
    pod
}

/// A policy by which pods are changed instead of refused.
const LENIENT: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: lenient}
spec:
  defaultIsolation: memory
  isolation: {hardware: [mig, whole], memory: [mig, mps, whole], none: [time-slicing, mps, mig, whole]}
  nodeName: affinity
  environment: remove
  runtimeClassName: nvidia
  preemption: {movableByDefault: true}
";

/// A cluster with two nodes, `h` and `i`, under that policy.
async fn lenient() -> anyhow::Result<Cluster> {
    let nodes = vec![NodeSpec::new("h", Model::H100, 1), NodeSpec::new("i", Model::H100, 1)];
    let cluster = Cluster::start(ClusterOptions::without_controller_manager(nodes), |_| ()).await?;
    let class = "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: runc}";
    cluster.plane().apply(class).await?;
    std::fs::write(cluster.policy_file(), LENIENT)?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let in_force = async || {
        let pod = cluster.pods().create(&dry_run, &limited("gpu-10gb")?).await?;
        Ok(pod.spec.is_some_and(|spec| spec.runtime_class_name.is_some()))
    };
    wait(TIMEOUT, "the policy to be in force", in_force).await?;
    Ok(cluster)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_a_preset_node_and_dangerous_variables_runs_if_the_policy_changes_it() -> anyhow::Result<()>
{
    let cluster = lenient().await?;
    for node in ["i", "h"] {
        let env = json!([
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "CUDA_MPS_PIPE_DIRECTORY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "LANG", "value": "C"},
        ]);
        let main =
            json!({"name": "main", "image": "none", "env": env, "resources": {"limits": {"gpu-10gb": "1"}}});
        let mut preset = with_kind(&pod_with_spec(
            &json!({"nodeName": node, "containers": [main], "terminationGracePeriodSeconds": 0}),
        )?);
        preset["metadata"]["name"] = json!(format!("on-{node}"));
        let output = cluster.plane().kubectl_output(&["create", "-f", "-"], &preset.to_string()).await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{said}");
        for name in ["NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"] {
            assert!(said.contains(&format!("Warning: container main: env[{name}] was taken out")), "{said}");
        }
        let pod = cluster.running(&format!("on-{node}")).await?;
        let spec = pod.spec.context("it has no spec")?;
        assert_eq!(spec.node_name.as_deref(), Some(node));
        assert_eq!(spec.runtime_class_name.as_deref(), Some("nvidia"));
        let names: Vec<String> =
            spec.containers[0].env.iter().flatten().map(|variable| variable.name.clone()).collect();
        assert_eq!(names, ["LANG"]);
        let movable = pod.metadata.annotations.unwrap_or_default().remove(keys::MOVABLE);
        assert_eq!(movable.as_deref(), Some("true"));
    }
    cluster.stop().await
}

/// A random element of a list.
fn one<T: Clone>(random: &mut Random, of: &[T]) -> T {
    let place = usize::try_from(random.draw() >> 33).unwrap_or_default() % of.len();
    of[place].clone()
}

fn container(random: &mut Random, name: &str, annotations: &mut Map<String, Value>) -> Value {
    let mut resources = json!({"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}});
    let size = one(random, &[1, 4, 10, 13, 20, 40, 80]);
    let names = [
        format!("gpu-{size}gb"),
        format!("kerf.dev/gpu-{size}gb"),
        "nvidia.com/mig-1g.10gb".to_owned(),
        "nvidia.com/mig-1g.10gb.me".to_owned(),
        "nvidia.com/mig-1c.3g.40gb".to_owned(),
        "nvidia.com/gpu-8gb".to_owned(),
        "nvidia.com/gpu-4gb.shared".to_owned(),
    ];
    let (limit, count) = (one(random, &names), one(random, &["1", "1", "2", "3"]));
    match random.draw() >> 61 {
        0 | 1 => resources["limits"][&limit] = json!(count),
        2 => resources["requests"][&limit] = json!(count),
        3 => {
            resources["limits"][&limit] = json!(count);
            resources["requests"][&limit] = json!(count);
        }
        4 | 5 => {
            let key = format!("{}.{name}", keys::GPU_MEMORY);
            annotations.insert(key, json!(format!("{size}{}", one(random, &["Gi", "G", "Mi"]))));
        }
        _ => {}
    }
    let variables = [
        json!([]),
        json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A", "value": "b"}]),
        json!([{"name": "A", "value": "b"}, {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps"}]),
    ];
    json!({"name": name, "image": "none", "resources": resources, "env": one(random, &variables)})
}

/// A pod that the API server accepts, except perhaps for what it asks of kerf.
fn random_pod(random: &mut Random) -> Value {
    let mut annotations = Map::from_iter([("note".to_owned(), json!("kept"))]);
    let apps = one(random, &[1, 1, 2, 3]);
    let app = |random: &mut Random, annotations: &mut _, place| {
        container(random, &format!("c{place}"), annotations)
    };
    let containers: Vec<Value> = (0..apps).map(|place| app(random, &mut annotations, place)).collect();
    let mut spec = json!({"containers": containers});
    if one(random, &[true, false, false]) {
        let mut load = container(random, "load", &mut annotations);
        if one(random, &[true, false]) {
            load["restartPolicy"] = json!("Always");
        }
        spec["initContainers"] = json!([load]);
    }
    let optional = [
        (keys::ISOLATION, ["hardware", "memory", "none", "none"]),
        (keys::GPU_MODEL, ["H100-80GB", "T4-16GB,H100-80GB", "B200-180GB", "H100-80GB"]),
        (keys::GPU_MODEL_NOT, ["T4-16GB", "A100-40GB,L4-24GB", "H100-80GB", "T4-16GB"]),
        (keys::MEMORY_MATCH, ["strict", "nominal", "nominal", "nominal"]),
    ];
    for (key, values) in optional {
        if one(random, &[true, false, false, false]) {
            annotations.insert(key.to_owned(), json!(one(random, &values)));
        }
    }
    let zone = json!({"key": "zone", "operator": "In", "values": ["a", "b"]});
    let field = json!({"key": "metadata.name", "operator": "NotIn", "values": ["n1"]});
    let terms = [
        json!([{"matchExpressions": [zone]}, {"matchFields": [field]}]),
        json!([{"matchExpressions": [zone], "matchFields": [field]}, {}]),
    ];
    if one(random, &[true, false]) {
        let required = json!({"nodeSelectorTerms": one(random, &terms)});
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = required;
    }
    let tolerations =
        [json!([]), json!([{"key": "spot", "operator": "Exists"}]), json!([{"operator": "Exists"}])];
    spec["tolerations"] = one(random, &tolerations);
    if one(random, &[true, false, false, false]) {
        spec["nodeName"] = json!(one(random, &["h", "nowhere"]));
    }
    spec["schedulerName"] =
        json!(one(random, &["default-scheduler", "kerf-scheduler", "kerf-scheduler", "batch"]));
    json!({"metadata": {"generateName": "random-", "annotations": annotations}, "spec": spec})
}

/// Every pod that the webhook admits is valid: the API server itself refuses none of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_patched_is_valid() -> anyhow::Result<()> {
    let cluster = lenient().await?;
    let mut random = Random::new(6);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let pods: Api<Pod> = cluster.pods();
    let (mut patched, mut refused) = (0, 0);
    for _ in 0..600 {
        let pod = random_pod(&mut random);
        match pods.create(&dry_run, &serde_json::from_value(pod.clone())?).await {
            Ok(pod) => {
                patched += u32::from(pod.metadata.annotations.is_some_and(|a| a.contains_key(keys::REQUEST)));
            }
            Err(kube::Error::Api(status)) => {
                let ours = status.message.contains("admission webhook \"pods.kerf.dev\" denied the request");
                ensure!(ours, "{} for {pod:#}", status.message);
                refused += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    assert!(patched > 100 && refused > 50, "{patched} were patched and {refused} refused");
    cluster.stop().await
}
