//! The chart on a real API server with its controllers: what Helm prints, what the API server accepts, upgrade and
//! uninstall. No pod runs except the uninstall's, which the test itself runs with the rights of its service account.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_tests::binaries;
use kerf_tests::chart::{folder, helm_on, kustomize, name_of, objects, said, template};
use kerf_tests::cluster::{NAMESPACE, wait};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::openapi::crds;
use kerf_tests::pods::phase_of;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::process::Command;

const TIMEOUT: Duration = Duration::from_mins(1);

async fn plane() -> anyhow::Result<ControlPlane> {
    ControlPlane::start(ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::default() }).await
}

async fn install(plane: &ControlPlane) -> anyhow::Result<String> {
    said(&helm_on(plane, &["install", "kerf", &folder(), "-n", NAMESPACE, "--create-namespace"]).await?)
}

async fn exists(plane: &ControlPlane, what: &[&str]) -> anyhow::Result<bool> {
    let output = plane.kubectl_output(&[&["get", "--ignore-not-found"], what].concat(), "").await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(!output.stdout.is_empty())
}

fn node(name: &str, labels: &Value) -> String {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    node.to_string()
}

/// Two nodes with the GPU Operator's labels; NVIDIA's device plugin was removed from one.
async fn add_nodes(plane: &ControlPlane) -> anyhow::Result<()> {
    let ours = json!({"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.device-plugin": "false"});
    plane.apply(&node("ours", &ours)).await?;
    plane.apply(&node("served", &json!({"nvidia.com/gpu.present": "true"}))).await?;
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(plane.client());
    nodes.patch_status("ours", &PatchParams::default(), &ready()).await?;
    Ok(())
}

