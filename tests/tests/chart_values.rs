//! Each value of the chart changes what its row says. The table has each value of the README with what the chart makes
//! of it; a test compares both.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use kerf_tests::chart::{by_name, template_with};
use kerf_tests::cluster::root;
use serde_json::{Value, json};

const WEBHOOK: &str = "apps/v1 Deployment kerf-webhook";
const EXTENDER: &str = "apps/v1 Deployment kerf-extender";
const SCHEDULER: &str = "apps/v1 Deployment kerf-scheduler";
const AGENT: &str = "apps/v1 DaemonSet kerf-node-agent";
const UNINSTALL: &str = "batch/v1 Job kerf-uninstall-nodes";
const TEST: &str = "v1 Pod kerf-test";
const CONFIGURATION: &str = "admissionregistration.k8s.io/v1 MutatingWebhookConfiguration kerf";
/// The path of the pods' metadata and spec in a controller.
const POD: &str = "/spec/template";
const ARGS: &str = "/spec/template/spec/containers/0/args";

/// Values without a row here, because `chart.rs` tests what they refuse.
const ELSEWHERE: [&str; 2] = ["preflight", "extender.recreate"];

/// The expected content at a path of an object; null if there is nothing.
enum Expected {
    Is(Value),
    Has(String),
}

/// A value of a set, and its effect. All values of a set are rendered at once.
struct Row {
    set: char,
    key: String,
    value: Value,
    object: String,
    pointer: String,
    expected: Expected,
}

fn is(set: char, key: &str, value: Value, object: &str, pointer: &str, expected: Value) -> Row {
    let [key, object, pointer] = [key, object, pointer].map(str::to_owned);
    Row { set, key, value, object, pointer, expected: Expected::Is(expected) }
}

/// The object has the value as it was written.
fn same(key: &str, value: Value, object: &str, pointer: &str) -> Row {
    is('a', key, value.clone(), object, pointer, value)
}

/// The object's text contains this part.
fn has(set: char, key: &str, value: Value, object: &str, pointer: &str, part: &str) -> Row {
    Row { expected: Expected::Has(part.to_owned()), ..is(set, key, value, object, pointer, Value::Null) }
}

/// The values that all programs' pods have; `pod` is the path of their metadata and spec.
fn pods(program: &str, object: &str, pod: &str) -> Vec<Row> {
    let key = |name: &str| format!("{program}.{name}");
    let at = |rest: &str| format!("{pod}{rest}");
    let (spec, image) = (|rest: &str| at(&format!("/spec{rest}")), at("/spec/containers/0/image"));
    let own = format!("my-{}", program.to_lowercase());
    let digest = format!("sha256:{}", "ab".repeat(32));
    let version = if program == "scheduler" { "v1.36.4" } else { env!("CARGO_PKG_VERSION") };
    let whole = json!(format!("mirror.example.com/x/{own}:{version}@{digest}"));
    let toleration = json!([{"key": program, "operator": "Exists"}]);
    let tag = |repository: &str| json!(format!("{repository}:v9-{program}"));
    let tagged = match program {
        "scheduler" => tag("registry.k8s.io/kube-scheduler"),
        "nodeAgent" => tag("r.example.com/x/kerf-node-agent"),
        _ => tag(&format!("r.example.com/x/kerf-{program}")),
    };
    vec![
        is('a', &key("image.registry"), json!("r.example.com/x"), object, &image, whole.clone()),
        is('a', &key("image.repository"), json!(own), object, &image, whole.clone()),
        is('a', &key("image.digest"), json!(digest), object, &image, whole),
        is('b', &key("image.tag"), json!(format!("v9-{program}")), object, &image, tagged),
        same(&key("image.pullPolicy"), json!("Never"), object, &spec("/containers/0/imagePullPolicy")),
        same(&key("priorityClassName"), json!("mine"), object, &spec("/priorityClassName")),
        has(
            'a',
            &key("resources"),
            json!({"requests": {"cpu": "123m"}}),
            object,
            &spec("/containers/0/resources"),
            "123m",
        ),
        same(&key("nodeSelector"), json!({"pool": program}), object, &spec("/nodeSelector")),
        same(&key("tolerations"), toleration, object, &spec("/tolerations")),
        is(
            'a',
            &key("podLabels"),
            json!({"team": program}),
            object,
            &at("/metadata/labels/team"),
            json!(program),
        ),
        is(
            'a',
            &key("podAnnotations"),
            json!({"note": program}),
            object,
            &at("/metadata/annotations/note"),
            json!(program),
        ),
        is(
            'a',
            &key("podSecurityContext"),
            json!({"fsGroup": 7}),
            object,
            &spec("/securityContext/fsGroup"),
            json!(7),
        ),
        is(
            'a',
            &key("securityContext"),
            json!({"runAsGroup": 7}),
            object,
            &spec("/containers/0/securityContext/runAsGroup"),
            json!(7),
        ),
    ]
}

