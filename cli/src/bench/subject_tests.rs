use super::*;
use serde_json::json;

fn args(workload: WorkloadName, image: Option<&str>, command: &[&str]) -> PodArgs {
    PodArgs {
        workload,
        image: image.map(str::to_owned),
        template: None,
        client_path: None,
        command: command.iter().map(|&word| word.to_owned()).collect(),
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn container(subject: &Subject) -> &Container {
    let containers = &subject.template.spec.as_ref().unwrap().containers;
    containers.iter().find(|container| container.name == subject.container).unwrap()
}

fn value<'s>(subject: &'s Subject, name: &str) -> Option<&'s str> {
    let env = container(subject).env.as_ref()?;
    let found: Vec<_> = env.iter().filter(|variable| variable.name == name).collect();
    assert!(found.len() <= 1, "{name} is there twice");
    found.first()?.value.as_deref()
}

#[test]
fn without_a_template_the_client_runs_from_the_config_map() {
    let subject = client(&args(WorkloadName::Yolos, Some("torch"), &[]), None, SECOND).unwrap();
    assert!(subject.files);
    assert_eq!(
        container(&subject).command.as_deref(),
        Some(&["python3".to_owned(), "/kerf-bench/client.py".to_owned()][..])
    );
    assert_eq!(container(&subject).args, None);
    let expected =
        [("WORKLOAD", Some("yolos")), ("WARM_UP", Some("1")), ("SECONDS", Some("0")), ("PORT", None)];
    assert_eq!(expected.map(|(name, _)| (name, value(&subject, name))), expected);
    assert_eq!(container(&subject).ports.as_ref().unwrap()[0].container_port, 8000);
}

#[test]
fn a_template_keeps_everything_but_the_measured_fields() {
    let template = r#"
metadata: {labels: {team: a}, annotations: {note: kept}}
spec:
  hostNetwork: true
  nodeSelector: {gpu: h200}
  containers:
  - name: side
    image: other
  - name: client
    image: local
    imagePullPolicy: Never
    command: [/opt/python3, -u]
    env: [{name: LD_LIBRARY_PATH, value: /lib}, {name: PORT, value: "0"}, {name: WORKLOAD, value: burn}]
    volumeMounts: [{name: opt, mountPath: /opt}]
  volumes: [{name: opt, hostPath: {path: /opt}}]
"#;
    let args = args(WorkloadName::Command, None, &["sleep", "0.1"]);
    let subject = client(&args, Some(template), SECOND).unwrap();
    insta::assert_yaml_snapshot!(subject.template);
}

#[test]
fn the_clients_folder_may_be_in_the_container_already() {
    let mut args = args(WorkloadName::Llm, Some("torch"), &[]);
    args.client_path = Some("/client/".to_owned());
    let subject = client(&args, Some("spec: {hostNetwork: true}"), SECOND).unwrap();
    assert!(!subject.files && container(&subject).volume_mounts.is_none());
    assert_eq!(container(&subject).command.as_ref().unwrap()[1], "/client/client.py");
    // On the host's network all copies would need the same port.
    assert_eq!(value(&subject, "PORT"), Some("0"));
}

#[test]
fn bad_flags_are_refused_with_what_to_write() {
    let refused = |args: &PodArgs, template| client(args, template, SECOND).unwrap_err().to_string();
    let yolos = args(WorkloadName::Yolos, Some("torch"), &[]);
    assert!(refused(&args(WorkloadName::Yolos, None, &[]), None).contains("--image"));
    assert!(refused(&args(WorkloadName::Command, Some("i"), &[]), None).contains("behind --"));
    assert!(
        refused(&args(WorkloadName::Burn, Some("i"), &["sleep"]), None).contains("--workload command only")
    );
    assert!(refused(&yolos, Some("spect: {}")).contains("\"spect\""));
    for template in ["- 1", "spec: 3", "spec: {containers: 3}", "{"] {
        assert!(refused(&yolos, Some(template)).starts_with("--template"), "{template}");
    }
}

fn running() -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "serving", "namespace": "default", "uid": "u", "resourceVersion": "7",
            "labels": {"app": "serving", "kerf.dev/sliced": "true"},
            "annotations": {"kerf.dev/gpu-memory": "6Gi", "kerf.dev/assignment": "{}", "note": "kept"},
        },
        "spec": {
            "nodeName": "n", "schedulerName": "kerf-scheduler", "restartPolicy": "Never", "priority": 0,
            "containers": [{
                "name": "main", "image": "serving",
                "resources": {"limits": {"cpu": "1", "nvidia.com/gpu-6gb": "1"}, "requests": {"nvidia.com/gpu-6gb": "1"}},
                "volumeMounts": [
                    {"name": "kube-api-access-x7", "mountPath": "/var/run/secrets"}, {"name": "data", "mountPath": "/data"},
                ],
            }],
            "volumes": [{"name": "kube-api-access-x7", "projected": {}}, {"name": "data", "emptyDir": {}}],
        },
        "status": {"phase": "Running"},
    }))
    .unwrap()
}

#[test]
fn a_running_pods_template_has_no_cluster_fields_and_no_request() {
    let subject = pod(running(), None).unwrap();
    assert_eq!((subject.container.as_str(), subject.files), ("main", false));
    insta::assert_yaml_snapshot!(subject.template);
}

#[test]
fn a_pod_of_several_containers_needs_the_name_of_one() {
    let mut two = running();
    let containers = &mut two.spec.as_mut().unwrap().containers;
    containers.push(Container { name: "side".to_owned(), ..Container::default() });
    assert!(pod(two.clone(), None).unwrap_err().to_string().contains("several containers: main, side"));
    assert!(pod(two.clone(), Some("mian")).unwrap_err().to_string().contains("--container mian"));
    assert_eq!(pod(two, Some("side")).unwrap().container, "side");
    assert!(matches!(pod(Pod::default(), None), Err(SubjectError::NoSpec)));
}

#[test]
fn a_pods_memory_is_from_its_annotation_or_its_limit() {
    assert_eq!(asked(&running(), None), Some(SizeGb(6)));
    let mut by_limit = running();
    by_limit.metadata.annotations = None;
    assert_eq!(asked(&by_limit, Some("main")), Some(SizeGb(6)));
    assert_eq!(asked(&by_limit, Some("other")), None);
    by_limit.spec.as_mut().unwrap().containers[0].resources = None;
    assert_eq!(asked(&by_limit, None), None);
}