/// Runs the uninstall's pods, and lets the agents' pods leave their nodes, until it is dropped.
async fn play(plane: &ControlPlane) -> anyhow::Result<()> {
    let pods = Api::<Pod>::namespaced(plane.client(), NAMESPACE);
    loop {
        for pod in pods.list(&ListParams::default()).await? {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let of = pod.metadata.labels.as_ref().and_then(|l| l.get("app.kubernetes.io/name")).cloned();
            let pending = phase_of(&pod) == "Pending";
            let ended = match of.as_deref() {
                Some("kerf-uninstall") if pending => Some(run(plane, &pod).await?),
                _ => None,
            };
            if let Some(succeeded) = ended {
                let phase = if succeeded { "Succeeded" } else { "Failed" };
                let status = Patch::Merge(json!({"status": {"phase": phase}}));
                // If the Job was deleted meanwhile, its pod is gone too.
                let _ = pods.patch_status(&name, &PatchParams::default(), &status).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Runs a pod's only container with the rights of its service account.
async fn run(plane: &ControlPlane, pod: &Pod) -> anyhow::Result<bool> {
    let spec = pod.spec.as_ref().context("a pod has a spec")?;
    let account = spec.service_account_name.as_deref().unwrap_or_default();
    let kubeconfig: PathBuf = plane.kubeconfig_for_service_account(NAMESPACE, account).await?;
    let mut kerf = Command::new(binaries::ours("kerf")?);
    kerf.args(spec.containers[0].args.iter().flatten()).env("KUBECONFIG", kubeconfig).kill_on_drop(true);
    // A pod that waits for the agents to leave must not keep the others from running.
    let output = tokio::select! {
        output = kerf.output() => output?,
        error = Box::pin(play_leave(plane)) => return error.map(|()| false),
    };
    ensure!(output.status.success(), "kerf failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(true)
}

/// Lets the pods that leave a node end well, and checks what must be true by then.
async fn play_leave(plane: &ControlPlane) -> anyhow::Result<()> {
    let pods = Api::<Pod>::namespaced(plane.client(), NAMESPACE);
    let theirs = ListParams::default().labels("app.kubernetes.io/name=kerf-node-agent-leave");
    loop {
        for pod in pods.list(&theirs).await? {
            ensure!(
                !exists(plane, &["mutatingwebhookconfiguration", "kerf"]).await?,
                "the webhook is still asked"
            );
            ensure!(
                !exists(plane, &["daemonset", "kerf-node-agent", "-n", NAMESPACE]).await?,
                "agents are there"
            );
            ensure!(
                exists(plane, &["deployment", "kerf-extender", "-n", NAMESPACE]).await?,
                "gone too early"
            );
            let spec = pod.spec.context("a pod has a spec")?;
            ensure!(
                spec.node_name.as_deref() == Some("ours") && spec.host_pid == Some(true),
                "not the agent's pod"
            );
            let done = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
            let _ = pods
                .patch_status(&pod.metadata.name.unwrap_or_default(), &PatchParams::default(), &done)
                .await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_accepts_the_chart_and_the_manifests() -> anyhow::Result<()> {
    let plane = plane().await?;
    for operator in std::fs::read_dir(crds()?)? {
        let folder = operator?.path().display().to_string();
        plane.kubectl(&["apply", "--server-side", "--recursive", "-f", &folder]).await?;
    }
    plane.definitions_established().await?;
    plane.create_namespace(NAMESPACE).await?;
    // The first address of the plane's range is the API server's, so the next one is taken.
    let first = plane.kubectl(&["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"]).await?;
    let (network, _) = first.trim().rsplit_once('.').context("the API server has no address")?;
    let main =
        format!("scheduler.mode=main,extender.clusterIP={network}.77,webhook.certificates=cert-manager");
    let sets: [&[&str]; 3] = [
        &[],
        &["--set", &main],
        &[
            "--set",
            "networkPolicy.enabled=true,criticalPodsQuota=true,managedNodes.all=true,monitoring.podMonitor.enabled=true,monitoring.rules.enabled=true,monitoring.dashboard.enabled=true,webhook.excludedNamespaceLabel=a/b",
        ],
    ];
    let dry_run = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"];
    // A pod is refused without its service account, which a dry run does not create.
    plane.kubectl(&["create", "serviceaccount", "kerf-test", "-n", NAMESPACE]).await?;
    for set in sets {
        let yaml = template(NAMESPACE, set)?;
        let output = plane.kubectl_output(&dry_run, &yaml).await?;
        ensure!(output.status.success(), "{set:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8(output.stdout)?.lines().count(), objects(&yaml)?.len(), "{set:?}");
    }
    for folder in ["deploy/base", "deploy/cert-manager"] {
        let output = plane.kubectl_output(&dry_run, &kustomize(folder)?).await?;
        ensure!(output.status.success(), "{folder}: {}", String::from_utf8_lossy(&output.stderr));
    }
    restricted(&plane).await?;
    plane.stop().await
}

/// An admin may name a label that excludes a namespace's pods from the webhook. A pod that asks kerf there is created
/// with a warning, and keys that only kerf writes are refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_excluded_by_its_label() -> anyhow::Result<()> {
    let plane = ControlPlane::start(ControlPlaneOptions::without_controller_manager()).await?;
    let yaml =
        template(NAMESPACE, &["--no-hooks", "--set", "webhook.excludedNamespaceLabel=example.com/no-gpus"])?;
    plane.create_namespace(NAMESPACE).await?;
    plane.apply(&yaml).await?;
    for name in ["free", "served"] {
        plane.create_namespace(name).await?;
    }
    plane.kubectl(&["label", "namespace", "free", "example.com/no-gpus="]).await?;
    let create = async |namespace: &str, annotation: &str| {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {annotation: "1Gi"}},
            // With another scheduler the pod would be refused for that, by whichever policy comes first.
            "spec": {"schedulerName": "kerf-scheduler", "containers": [{"name": "main", "image": "none"}]},
        });
        let arguments = ["create", "--dry-run=server", "--namespace", namespace, "-f", "-"];
        let output = plane.kubectl_output(&arguments, &pod.to_string()).await?;
        anyhow::Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    // The API server caches policies and namespaces, so the warning comes a moment later.
    let warned = async || {
        let (created, said) = create("free", "kerf.dev/gpu-memory").await?;
        Ok(created && said.contains("kerf serves no pod of namespace free"))
    };
    wait(TIMEOUT, "a pod in the excluded namespace to be created with a warning", warned).await?;
    let refused = async || {
        let (created, said) = create("free", "kerf.dev/request").await?;
        Ok(!created && said.contains("kerf gives no slices in this namespace"))
    };
    wait(TIMEOUT, "a forged pod in the excluded namespace to be refused", refused).await?;
    let (created, said) = create("served", "kerf.dev/gpu-memory").await?;
    ensure!(!created && said.contains("pods.kerf.dev"), "the webhook is not asked elsewhere: {said}");
    plane.stop().await
}

/// A namespace that enforces the strictest pod security accepts all pods except the agent's.
async fn restricted(plane: &ControlPlane) -> anyhow::Result<()> {
    plane.create_namespace("strict").await?;
    plane.kubectl(&["label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted"]).await?;
    let all = objects(&template(NAMESPACE, &[])?)?;
    let mut refused = Vec::new();
    let pods = all.iter().filter_map(|object| {
        let pod = if object["kind"] == "Pod" { &object["spec"] } else { &object["spec"]["template"]["spec"] };
        pod.is_object().then_some((object, pod))
    });
    for (owner, spec) in pods {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec,
        });
        pod["spec"]["serviceAccountName"] = json!("default");
        let create = ["create", "--namespace=strict", "--dry-run=server", "-f", "-"];
        let output = plane.kubectl_output(&create, &pod.to_string()).await?;
        if !output.status.success() {
            refused.push((name_of(owner), String::from_utf8_lossy(&output.stderr).into_owned()));
        }
    }
    ensure!(refused.len() == 1 && refused[0].0.ends_with("DaemonSet kerf-node-agent"), "{refused:?}");
    ensure!(refused[0].1.contains("violates PodSecurity"), "{refused:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kerf_is_installed_upgraded_uninstalled_and_installed_again() -> anyhow::Result<()> {
    let plane = plane().await?;
    add_nodes(&plane).await?;
    let notes = first_install(&plane).await?;
    assert!(notes.contains("1 node is kerf's."), "{notes}");
    assert!(
        notes.contains("Left to NVIDIA's device plugin, and used by kerf as they are: served\n"),
        "{notes}"
    );
    let desired = [
        "get",
        "daemonset",
        "kerf-node-agent",
        "-n",
        NAMESPACE,
        "-o",
        "jsonpath={.status.desiredNumberScheduled}",
    ];
    wait(TIMEOUT, "one agent for the one node", async || Ok(plane.kubectl(&desired).await? == "1")).await?;

    one_node_is_given_back(&plane).await?;
    wait(TIMEOUT, "its agent to come back", async || Ok(plane.kubectl(&desired).await? == "1")).await?;
    one_node_is_handed_over(&plane).await?;
    wait(TIMEOUT, "its agent to leave", async || Ok(plane.kubectl(&desired).await? == "1")).await?;

    other_address(&plane).await?;
    said(&helm_on(&plane, &["upgrade", "kerf", &folder(), "-n", NAMESPACE]).await?)?;
    let names = plane
        .kubectl(&["get", "crd", "gpunodes.kerf.dev", "-o", "jsonpath={.spec.names.shortNames}"])
        .await?;
    assert_eq!(names, r#"["gn"]"#, "the CRD does not follow an upgrade");

    for (name, spec) in [("ours", json!({"policy": {"removeRejectedPods": true}})), ("gone", json!({}))] {
        let gpu_node = json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": spec});
        plane.apply(&gpu_node.to_string()).await?;
    }
    plane.kubectl(&["create", "secret", "generic", "kerf-webhook-tls", "-n", NAMESPACE]).await?;
    plane.apply(&earlier_job()).await?;
    let uninstall = ["uninstall", "kerf", "-n", NAMESPACE, "--timeout", "90s"];
    tokio::select! {
        output = helm_on(&plane, &uninstall) => drop(said(&output?)?),
        error = play(&plane) => error?,
    }
    for gone in [
        "mutatingwebhookconfiguration/kerf",
        "secret/kerf-webhook-tls",
        "gpunode/gone",
        "clusterrole/kerf-uninstall",
    ] {
        assert!(!exists(&plane, &[gone, "-n", NAMESPACE]).await?, "{gone} is left");
    }
    assert!(exists(&plane, &["gpunode/ours"]).await?, "an admin's policy is gone");
    let left = plane.kubectl(&["get", "deployments,daemonsets,jobs", "-n", NAMESPACE, "-o", "name"]).await?;
    assert_eq!(left, "");

    install(&plane).await?;
    let policy = plane.kubectl(&["get", "gpunode", "ours", "-o", "jsonpath={.spec.policy}"]).await?;
    assert_eq!(policy, r#"{"removeRejectedPods":true}"#);
    plane.stop().await
}

/// `kerf release` gives back the one node of kerf's and no other; then an admin takes it again.
async fn one_node_is_given_back(plane: &ControlPlane) -> anyhow::Result<()> {
    let gpu_node = json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "ours"}, "spec": {}});
    plane.apply(&gpu_node.to_string()).await?;
    bind_agent(plane, "ours").await?;
    let mut kerf = Command::new(binaries::ours("kerf")?);
    kerf.args(["release", "ours", "--settle", "1s"]).env("KUBECONFIG", plane.kubeconfig()).kill_on_drop(true);
    let output = tokio::select! {
        output = kerf.output() => output?,
        error = Box::pin(play_node(plane)) => return error,
    };
    let (said, remedies) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{said}{remedies}");
    ensure!(said.ends_with("node ours is released\n"), "{said}");
    let command = "kubectl label node ours nvidia.com/gpu.deploy.device-plugin-\n";
    ensure!(remedies.ends_with(command), "{remedies}");
    ensure!(!exists(plane, &["gpunode/ours"]).await?, "the GpuNode is there");
    ensure!(!exists(plane, &["jobs", "-n", NAMESPACE]).await?, "its Job is left");
    ensure!(
        exists(plane, &["mutatingwebhookconfiguration", "kerf"]).await?,
        "the webhook configuration is gone"
    );
    plane.kubectl(&["label", "node", "ours", "kerf.dev/managed-"]).await?;
    Ok(())
}

/// Binds the agent's pod to a node, as the scheduler would.
async fn bind_agent(plane: &ControlPlane, node: &str) -> anyhow::Result<()> {
    bind(plane, NAMESPACE, "app.kubernetes.io/name=kerf-node-agent", node).await
}

/// Binds a `DaemonSet`'s pod to a node, as the scheduler would.
async fn bind(plane: &ControlPlane, namespace: &str, selector: &str, node: &str) -> anyhow::Result<()> {
    let pods = Api::<Pod>::namespaced(plane.client(), namespace);
    let theirs = ListParams::default().labels(selector);
    // A pending pod of a DaemonSet has no node yet, but its controller names the node in the pod's affinity.
    let is_for = |pod: &Pod| {
        let fields = json!(pod.spec)
            .pointer("/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields")
            .cloned();
        fields.is_some_and(|fields| fields[0]["values"] == json!([node]))
    };
    let unbound = async || {
        let list = pods.list(&theirs).await?;
        let name = list.iter().find(|pod| is_for(pod)).map(ResourceExt::name_any);
        anyhow::Ok(name)
    };
    wait(TIMEOUT, "a pod for the node", async || Ok(unbound().await?.is_some())).await?;
    let name = unbound().await?.context("the pod has gone")?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let bound = plane.kubectl_output(&["create", "-f", "-"], &binding.to_string()).await?;
    ensure!(bound.status.success(), "{}", String::from_utf8_lossy(&bound.stderr));
    Ok(())
}

const PLUGIN: &str = "app=nvidia-device-plugin";
const DEPLOY: &str = "nvidia.com/gpu.deploy.device-plugin";

/// `kerf manage` hands over the node that NVIDIA's plugin serves, once no pod holds a GPU of it; then an admin puts it
/// back.
async fn one_node_is_handed_over(plane: &ControlPlane) -> anyhow::Result<()> {
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(plane.client());
    nodes.patch_status("served", &PatchParams::default(), &ready()).await?;
    plane.kubectl(&["label", "node", "served", &format!("{DEPLOY}=true")]).await?;
    plane.create_namespace("gpu-operator").await?;
    plane.apply(&plugin()).await?;
    bind(plane, "gpu-operator", PLUGIN, "served").await?;
    let container =
        json!({"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let holder = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "kube-system"},
        "spec": {"nodeName": "served", "containers": [container]},
    });
    plane.apply(&holder.to_string()).await?;

    let refused = manage(plane).await?;
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        !refused.status.success() && why.contains("pods hold GPUs of node served: kube-system/train"),
        "{why}"
    );
    ensure!(exists(plane, &["nodes", "-l", &format!("{DEPLOY}=true")]).await?, "the node was changed");
    plane.kubectl(&["delete", "pod", "train", "-n", "kube-system", "--force"]).await?;
    let output = tokio::select! {
        output = manage(plane) => output?,
        error = Box::pin(play_handover(plane)) => return error,
    };
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(said.ends_with("node served is managed by kerf: 1 GPU (1x H100-80GB), 0 slices\n"), "{said}");
    let again = manage(plane).await?;
    ensure!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));

    let labels = [&format!("{DEPLOY}-"), "nvidia.com/gpu.deploy.mig-manager-", "kerf.dev/managed-"];
    plane.kubectl(&[&["label", "node", "served"], &labels[..]].concat()).await?;
    plane.kubectl(&["delete", "gpunode", "served"]).await?;
    plane.kubectl(&["delete", "namespace", "gpu-operator", "--wait=false"]).await?;
    plane
        .kubectl(&["delete", "pods", "-n", NAMESPACE, "--field-selector=spec.nodeName=served", "--force"])
        .await?;
    Ok(())
}

async fn manage(plane: &ControlPlane) -> anyhow::Result<std::process::Output> {
    let mut kerf = Command::new(binaries::ours("kerf")?);
    kerf.args(["manage", "served", "--timeout", "60s"])
        .env("KUBECONFIG", plane.kubeconfig())
        .kill_on_drop(true);
    Ok(kerf.output().await?)
}

fn ready() -> Patch<Value> {
    Patch::Merge(json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Test", "message": "",
    }]}}))
}

