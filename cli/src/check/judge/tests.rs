use super::*;
use crate::check::gpu_managers::{GpuManager, OtherManager};
use crate::check::need::{self, Need};
use crate::check::observed::Probe;
use crate::check::report::{is_good, render};
use crate::output::Format;
use jiff::{SignedDuration, Timestamp};
use kerf_core::admission::MatchCondition;
use kerf_core::keys;
use kerf_core::request::Dialect;
use kerf_runtime::tls::key;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const NOW: &str = "2026-06-01T00:00:00Z";

pub(super) fn from_json<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Certificates for `name` and their authority's, valid from January 2026 until January 2027.
pub(super) fn certificates(
    name: &str,
    authority: &rcgen::CertifiedIssuer<'_, rcgen::KeyPair>,
) -> [String; 3] {
    let mut leaf = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    (leaf.not_before, leaf.not_after) = (rcgen::date_time_ymd(2026, 1, 1), rcgen::date_time_ymd(2027, 1, 1));
    leaf.distinguished_name.push(rcgen::DnType::CommonName, "kerf-scheduler");
    leaf.extended_key_usages =
        vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = leaf.signed_by(&key, authority).unwrap().pem();
    [authority.pem(), pem, key.serialize_pem()]
}

pub(super) fn authority() -> rcgen::CertifiedIssuer<'static, rcgen::KeyPair> {
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    (parameters.not_before, parameters.not_after) =
        (rcgen::date_time_ymd(2026, 1, 1), rcgen::date_time_ymd(2027, 1, 1));
    rcgen::CertifiedIssuer::self_signed(parameters, rcgen::KeyPair::generate().unwrap()).unwrap()
}

pub(super) fn secret(texts: &[(&str, &str)]) -> k8s_openapi::api::core::v1::Secret {
    let data = texts
        .iter()
        .map(|(key, text)| ((*key).to_owned(), k8s_openapi::ByteString(text.as_bytes().to_vec())));
    k8s_openapi::api::core::v1::Secret { data: Some(data.collect()), ..Default::default() }
}

fn pod(name: &str, program: &str, node: &str, ready: bool) -> k8s_openapi::api::core::v1::Pod {
    from_json(json!({
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": program}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": format!("{program}:{}", env!("CARGO_PKG_VERSION"))}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            "containerStatuses": [{"name": "main", "image": "", "imageID": "", "restartCount": 0, "ready": ready}]},
    }))
}

fn lease(name: &str, renewed: &str, written: &str) -> k8s_openapi::api::coordination::v1::Lease {
    from_json(json!({
        "metadata": {"name": name, "managedFields": [{"time": written}]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 10, "renewTime": renewed},
    }))
}

fn gpu_node(status: &Value) -> kerf_runtime::gpu_node::GpuNode {
    from_json(json!({"metadata": {"name": "h100"}, "status": status}))
}

fn status() -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW});
    json!({
        "neutralUpToGb": 80,
        "gpus": [{"uuid": "GPU-1", "index": 0, "model": "H100-80GB", "memoryMib": 81559, "kinds": ["mps"]}],
        "slices": [],
        "conditions": [
            condition("Ready", "True", "Serving", "all is well"),
            condition("GpusHealthy", "True", "Healthy", "all is well"),
            condition("Uncontested", "True", "Alone", "all is well"),
            condition("Connected", "True", "LeaderConnected", "all is well"),
        ],
        "summary": {},
    })
}

fn node(name: &str, labels: &Value, allocatable: &Value) -> k8s_openapi::api::core::v1::Node {
    let handlers = json!([{"name": "", "features": {"userNamespaces": true}}]);
    let info = json!({"kernelVersion": "6.8.0"});
    let status = json!({"allocatable": allocatable, "runtimeHandlers": handlers, "nodeInfo": info});
    from_json(json!({"metadata": {"name": name, "labels": labels}, "status": status}))
}

fn runs_pods(seen: &mut Observed, handlers: &Value, kernel: &str) {
    let Seen::Found(nodes) = &mut seen.nodes else { return };
    let h100 = nodes.iter_mut().find(|node| node.metadata.name.as_deref() == Some("h100"));
    if let Some(status) = h100.and_then(|node| node.status.as_mut()) {
        status.runtime_handlers = Some(from_json(handlers.clone()));
        status.node_info = Some(from_json(json!({"kernelVersion": kernel})));
    }
}