/// The values that programs have beside that.
fn program(program: &str, object: &str) -> Vec<Row> {
    let key = |name: &str| format!("{program}.{name}");
    let container = |field: &str| format!("{POD}/spec/containers/0/{field}");
    let own = format!("my-{program}").to_lowercase();
    let account = format!("v1 ServiceAccount {}", object.rsplit(' ').next().unwrap());
    let my_account = format!("v1 ServiceAccount {own}");
    let flags = container(if program == "scheduler" { "command" } else { "args" });
    let [variable, volume, mount] = [
        json!({"name": "MORE", "value": program}),
        json!({"name": "more", "emptyDir": {}}),
        json!({"name": "more", "mountPath": "/more"}),
    ];
    let mut rows = pods(program, object, POD);
    rows.extend([
        is(
            'a',
            &key("serviceAccount.name"),
            json!(own),
            object,
            &format!("{POD}/spec/serviceAccountName"),
            json!(own),
        ),
        is(
            'a',
            &key("serviceAccount.annotations"),
            json!({"role": own}),
            &my_account,
            "/metadata/annotations/role",
            json!(own),
        ),
        is('b', &key("serviceAccount.create"), json!(false), &account, "/kind", Value::Null),
        has('a', &key("extraArgs"), json!(["--more=1"]), object, &flags, "--more=1"),
        has('a', &key("extraEnv"), json!([variable]), object, &container("env"), &variable.to_string()),
        has(
            'a',
            &key("extraVolumes"),
            json!([volume]),
            object,
            &format!("{POD}/spec/volumes"),
            &volume.to_string(),
        ),
        has(
            'a',
            &key("extraVolumeMounts"),
            json!([mount]),
            object,
            &container("volumeMounts"),
            &mount.to_string(),
        ),
    ]);
    rows
}