/// NVIDIA's device plugin, as GPU Operator deploys it.
fn plugin() -> String {
    let labels = json!({"app": "nvidia-device-plugin"});
    let container =
        json!({"name": "nvidia-device-plugin", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.19.3"});
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "gpu-operator"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"nodeSelector": {DEPLOY: "true"}, "containers": [container]},
        }},
    });
    set.to_string()
}

/// Simulates the node: the plugin's pod ends when it is deleted, and kerf's agent starts and writes its GpuNode.
async fn play_handover(plane: &ControlPlane) -> anyhow::Result<()> {
    let pods = Api::<Pod>::namespaced(plane.client(), "gpu-operator");
    let theirs = ListParams::default().labels(PLUGIN);
    let has_left = async || {
        let list = pods.list(&theirs).await?;
        for pod in list.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
            pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
        }
        Ok(list.items.is_empty())
    };
    wait(TIMEOUT, "the plugin to leave the node", has_left).await?;
    bind_agent(plane, "served").await?;
    let agents = Api::<Pod>::namespaced(plane.client(), NAMESPACE);
    for agent in agents.list(&ListParams::default().fields("spec.nodeName=served")).await? {
        agents.patch_status(&agent.name_any(), &PatchParams::default(), &ready()).await?;
    }
    let mut gpu_node = json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "served"}, "spec": {}});
    plane.apply(&gpu_node.to_string()).await?;
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let gpu =
        json!({"uuid": "GPU-1", "index": 0, "model": "H100-80GB", "memoryMib": 81_559, "kinds": ["mig"]});
    gpu_node["status"] = json!({
        "gpus": [gpu], "slices": [], "summary": {"gpus": "1x H100-80GB"},
        "conditions": [condition("Ready"), condition("Uncontested")],
    });
    // Only the node's agent may write the status.
    let agent = format!("--as=system:serviceaccount:{NAMESPACE}:kerf-node-agent");
    let on_node = "--as-user-extra=authentication.kubernetes.io/node-name=served";
    let write = ["apply", "--server-side", "--subresource=status", "--filename=-", &agent, on_node];
    let written = plane.kubectl_output(&write, &gpu_node.to_string()).await?;
    ensure!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    std::future::pending().await
}