pub(super) fn good() -> Observed {
    let authority = authority();
    let [ca, webhook, _] = certificates("kerf-webhook.kerf-system.svc", &authority);
    let [_, extender, key] = certificates("kerf-extender.kerf-system.svc", &authority);
    let mut crd: Value =
        serde_saphyr::from_str(include_str!("../../../../deploy/base/gpunodes.kerf.dev.yaml")).unwrap();
    crd["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
    let guards: Vec<String> = [
        "bindings",
        "extender",
        "gpunodes",
        "gpunodes-status",
        "leader",
        "node-agent",
        "pods",
        "schedulers",
        "system-pods",
        "undecided-pods",
        "workloads",
    ]
    .map(|name| format!("{name}.guard.kerf.dev"))
    .to_vec();
    let condition = MatchCondition::for_dialects(&[Dialect::Mig].into()).expression();
    let conditions = json!([{"name": "asks-for-gpus", "expression": condition}]);
    let entry = |name: &str| {
        json!({"name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "matchConditions": conditions, "clientConfig": {
            "caBundle": k8s_openapi::ByteString(ca.clone().into_bytes()),
            "service": {"name": "kerf-webhook", "namespace": "kerf-system"}}})
    };
    let scheduler = serde_saphyr::to_string(&crate::scheduler_config::configuration(
        &crate::scheduler_config::Args::default(),
    ))
    .unwrap();
    let policy = include_str!("../../../../policies/default.yaml");
    let managed = json!({(keys::MANAGED): "true"});
    let plugin = json!({"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "4"});
    let rights: Vec<(Need, Seen<bool>)> = need::for_programs("kerf-system", |_| true, str::to_owned)
        .unwrap()
        .into_iter()
        .map(|need| (need, Seen::Found(true)))
        .collect();
    Observed {
        namespace: "kerf-system".to_owned(),
        url: "https://10.0.0.1:6443/".to_owned(),
        version: "v1.36.0".to_owned(),
        now: NOW.parse().unwrap(),
        skew: SignedDuration::ZERO,
        apis: [
            ("admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
            ("apiextensions.k8s.io/v1", "customresourcedefinitions"),
            ("coordination.k8s.io/v1", "leases"),
            ("events.k8s.io/v1", "events"),
        ]
        .map(|(api, resource)| (api, Seen::Found(vec![resource.to_owned()])))
        .into(),
        rights,
        crd: Seen::Found(crd),
        guards: Seen::Found(guards.clone()),
        guards_bound: Seen::Found(guards),
        webhook: Seen::Found(from_json(
            json!({"webhooks": [entry("pods.kerf.dev"), entry("templates.kerf.dev")]}),
        )),
        secrets: [
            ("kerf-webhook-tls".to_owned(), Seen::Found(secret(&[(key::SERVER_CERT, &webhook)]))),
            (
                "kerf-extender-tls".to_owned(),
                Seen::Found(secret(&[
                    (key::CA_CERT, &ca),
                    (key::SERVER_CERT, &extender),
                    (key::CLIENT_CERT, &extender),
                    (key::CLIENT_KEY, &key),
                ])),
            ),
        ]
        .into(),
        probe: Probe::Admitted,
        lease: Seen::Found(lease("kerf-extender-0", "2026-05-31T23:59:58.000000Z", "2026-05-31T23:59:58Z")),
        config_maps: Seen::Found(vec![
            from_json(json!({"metadata": {"name": "kerf-scheduler-7f"}, "data": {"config.yaml": scheduler}})),
            from_json(json!({"metadata": {"name": "kerf-policies"}, "data": {"default.yaml": policy}})),
        ]),
        pods: Seen::Found(vec![
            pod("kerf-webhook-1", "kerf-webhook", "cpu", true),
            pod("kerf-extender-1", "kerf-extender", "cpu", true),
            pod("kerf-scheduler-1", "kerf-scheduler", "cpu", true),
            pod("kerf-node-agent-1", "kerf-node-agent", "h100", true),
        ]),
        nodes: Seen::Found(vec![
            node("cpu", &json!({}), &json!({"cpu": "4"})),
            node("h100", &managed, &json!({"nvidia.com/gpu": "0"})),
            node("t4", &plugin, &json!({"nvidia.com/gpu": "4"})),
        ]),
        node_leases: Seen::Found(vec![lease("h100", "2026-05-31T23:59:50.500000Z", "2026-05-31T23:59:50Z")]),
        gpu_nodes: Seen::Found(vec![gpu_node(&status())]),
        other_managers: Seen::Found(vec![OtherManager {
            program: GpuManager::DevicePlugin,
            evidence: "DaemonSet gpu-operator/nvidia-device-plugin-daemonset".to_owned(),
            nodes: ["t4".to_owned()].into(),
        }]),
        ..Observed::default()
    }
}

#[test]
fn a_cluster_on_which_kerf_works_is_good_line_by_line() {
    let report = after(&good());
    insta::assert_snapshot!(render(&report, Format::Text, false));
    assert!(is_good(&report, true));
}

#[test]
fn a_node_is_managed_by_its_labels_or_by_its_agent() {
    for labels in [
        json!({"nos.nebuly.com/gpu-partitioning": "mig"}),
        json!({"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.device-plugin": "false"}),
        json!({}),
    ] {
        let mut seen = good();
        let Seen::Found(nodes) = &mut seen.nodes else { unreachable!() };
        nodes[1] = node("h100", &labels, &json!({"nvidia.com/gpu": "0"}));
        let report = after(&seen);
        assert!(is_good(&report, true), "{labels}: {}", render(&report, Format::Short, true));
        assert!(render(&report, Format::Text, true).contains("h100: agent ready, GPUs well"), "{labels}");
    }
}

#[test]
fn a_cluster_without_kerf_is_checked_for_the_installation() {
    let mut seen = Observed { crd: Seen::Absent, webhook: Seen::Absent, pods: Seen::Absent, ..good() };
    seen.rights =
        need::for_installer("kerf-system").into_iter().map(|need| (need, Seen::Found(true))).collect();
    let report = before(&seen);
    insta::assert_snapshot!(render(&report, Format::Text, false));
    assert!(is_good(&report, true));
    insta::assert_snapshot!(render(&after(&seen), Format::Short, false));
}

fn condition(seen: &mut Observed, expression: &str) {
    let Seen::Found(configuration) = &mut seen.webhook else { return };
    for condition in
        configuration.webhooks.iter_mut().flatten().flat_map(|w| w.match_conditions.iter_mut().flatten())
    {
        expression.clone_into(&mut condition.expression);
    }
}

fn deployment(name: &str, argument: &str) -> k8s_openapi::api::apps::v1::Deployment {
    let containers = json!([{"name": "main", "args": [argument]}]);
    from_json(json!({"metadata": {"name": name}, "spec": {
        "selector": {}, "template": {"spec": {"containers": containers}},
    }}))
}

/// The status that an agent without neutral names reports.
fn status_of_an_old_agent() -> Value {
    let mut status = status();
    status.as_object_mut().unwrap().remove("neutralUpToGb");
    status
}

/// Sets the scheduler's configuration to the previous version's.
fn without_neutral_names(seen: &mut Observed) {
    let Seen::Found(maps) = &mut seen.config_maps else { return };
    let text = maps[0].data.as_mut().unwrap().get_mut("config.yaml").unwrap();
    let mut configuration: Value = serde_saphyr::from_str(text).unwrap();
    let names = configuration["extenders"][0]["managedResources"].as_array_mut().unwrap();
    names.retain(|name| !name["name"].as_str().unwrap().starts_with(keys::SIZE_PREFIX));
    *text = serde_saphyr::to_string(&configuration).unwrap();
}

type Break = fn(&mut Observed);

const FAULTS: &[(&str, Break)] = &[
    ("old Kubernetes", |seen| seen.version = "v1.32.4".to_owned()),
    ("an API is missing", |seen| drop(seen.apis.insert("coordination.k8s.io/v1", Seen::Absent))),
    ("the CRD is old", |seen| {
        let Seen::Found(crd) = &mut seen.crd else { return };
        crd["spec"]["versions"][0]["subresources"] = json!({});
    }),
    ("the CRD prunes what agents report of neutral names", |seen| {
        let Seen::Found(crd) = &mut seen.crd else { return };
        let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        crd.pointer_mut(status).unwrap().as_object_mut().unwrap().remove("neutralUpToGb");
        seen.gpu_nodes = Seen::Found(vec![gpu_node(&status_of_an_old_agent())]);
    }),
    ("a guard is gone", |seen| seen.guards_bound = Seen::Found(Vec::new())),
    ("a right is missing", |seen| seen.rights[0].1 = Seen::Found(false)),
    ("rights cannot be asked for", |seen| seen.rights[0].1 = Seen::Unknown("forbidden".to_owned())),
    ("no policies", |seen| {
        let Seen::Found(maps) = &mut seen.config_maps else { return };
        maps.pop();
    }),
    ("webhook's pods down", |seen| {
        let Seen::Found(pods) = &mut seen.pods else { return };
        pods[0] = pod("kerf-webhook-1", "kerf-webhook", "cpu", false);
    }),
    ("no configuration", |seen| seen.webhook = Seen::Absent),
    ("caBundle of another authority", |seen| {
        let Seen::Found(configuration) = &mut seen.webhook else { return };
        for webhook in configuration.webhooks.iter_mut().flatten() {
            webhook.client_config.ca_bundle = Some(k8s_openapi::ByteString(authority().pem().into_bytes()));
        }
    }),
    ("a policy takes more than comes to the webhook", |seen| {
        let Seen::Found(maps) = &mut seen.config_maps else { return };
        let text = maps[1].data.as_mut().unwrap().get_mut("default.yaml").unwrap();
        *text = text.replace("# dialects: [mig, nvidia]", "dialects: [mig, nvidia]");
    }),
    ("no policy takes what comes to the webhook", |seen| {
        condition(seen, &MatchCondition::widest().expression());
        seen.deployments = Seen::Found(vec![deployment("kerf-webhook", "--match-conditions=off")]);
    }),
    ("the webhook has not narrowed the condition yet", |seen| {
        condition(seen, &MatchCondition::widest().expression());
    }),
    ("somebody wrote another condition", |seen| condition(seen, "true")),
    ("policies say what the extender has no rights for", |seen| {
        let Seen::Found(maps) = &mut seen.config_maps else { return };
        let texts = maps[1].data.as_mut().unwrap();
        let text = texts.get_mut("default.yaml").unwrap();
        *text = text.replace("Default: false", "Default: true");
        let layout = "apiVersion: kerf.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {name: four}\nspec: {match: {labels: {a: b}}, plugin: {timeSlicing: {replicas: 4}}}\n";
        texts.insert("layouts.yaml".to_owned(), layout.to_owned());
        let mut extender = deployment("kerf-extender", "--moves=false");
        let arguments =
            &mut extender.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].args;
        arguments.as_mut().unwrap().push("--layouts=false".to_owned());
        seen.deployments = Seen::Found(vec![extender]);
    }),
    ("no caBundle", |seen| {
        let Seen::Found(configuration) = &mut seen.webhook else { return };
        for webhook in configuration.webhooks.iter_mut().flatten() {
            webhook.client_config.ca_bundle = None;
        }
    }),
    ("certificates are not renewed", |seen| seen.now = "2026-12-20T00:00:00Z".parse().unwrap()),
    ("certificates have ended", |seen| seen.now = "2027-02-01T00:00:00Z".parse().unwrap()),
    ("webhook unreachable", |seen| seen.probe = Probe::Unreachable("connection refused".to_owned())),
    ("webhook passed by", |seen| seen.probe = Probe::PassedBy),
    ("the leader is gone", |seen| {
        let old = lease("kerf-extender-0", "2026-05-31T23:00:00.000000Z", "2026-05-31T23:00:00Z");
        (seen.lease, seen.lease_later) = (Seen::Found(old.clone()), Some(old));
    }),
    ("the leader's clock is slow", |seen| {
        seen.lease =
            Seen::Found(lease("kerf-extender-0", "2026-05-31T23:59:00.000000Z", "2026-05-31T23:59:59Z"));
        seen.lease_later =
            Some(lease("kerf-extender-0", "2026-05-31T23:59:02.000000Z", "2026-06-01T00:00:01Z"));
    }),
    ("no Secret of the extender's", |seen| drop(seen.secrets.remove("kerf-extender-tls"))),
    ("scheduler configured otherwise", |seen| {
        let Seen::Found(maps) = &mut seen.config_maps else { return };
        let text = maps[0].data.as_mut().unwrap().get_mut("config.yaml").unwrap();
        *text = text.replace("bindVerb: bind", "bindVerb: ''");
    }),
    ("the scheduler's configuration is of the version before", |seen| without_neutral_names(seen)),
    ("the same, and the webhook waits for it", |seen| {
        without_neutral_names(seen);
        seen.deployments = Seen::Found(vec![deployment("kerf-webhook", "--neutral-names=off")]);
    }),
    ("the policy names another scheduler", |seen| {
        let Seen::Found(maps) = &mut seen.config_maps else { return };
        let text = maps[1].data.as_mut().unwrap().get_mut("default.yaml").unwrap();
        *text = text.replace("schedulerName: kerf-scheduler", "schedulerName: mine");
    }),
    ("a ResourceQuota limits a name that pods do not get", |seen| {
        let hard = json!({"requests.nvidia.com/mig-1g.10gb": "4", "requests.nvidia.com/gpu": "1"});
        let quota = json!({"metadata": {"namespace": "ml", "name": "gpus"}, "spec": {"hard": hard}});
        seen.resource_quotas = Seen::Found(vec![from_json(quota)]);
    }),
    ("an agent of the version before", |seen| {
        seen.gpu_nodes = Seen::Found(vec![gpu_node(&status_of_an_old_agent())]);
    }),
    ("no agent", |seen| {
        let Seen::Found(pods) = &mut seen.pods else { return };
        pods.pop();
    }),
    ("a kubelet without user namespaces", |seen| runs_pods(seen, &json!([{"name": ""}]), "6.8.0")),
    ("NVIDIA's runtime without user namespaces", |seen| {
        let handlers = json!([{"name": "", "features": {"userNamespaces": true}}, {"name": "nvidia"}]);
        runs_pods(seen, &handlers, "6.8.0");
    }),
    ("a kernel without idmapped mounts", |seen| {
        runs_pods(seen, &json!([{"name": "", "features": {"userNamespaces": true}}]), "5.15.0-1023");
    }),
    ("no GpuNode", |seen| seen.gpu_nodes = Seen::Found(Vec::new())),
    ("GpuNode of another version", |seen| {
        seen.gpu_nodes = Seen::Found(vec![gpu_node(&json!({"gpus": 5}))]);
    }),
    ("somebody else is on the node, a GPU is sick, the leader is not reached", |seen| {
        let mut status = status();
        status["conditions"][3]["status"] = json!("False");
        status["conditions"][3]["reason"] = json!("NotConnected");
        status["conditions"][3]["message"] = json!("the extender's leader has not been reached yet");
        status["gpus"][0]["message"] = json!("XID 79: GPU has fallen off the bus");
        status["conditions"][2]["status"] = json!("False");
        status["conditions"][2]["message"] = json!("NVIDIA's device plugin manages GPUs of this node.");
        seen.gpu_nodes = Seen::Found(vec![gpu_node(&status)]);
    }),
    ("an agent of the first version", |seen| {
        let mut status = status();
        status["conditions"].as_array_mut().unwrap().pop();
        seen.gpu_nodes = Seen::Found(vec![gpu_node(&status)]);
    }),
    ("somebody else is on the node, so that its GPUs serve nothing", |seen| {
        let mut status = status();
        status["gpus"][0]["kinds"] = json!([]);
        status["conditions"][2]["status"] = json!("False");
        status["conditions"][2]["message"] = json!("NVIDIA's device plugin manages GPUs of this node.");
        seen.gpu_nodes = Seen::Found(vec![gpu_node(&status)]);
    }),
    ("MIG mode is not what policy needs", |seen| {
        let mut status = status();
        status["gpus"][0]["kinds"] = json!([]);
        let mut node = gpu_node(&status);
        node.spec = Some(json!({"policy": {"gpus": [{"kinds": ["mig"]}]}}));
        seen.gpu_nodes = Seen::Found(vec![node]);
    }),
    ("no node is kerf's", |seen| {
        let Seen::Found(nodes) = &mut seen.nodes else { return };
        nodes.remove(1);
    }),
    ("a static node without labels", |seen| {
        let Seen::Found(nodes) = &mut seen.nodes else { return };
        nodes[2] = node("t4", &json!({}), &json!({"nvidia.com/gpu": "4"}));
    }),
    ("a static node with fewer devices", |seen| {
        let Seen::Found(nodes) = &mut seen.nodes else { return };
        nodes[2].status.as_mut().unwrap().allocatable.as_mut().unwrap().insert(
            "nvidia.com/gpu".to_owned(),
            k8s_openapi::apimachinery::pkg::api::resource::Quantity("3".to_owned()),
        );
    }),
    ("a static node with a sick device", |seen| {
        let Seen::Found(nodes) = &mut seen.nodes else { return };
        let status = nodes[2].status.as_mut().unwrap();
        status.capacity = status.allocatable.clone();
        status.allocatable = Some(from_json(json!({"nvidia.com/gpu": "3"})));
    }),
    ("a layout that failed", |seen| {
        let Seen::Found(nodes) = &mut seen.nodes else { return };
        nodes[2].status.as_mut().unwrap().conditions = Some(vec![from_json(json!({
            "type": "kerf.dev/Layout", "status": "False", "reason": "TimedOut", "message": "the plugin offers 1 and not 4",
        }))]);
    }),
    ("the device plugin on a node of kerf's", |seen| {
        let Seen::Found(other_managers) = &mut seen.other_managers else { return };
        other_managers[0].nodes.insert("h100".to_owned());
    }),
    ("nos on a node of kerf's", |seen| {
        let Seen::Found(other_managers) = &mut seen.other_managers else { return };
        let (program, evidence) = (GpuManager::Nos, "DaemonSet nebuly-nos/nos-mig-agent".to_owned());
        other_managers.push(OtherManager { program, evidence, nodes: ["h100".to_owned()].into() });
    }),
    ("another's webhook", |seen| {
        let Seen::Found(other_managers) = &mut seen.other_managers else { return };
        other_managers.push(OtherManager {
            program: GpuManager::Hami,
            evidence: "MutatingWebhookConfiguration hami-webhook".to_owned(),
            nodes: [].into(),
        });
    }),
    ("a DeviceClass takes a name", |seen| {
        let class = |name: &str, resource: &str| json!({"metadata": {"name": name}, "spec": {"extendedResourceName": resource}});
        seen.device_classes =
            Seen::Found(vec![class("gpu.nvidia.com", "nvidia.com/gpu"), class("nic", "example.com/nic")]);
    }),
    ("DeviceClasses take sizes and a share", |seen| {
        let class = |name: &str, resource: &str| json!({"metadata": {"name": name}, "spec": {"extendedResourceName": resource}});
        seen.device_classes = Seen::Found(vec![
            class("ten", "kerf.dev/gpu-10gb"),
            class("thirteen", "kerf.dev/gpu-13gb"),
            class("share", "nvidia.com/gpu-10gb"),
        ]);
    }),
    ("a DeviceClass takes a name, and the webhook gives no neutral ones", |seen| {
        let class =
            json!({"metadata": {"name": "mig"}, "spec": {"extendedResourceName": "nvidia.com/mig-1g.10gb"}});
        seen.device_classes = Seen::Found(vec![class]);
        seen.deployments = Seen::Found(vec![deployment("kerf-webhook", "--neutral-names=off")]);
    }),
    ("programs of another version", |seen| {
        let Seen::Found(pods) = &mut seen.pods else { return };
        pods[1].spec.as_mut().unwrap().containers[0].image = Some("kerf-extender:0.0.9".to_owned());
    }),
    ("kube-scheduler is newer than the API server", |seen| {
        let Seen::Found(pods) = &mut seen.pods else { return };
        pods[2].spec.as_mut().unwrap().containers[0].image =
            Some("registry.k8s.io/kube-scheduler:v1.37.0".to_owned());
    }),
    ("clocks", |seen| {
        seen.skew = SignedDuration::from_secs(-40);
        seen.node_leases =
            Seen::Found(vec![lease("h100", "2026-06-01T02:00:00.000000Z", "2026-05-31T23:59:50Z")]);
    }),
];

#[test]
fn only_faults_are_reported_and_each_with_its_remedy() {
    let mut faults = String::new();
    for (name, break_it) in FAULTS {
        let mut seen = good();
        break_it(&mut seen);
        let report = after(&seen);
        assert!(!is_good(&report, true), "{name} is not noticed");
        let text = render(&report, Format::Text, false);
        let lines = text.lines().filter(|line| !line.starts_with("  ✓") && !line.is_empty());
        let lines: Vec<&str> = lines.filter(|line| line.starts_with(' ')).collect();
        faults.extend([format!("== {name}\n"), lines.join("\n"), "\n".to_owned()]);
    }
    insta::assert_snapshot!(faults);
}

/// The last managed node is tested, too, because without one other findings are made.
#[test]
fn a_released_node_with_leftovers_is_reported_with_the_remedy() {
    for is_last in [false, true] {
        let mut seen = good();
        let Seen::Found(gpu_nodes) = &mut seen.gpu_nodes else { panic!("there is none") };
        let mut old = gpu_node(&status());
        old.metadata.name = Some("old".to_owned());
        gpu_nodes.push(old);
        if is_last {
            seen.nodes = Seen::Found(Vec::new());
        }
        let text = render(&after(&seen), Format::Text, true);
        assert!(text.contains("not kerf's:") && text.contains("old"), "{text}");
        let (release, delete) = (text.find("kerf release --namespace"), text.find("kubectl delete gpunode"));
        assert!(release.is_some() && release < delete, "{text}");
    }
}

#[test]
fn a_pod_of_an_excluded_namespace_may_bypass_the_webhook() {
    let excluded = |rule: Value| {
        let mut seen = good();
        seen.probe = Probe::PassedBy;
        let Seen::Found(configuration) = &mut seen.webhook else { unreachable!() };
        for webhook in configuration.webhooks.iter_mut().flatten() {
            webhook.namespace_selector = Some(from_json(json!({"matchExpressions": [rule]})));
        }
        is_good(&after(&seen), true)
    };
    let rule = |operator: &str, name: &str| json!({"key": "kubernetes.io/metadata.name", "operator": operator, "values": ["kube-system", name]});
    assert!(excluded(rule("NotIn", "default")) && excluded(rule("In", "ml")));
    assert!(!excluded(rule("NotIn", "ml")) && !excluded(rule("In", "default")));
}

#[test]
fn ended_pods_are_not_pending() {
    for phase in ["Failed", "Succeeded"] {
        let mut seen = good();
        let Seen::Found(pods) = &mut seen.pods else { unreachable!() };
        for (program, node) in [("kerf-webhook", "cpu"), ("kerf-node-agent", "h100")] {
            let mut ended = pod(&format!("{program}-0"), program, node, false);
            ended.status.as_mut().unwrap().phase = Some(phase.to_owned());
            pods.insert(0, ended);
        }
        let report = after(&seen);
        assert!(is_good(&report, true), "{phase}: {}", render(&report, Format::Short, true));
    }
}

#[test]
fn forbidden_reads_are_warnings_and_no_failures() {
    let why = || "User \"jane\" cannot list resource".to_owned();
    let mut seen = good();
    (seen.pods, seen.nodes, seen.gpu_nodes) =
        (Seen::Unknown(why()), Seen::Unknown(why()), Seen::Unknown(why()));
    (seen.crd, seen.webhook, seen.config_maps) =
        (Seen::Unknown(why()), Seen::Unknown(why()), Seen::Unknown(why()));
    (seen.guards, seen.lease, seen.other_managers) =
        (Seen::Unknown(why()), Seen::Unknown(why()), Seen::Unknown(why()));
    (seen.device_classes, seen.probe) = (Seen::Unknown(why()), Probe::Hindered(why()));
    seen.resource_quotas = Seen::Unknown(why());
    seen.secrets =
        ["kerf-webhook-tls", "kerf-extender-tls"].map(|name| (name.to_owned(), Seen::Unknown(why()))).into();
    let report = after(&seen);
    assert!(is_good(&report, false), "{}", render(&report, Format::Short, false));
    let count = render(&report, Format::Short, false).lines().count();
    assert!(count >= 12, "{count} things are said to be unknown");
}

#[test]
fn the_renew_time_of_a_lease_is_read() {
    let old = lease("x", "2026-05-31T23:59:49.000000Z", NOW);
    let now: Timestamp = NOW.parse().unwrap();
    assert_eq!(overdue(&old, now), Some(10));
    assert_eq!(overdue(&lease("x", "2026-05-31T23:59:50.000000Z", NOW), now), None);
}