fn deployment(name: &str, object: &str) -> Vec<Row> {
    let key = |field: &str| format!("{name}.{field}");
    let budget = format!("policy/v1 PodDisruptionBudget kerf-{name}");
    let at = |field: &str| format!("{POD}/spec/{field}");
    let affinity = json!({"podAntiAffinity": {}});
    let spread = json!([{"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}]);
    let mut spread_of_these = spread.clone();
    spread_of_these[0]["labelSelector"] =
        json!({"matchLabels": {"app.kubernetes.io/name": format!("kerf-{name}")}});
    let mut rows = program(name, object);
    rows.extend([
        same(&key("replicas"), json!(3), object, "/spec/replicas"),
        same(&key("updateStrategy"), json!({"type": "Recreate"}), object, "/spec/strategy"),
        same(&key("podDisruptionBudget.minAvailable"), json!("50%"), &budget, "/spec/minAvailable"),
        is(
            'b',
            &key("podDisruptionBudget.maxUnavailable"),
            json!(2),
            &budget,
            "/spec/maxUnavailable",
            json!(2),
        ),
        is('c', &key("podDisruptionBudget.enabled"), json!(false), &budget, "/kind", Value::Null),
        same(&key("affinity"), affinity, object, &at("affinity")),
        is(
            'a',
            &key("topologySpreadConstraints"),
            spread,
            object,
            &at("topologySpreadConstraints"),
            spread_of_these,
        ),
    ]);
    rows
}

/// A Deployment that a control plane may have to reach.
fn server(name: &str, object: &str, port: u16) -> Vec<Row> {
    let key = |field: &str| format!("{name}.{field}");
    let ports = |index: usize| format!("{POD}/spec/containers/0/ports/{index}/containerPort");
    let mut rows = deployment(name, object);
    rows.extend([
        same(&key("hostNetwork"), json!(true), object, &format!("{POD}/spec/hostNetwork")),
        is('b', &key("hostNetwork"), json!(true), object, "/spec/strategy/rollingUpdate/maxSurge", json!(0)),
        same(&key("port"), json!(port), object, &ports(0)),
        has('a', &key("port"), json!(port), object, ARGS, &format!("--address=[::]:{port}")),
        same(&key("adminPort"), json!(port + 1), object, &ports(1)),
        has(
            'a',
            &key("adminPort"),
            json!(port + 1),
            object,
            ARGS,
            &format!("--admin-address=[::]:{}", port + 1),
        ),
        is('b', &key("adminPort"), json!(port + 1), object, &ports(1), json!(port + 1)),
    ]);
    rows
}

fn webhook() -> Vec<Row> {
    let selector = "/webhooks/0/namespaceSelector/matchExpressions";
    let label = json!({"key": "example.com/no-gpus", "operator": "DoesNotExist"});
    let guard = "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding undecided-labelled-pods.guard.kerf.dev";
    let excluded = || json!("example.com/no-gpus");
    let mut rows = server("webhook", WEBHOOK, 8443);
    rows.extend([
        has('a', "webhook.excludedNamespaces", json!(["ml"]), CONFIGURATION, selector, "\"ml\""),
        is('a', "webhook.excludedNamespaceLabel", excluded(), CONFIGURATION, &format!("{selector}/1"), label),
        has(
            'a',
            "webhook.excludedNamespaceLabel",
            excluded(),
            guard,
            "/spec/matchResources",
            "example.com/no-gpus",
        ),
        has('a', "webhook.matchConditions", json!("fixed"), WEBHOOK, ARGS, "--match-conditions=off"),
        has(
            'a',
            "webhook.dialects",
            json!(["mig", "kai"]),
            CONFIGURATION,
            "/webhooks/0/matchConditions",
            "gpu-fraction",
        ),
        has('a', "webhook.neutralNames", json!("off"), WEBHOOK, ARGS, "--neutral-names=off"),
        has('a', "webhook.certificates", json!("cert-manager"), WEBHOOK, ARGS, "--tls-dir=/etc/kerf/tls"),
        is(
            'a',
            "webhook.configurationLabels",
            json!({"l": "1"}),
            CONFIGURATION,
            "/metadata/labels/l",
            json!("1"),
        ),
        is(
            'a',
            "webhook.configurationAnnotations",
            json!({"admissions.enforcer/disabled": "true"}),
            CONFIGURATION,
            "/metadata/annotations/admissions.enforcer~1disabled",
            json!("true"),
        ),
    ]);
    rows
}

fn extender() -> Vec<Row> {
    let role = |name: &str| format!("rbac.authorization.k8s.io/v1 ClusterRole kerf-extender-{name}");
    let agents = "v1 Service kerf-extender-agents";
    let mut rows = server("extender", EXTENDER, 8445);
    rows.extend([
        same(
            "extender.agentsPort",
            json!(8447),
            EXTENDER,
            &format!("{POD}/spec/containers/0/ports/2/containerPort"),
        ),
        same("extender.agentsPort", json!(8447), agents, "/spec/ports/0/port"),
        has('a', "extender.agentsPort", json!(8447), EXTENDER, ARGS, "--agents-address=[::]:8447"),
        has(
            'a',
            "nodeAgent.serviceAccount.name",
            json!("my-nodeagent"),
            EXTENDER,
            ARGS,
            "--agent-account=kerf-system/my-nodeagent",
        ),
        is('a', "extender.moves", json!(false), &role("moves"), "/kind", Value::Null),
        has('a', "extender.moves", json!(false), EXTENDER, ARGS, "--moves=false"),
        is('a', "extender.layouts", json!(true), &role("layouts"), "/kind", json!("ClusterRole")),
        is(
            'a',
            "extender.flowSchemas",
            json!(false),
            "flowcontrol.apiserver.k8s.io/v1 FlowSchema kerf-extender",
            "/kind",
            Value::Null,
        ),
        same("extender.clusterIP", json!("10.96.0.77"), "v1 Service kerf-extender", "/spec/clusterIP"),
        is(
            'd',
            "extender.clusterIP",
            json!("10.96.0.77"),
            "v1 Service kerf-extender",
            "/spec/clusterIP",
            json!("10.96.0.77"),
        ),
    ]);
    rows
}

fn scheduler() -> Vec<Row> {
    let guard = "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy schedulers.guard.kerf.dev";
    let role = "rbac.authorization.k8s.io/v1 Role kerf-scheduler";
    let mut rows = deployment("scheduler", SCHEDULER);
    rows.extend([
        is('d', "scheduler.mode", json!("main"), SCHEDULER, "/kind", Value::Null),
        has('a', "scheduler.name", json!("mine"), role, "/rules", "\"mine\""),
        has('a', "scheduler.others", json!(["another"]), guard, "/spec/validations", "another"),
    ]);
    rows
}

fn agent() -> Vec<Row> {
    let mounts = "/spec/template/spec/containers/0/volumeMounts";
    let mut rows = program("nodeAgent", AGENT);
    rows.extend([
        has(
            'a',
            "nodeAgent.driverRoot",
            json!("/run/nvidia/driver"),
            AGENT,
            ARGS,
            "--host-driver-root=/run/nvidia/driver",
        ),
        has('a', "nodeAgent.pauseDcgm", json!(false), AGENT, ARGS, "--no-pause-dcgm"),
        has('a', "nodeAgent.gdrcopyEnabled", json!(true), AGENT, ARGS, "--gdrcopy-enabled"),
        has('a', "nodeAgent.gdsEnabled", json!(true), AGENT, ARGS, "--gds-enabled"),
        has('a', "nodeAgent.mofedEnabled", json!(true), AGENT, ARGS, "--mofed-enabled"),
        has('a', "nodeAgent.imex.channelIDs", json!([0]), AGENT, ARGS, "--imex-channel-ids=0"),
        has('a', "nodeAgent.imex.required", json!(true), AGENT, ARGS, "--imex-required"),
        has('a', "nodeAgent.kubeletDir", json!("/k"), AGENT, mounts, "/k/pod-resources"),
        has('a', "nodeAgent.xids.disabled", json!("48"), AGENT, ARGS, "--disable-healthchecks=48"),
        has('a', "nodeAgent.xids.enabled", json!("63"), AGENT, ARGS, "--enable-healthchecks=63"),
        same("nodeAgent.runtimeClassName", json!("nvidia"), AGENT, "/spec/template/spec/runtimeClassName"),
        is(
            'a',
            "nodeAgent.updateStrategy",
            json!({"rollingUpdate": {"maxUnavailable": 3}}),
            AGENT,
            "/spec/updateStrategy/rollingUpdate/maxUnavailable",
            json!(3),
        ),
    ]);
    rows
}

/// Each value changes one of the affinity's terms.
fn managed_nodes() -> Vec<Row> {
    let terms = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let not = json!({"key": "kerf.dev/managed", "operator": "NotIn", "values": ["false"]});
    let own = json!({"key": "zone", "operator": "Exists"});
    let present = json!({"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]});
    let made = json!([{"matchExpressions": [present, not]}, {"matchExpressions": [own, not]}]);
    let values = [
        ("labelled", json!(false)),
        ("withoutDevicePlugin", json!(false)),
        ("nos", json!(false)),
        ("all", json!(true)),
        ("terms", json!([{"matchExpressions": [own]}])),
    ];
    values
        .map(|(key, value)| is('a', &format!("managedNodes.{key}"), value, AGENT, terms, made.clone()))
        .into()
}

fn hooks() -> Vec<Row> {
    let mut rows = pods("cli", UNINSTALL, POD);
    rows.extend(pods("cli", TEST, ""));
    let probe = "rbac.authorization.k8s.io/v1 Role kerf-test-probe";
    rows.extend([
        same("cli.affinity", json!({"podAffinity": {}}), UNINSTALL, "/spec/template/spec/affinity"),
        same("cli.affinity", json!({"podAffinity": {}}), TEST, "/spec/affinity"),
        is(
            'a',
            "cli.serviceAccountAnnotations",
            json!({"a": "b"}),
            "v1 ServiceAccount kerf-uninstall",
            "/metadata/annotations/a",
            json!("b"),
        ),
        is(
            'a',
            "cli.serviceAccountAnnotations",
            json!({"a": "b"}),
            "v1 ServiceAccount kerf-test",
            "/metadata/annotations/a",
            json!("b"),
        ),
        has('a', "uninstall.settle", json!("6m"), UNINSTALL, ARGS, "--settle=6m"),
        has('a', "uninstall.timeout", json!("9m"), UNINSTALL, ARGS, "--timeout=9m"),
        is('c', "uninstall.enabled", json!(false), UNINSTALL, "/kind", Value::Null),
        has('a', "test.timeout", json!("9m"), TEST, "/spec/containers/0/args", "--wait=9m"),
        is('b', "test.probe", json!(false), probe, "/kind", Value::Null),
        is('c', "test.enabled", json!(false), TEST, "/kind", Value::Null),
    ]);
    rows
}

fn monitoring() -> Vec<Row> {
    let monitor = "monitoring.coreos.com/v1 PodMonitor kerf-webhook";
    let rules = "monitoring.coreos.com/v1 PrometheusRule kerf";
    let mut rows = Vec::new();
    for (part, object) in
        [("podMonitor", monitor), ("rules", rules), ("dashboard", "v1 ConfigMap kerf-dashboard-kerf")]
    {
        let key = |field: &str| format!("monitoring.{part}.{field}");
        rows.extend([
            has('a', &key("enabled"), json!(true), object, "/metadata/name", "kerf"),
            same(&key("namespace"), json!(part.to_lowercase()), object, "/metadata/namespace"),
            is(
                'a',
                &key("labels"),
                json!({"release": part}),
                object,
                "/metadata/labels/release",
                json!(part),
            ),
            same(&key("annotations"), json!({"note": part}), object, "/metadata/annotations"),
        ]);
    }
    rows.extend([
        same("monitoring.podMonitor.interval", json!("42s"), monitor, "/spec/podMetricsEndpoints/0/interval"),
        same(
            "monitoring.podMonitor.scrapeTimeout",
            json!("9s"),
            monitor,
            "/spec/podMetricsEndpoints/0/scrapeTimeout",
        ),
        is(
            'a',
            "monitoring.rules.runbookUrl",
            json!("https://example.com/runbooks"),
            rules,
            "/spec/groups/0/rules/0/annotations/runbook_url",
            json!("https://example.com/runbooks#kerfwebhookdown"),
        ),
        has(
            'a',
            "monitoring.rules.pendingSeconds",
            json!(3600),
            rules,
            "/spec/groups/2/rules/0",
            "kerf_extender_oldest_pending_seconds{reason=\\\"full\\\"}) > 3600\"",
        ),
    ]);
    rows
}

fn all_programs() -> Vec<Row> {
    let pull = json!([{"name": "own"}, {"name": "of-all"}]);
    let secrets = "/spec/template/spec/imagePullSecrets";
    let image = json!("r.example.com/x/kerf-webhook:v9");
    let at = "/spec/template/spec/containers/0/image";
    let crd = "apiextensions.k8s.io/v1 CustomResourceDefinition gpunodes.kerf.dev";
    let policies = "v1 ConfigMap kerf-policies";
    vec![
        has(
            'a',
            "global.imageRegistry",
            json!("mirror.example.com"),
            SCHEDULER,
            at,
            "mirror.example.com/x/my-scheduler",
        ),
        is('a', "global.imagePullSecrets", json!([{"name": "of-all"}]), AGENT, secrets, pull.clone()),
        is('a', "imagePullSecrets", json!([{"name": "own"}]), AGENT, secrets, pull),
        is(
            'b',
            "image.registry",
            json!("r.example.com/x"),
            WEBHOOK,
            at,
            json!("r.example.com/x/kerf-webhook:v9-webhook"),
        ),
        is('c', "image.registry", json!("r.example.com/x"), WEBHOOK, at, image.clone()),
        is('c', "image.tag", json!("v9"), WEBHOOK, at, image),
        is(
            'c',
            "image.pullPolicy",
            json!("Always"),
            AGENT,
            "/spec/template/spec/containers/0/imagePullPolicy",
            json!("Always"),
        ),
        is(
            'a',
            "commonLabels",
            json!({"team": "gpu", "cost": "9"}),
            crd,
            "/metadata/labels/cost",
            json!("9"),
        ),
        has('a', "log.level", json!("debug"), AGENT, ARGS, "--log=debug"),
        has('a', "log.format", json!("json"), WEBHOOK, ARGS, "--log-format=json"),
        is('c', "policies.default", json!(false), policies, "/data/default.yaml", Value::Null),
        is(
            'c',
            "policies.files",
            json!({"10-a.yaml": "kind: GpuPolicy"}),
            policies,
            "/data/10-a.yaml",
            json!("kind: GpuPolicy\n"),
        ),
        is('c', "crds.install", json!(false), crd, "/kind", Value::Null),
        is('b', "crds.keep", json!(false), crd, "/metadata/annotations", Value::Null),
        has(
            'a',
            "networkPolicy.enabled",
            json!(true),
            "networking.k8s.io/v1 NetworkPolicy kerf-webhook",
            "/spec/ingress",
            "https",
        ),
        is(
            'd',
            "networkPolicy.enabled",
            json!(true),
            "networking.k8s.io/v1 NetworkPolicy kerf-extender",
            "/spec/ingress/1",
            json!({
                "from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "kerf-node-agent"}}}],
                "ports": [{"protocol": "TCP", "port": "agents"}],
            }),
        ),
        has(
            'd',
            "networkPolicy.egress.enabled",
            json!(true),
            "networking.k8s.io/v1 NetworkPolicy kerf-node-agent",
            "/spec/policyTypes",
            "Egress",
        ),
        is(
            'd',
            "networkPolicy.egress.apiServerPorts",
            json!([16443]),
            "networking.k8s.io/v1 NetworkPolicy kerf-node-agent",
            "/spec/egress/2/ports",
            json!([{"protocol": "TCP", "port": 16443}]),
        ),
        has(
            'a',
            "criticalPodsQuota",
            json!(true),
            "v1 ResourceQuota kerf-critical-pods",
            "/spec/hard",
            "pods",
        ),
    ]
}

fn table() -> Vec<Row> {
    [webhook(), extender(), scheduler(), agent(), managed_nodes(), hooks(), monitoring(), all_programs()]
        .into_iter()
        .flatten()
        .collect()
}

/// The values of a set, as in a values file.
fn values(set: char, table: &[Row]) -> Value {
    let mut values = json!({});
    for row in table.iter().filter(|row| row.set == set) {
        let field = row.key.split('.').fold(&mut values, |at, name| &mut at[name]);
        assert!(field.is_null() || *field == row.value, "{} has two values in set {set}", row.key);
        *field = row.value.clone();
    }
    values
}

fn meets(row: &Row, objects: &BTreeMap<String, Value>) -> bool {
    let null = Value::Null;
    let found = objects.get(&row.object).and_then(|object| object.pointer(&row.pointer)).unwrap_or(&null);
    match &row.expected {
        Expected::Is(value) => found == value,
        Expected::Has(part) => found.to_string().contains(part),
    }
}

#[test]
fn each_value_changes_what_it_names() {
    let table = table();
    let default = by_name(&template_with("kerf-system", &json!({})).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for set in table.iter().map(|row| row.set).collect::<BTreeSet<_>>() {
        let made = by_name(&template_with("kerf-system", &values(set, &table)).unwrap()).unwrap();
        for row in table.iter().filter(|row| row.set == set) {
            let at = format!("set {set}, {}: {} {}", row.key, row.object, row.pointer);
            if meets(row, &default) {
                wrong.push(format!("{at}: so by default"));
            } else if !meets(row, &made) {
                let found = made.get(&row.object).and_then(|object| object.pointer(&row.pointer));
                wrong.push(format!("{at}: {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_has_each_value_of_the_readme() {
    let readme = std::fs::read_to_string(root().join("deploy/chart/README.md")).unwrap();
    let (_, values) = readme.split_once("| Key | Type | Default | Description |\n").unwrap();
    let rows = values.lines().skip(1).take_while(|line| line.starts_with('|'));
    let documented: BTreeSet<String> =
        rows.map(|line| line.split('|').nth(1).unwrap().trim().to_owned()).collect();
    let tested: BTreeSet<String> =
        table().into_iter().map(|row| row.key).chain(ELSEWHERE.map(str::to_owned)).collect();
    assert!(documented.len() > 150, "{} values", documented.len());
    assert_eq!(documented, tested);
}

/// Every object has these labels, and every pod, whichever controller creates it.
#[test]
fn all_objects_and_pods_have_the_standard_labels() {
    let values = json!({
        "commonLabels": {"team": "gpu"}, "networkPolicy": {"enabled": true}, "criticalPodsQuota": true,
        "webhook": {"certificates": "cert-manager", "excludedNamespaceLabel": "off"},
        "extender": {"layouts": true},
        "monitoring": {"podMonitor": {"enabled": true}, "rules": {"enabled": true}, "dashboard": {"enabled": true}},
    });
    let lasting =
        ["name", "component", "part-of", "instance"].map(|name| format!("app.kubernetes.io/{name}"));
    let lacking = |labels: &Value, names: &[String]| {
        names.iter().filter(|name| labels[name.as_str()].is_null()).cloned().collect::<Vec<_>>()
    };
    let mut wrong = Vec::new();
    for (name, object) in by_name(&template_with("kerf-system", &values).unwrap()).unwrap() {
        let mut names = lasting.to_vec();
        names.push("team".to_owned());
        if let Some(pod) = object.pointer("/spec/template/metadata/labels") {
            wrong.extend(lacking(pod, &names).into_iter().map(|label| format!("{name}: its pods: {label}")));
        }
        if object["kind"] != "Pod" {
            names.extend(
                ["app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"]
                    .map(str::to_owned),
            );
        }
        let labels = &object["metadata"]["labels"];
        wrong.extend(lacking(labels, &names).into_iter().map(|label| format!("{name}: {label}")));
        if labels["app.kubernetes.io/instance"] != "kerf" {
            wrong.push(format!("{name}: another instance"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