/// Simulates the node's kubelet: deleted pods end, and once the agent has ended, the pods that put the node back
/// succeed.
async fn play_node(plane: &ControlPlane) -> anyhow::Result<()> {
    let pods = Api::<Pod>::namespaced(plane.client(), NAMESPACE);
    let here = ListParams::default().fields("spec.nodeName=ours");
    loop {
        let list = pods.list(&here).await?;
        let is = |pod: &Pod, of| pod.labels().get("app.kubernetes.io/name").map(String::as_str) == Some(of);
        let agent = list.iter().find(|pod| is(pod, "kerf-node-agent"));
        let leaving = list.iter().find(|pod| is(pod, "kerf-node-agent-leave"));
        if let Some(agent) = agent.filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
            pods.delete(&agent.name_any(), &DeleteParams::default().grace_period(0)).await?;
        }
        if let Some(leaving) = leaving {
            ensure!(agent.is_none(), "the agent's pod is there");
            let done = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
            let _ = pods.patch_status(&leaving.name_any(), &PatchParams::default(), &done).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A Job that an earlier uninstall has left behind, for a node that is gone.
fn earlier_job() -> String {
    let labels = json!({"app.kubernetes.io/name": "kerf-node-agent-leave"});
    let container = json!({"name": "node-agent", "image": "kerf-node-agent:1"});
    let pod = json!({"nodeName": "gone", "restartPolicy": "OnFailure", "containers": [container]});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "kerf-leave-earlier", "namespace": NAMESPACE, "labels": labels},
        "spec": {"suspend": true, "template": {"metadata": {"labels": labels}, "spec": pod}},
    });
    job.to_string()
}

/// A Service keeps its address, so another one is refused before anything is changed.
async fn other_address(plane: &ControlPlane) -> anyhow::Result<()> {
    let mode = ["upgrade", "kerf", &folder(), "-n", NAMESPACE, "--set", "scheduler.mode=main"];
    let other = [&mode[..], &["--set", "extender.clusterIP=10.255.255.1"]].concat();
    let refused =
        said(&helm_on(plane, &other).await?).err().map(|error| error.to_string()).unwrap_or_default();
    let address = ["get", "service", "kerf-extender", "-n", NAMESPACE, "-o", "jsonpath={.spec.clusterIP}"];
    let remedy = format!("set extender.clusterIP={}, or delete", plane.kubectl(&address).await?);
    ensure!(refused.contains(&remedy), "{refused}");
    ensure!(exists(plane, &["deployment", "kerf-scheduler", "-n", NAMESPACE]).await?, "half of it was done");
    Ok(())
}

/// What Helm prints about the namespace, which refuses the agent's pods, with each value of `preflight`.
async fn preflight(plane: &ControlPlane) -> anyhow::Result<()> {
    let chart = folder();
    for (value, is_refused) in [("auto", true), ("required", true), ("never", false)] {
        let set = format!("preflight={value}");
        let install = ["install", "kerf", &chart, "-n", NAMESPACE, "--dry-run=server", "--set", &set];
        let answer = said(&helm_on(plane, &install).await?);
        match answer {
            Err(error) => {
                let text = error.to_string();
                ensure!(is_refused && text.contains("enforces PodSecurity \"baseline\""), "{value}: {text}");
            }
            Ok(notes) => {
                ensure!(!is_refused && notes.contains("Helm did not read the cluster."), "{value}: {notes}");
            }
        }
    }
    Ok(())
}

/// An older chart, whose CRD has no short name. Before it comes a refused install, which leaves nothing behind.
async fn first_install(plane: &ControlPlane) -> anyhow::Result<String> {
    plane.create_namespace(NAMESPACE).await?;
    let label = "pod-security.kubernetes.io/enforce";
    plane.kubectl(&["label", "namespace", NAMESPACE, &format!("{label}=baseline")]).await?;
    let refused = install(plane).await.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("enforces PodSecurity \"baseline\""), "{refused}");
    let remedy = format!("kubectl label namespace {NAMESPACE} {label}=privileged --overwrite");
    ensure!(refused.contains(&remedy), "{refused}");
    preflight(plane).await?;
    ensure!(!exists(plane, &["crd", "gpunodes.kerf.dev"]).await?, "something was installed");
    plane.kubectl(&["label", "namespace", NAMESPACE, &format!("{label}=privileged"), "--overwrite"]).await?;

    let old = plane.dir().join("old-chart");
    let copied = Command::new("cp").arg("-r").arg(folder()).arg(&old).status().await?;
    ensure!(copied.success(), "the chart was not copied");
    let crd = old.join("templates/gpunodes.kerf.dev.yaml");
    let text = std::fs::read_to_string(&crd)?;
    ensure!(text.contains("    shortNames: [gn]\n"), "the CRD has no short name");
    std::fs::write(&crd, text.replace("    shortNames: [gn]\n", ""))?;
    said(&helm_on(plane, &["install", "kerf", &old.display().to_string(), "-n", NAMESPACE]).await?)
}
