use super::*;
use kerf_core::testing::request;

fn args(pod: &serde_json::Value, names: &serde_json::Value) -> String {
    serde_json::json!({"Pod": pod, "Nodes": null, "NodeNames": names}).to_string()
}

fn pod(annotations: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({
        "metadata": {
            "name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7", "creationTimestamp": null,
            "labels": {"kerf.dev/sliced": "true"}, "annotations": annotations,
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]},
        "status": {"phase": "Pending"},
    })
}

#[test]
fn the_schedulers_request_is_read() {
    let document = request("nvidia.com/mig-1g.10gb", 1);
    let annotations = serde_json::json!({"kerf.dev/request": document.to_json(), "x": "y"});
    let text = args(&pod(&annotations), &serde_json::json!(["n1", "n2"]));
    let args: ExtenderArgs = serde_json::from_str(&text).unwrap();
    let candidate = args.candidate();
    assert_eq!((candidate.uid, candidate.key), (PodUid::new("u"), PodKey::new("ns", "a")));
    assert_eq!(*candidate.ask.unwrap().document, document);
    assert_eq!(candidate.nominated, None);
    assert_eq!(args.node_names().unwrap(), ["n1", "n2"]);
}

#[test]
fn the_nominated_node_is_read() {
    let mut pod = pod(&serde_json::json!(null));
    for (name, nominated) in [("n1", Some(NodeName::from("n1"))), ("", None)] {
        pod["status"]["nominatedNodeName"] = serde_json::json!(name);
        let text = args(&pod, &serde_json::json!(["n1"]));
        let args: ExtenderArgs = serde_json::from_str(&text).unwrap();
        assert_eq!(args.candidate().nominated, nominated);
    }
}

#[test]
fn names_are_not_copied() {
    let text = args(&pod(&serde_json::json!(null)), &serde_json::json!(["node-1"]));
    let args: ExtenderArgs = serde_json::from_str(&text).unwrap();
    assert!(matches!(args.node_names.unwrap()[0].0, Cow::Borrowed("node-1")));
    assert!(matches!(args.pod.metadata.uid.0, Cow::Borrowed("u")));
}

#[test]
fn absent_and_null_fields_are_the_same() {
    for annotations in [serde_json::json!(null), serde_json::json!({})] {
        let text = args(&pod(&annotations), &serde_json::json!(null));
        let args: ExtenderArgs = serde_json::from_str(&text).unwrap();
        assert_eq!(args.candidate().ask, Err(Refusal::NotAdmitted));
        assert!(args.node_names().is_none());
    }
}

#[test]
fn the_nominated_node_of_a_pod_is_read() {
    for (status, expected) in [
        (serde_json::json!({"nominatedNodeName": "n1"}), Some("n1".into())),
        (serde_json::json!({"nominatedNodeName": ""}), None),
        (serde_json::json!(null), None),
    ] {
        let mut pod = pod(&serde_json::json!(null));
        pod["status"] = status;
        let text = args(&pod, &serde_json::json!([]));
        assert_eq!(serde_json::from_str::<ExtenderArgs<'_>>(&text).unwrap().candidate().nominated, expected);
    }
}

#[test]
fn answers_have_gos_field_names() {
    let refused = vec![("n3", Refusal::NoRoom)];
    let filtered = Filtered { fitting: vec!["n1", "n2"], refused: refused.clone(), unserved: None };
    let asked = serde_json::json!({
        "Pod": pod(&serde_json::json!(null)),
        "NodeNameToVictims": null,
        "NodeNameToMetaVictims": {
            "n1": {"Pods": [{"UID": "v1"}, {"UID": "v2"}], "NumPDBViolations": 1},
            "n2": {"Pods": [{"UID": "v3"}], "NumPDBViolations": 0},
        },
    })
    .to_string();
    let asked: PreemptArgs<'_> = serde_json::from_str(&asked).unwrap();
    let answers = [
        serde_json::to_string(&FilterResult::from(filtered)).unwrap(),
        serde_json::to_string(&FilterResult::from(Filtered { fitting: vec![], refused, unserved: None }))
            .unwrap(),
        serde_json::to_string(&FilterResult::error("not the leader")).unwrap(),
        serde_json::to_string(&[HostPriority { host: "n1", score: 2000 }]).unwrap(),
        serde_json::to_string(&asked.leave(Some(&["n1"]))).unwrap(),
        serde_json::to_string(&asked.leave(Some(&[]))).unwrap(),
        serde_json::to_string(&BindResult::default()).unwrap(),
        serde_json::to_string(&BindResult { error: "slice is being cut".into() }).unwrap(),
    ];
    insta::assert_snapshot!(answers.join("\n"));
}

#[test]
fn a_bind_is_read() {
    let text = r#"{"PodName":"a","PodNamespace":"ns","PodUID":"u","Node":"n1"}"#;
    let expected =
        BindArgs { pod_name: "a".into(), pod_namespace: "ns".into(), pod_uid: "u".into(), node: "n1".into() };
    assert_eq!(serde_json::from_str::<BindArgs>(text).unwrap(), expected);
}

/// NVIDIA's device plugin would give it the device, but it would never get the slice.
#[test]
fn a_pod_with_a_neutral_name_and_no_request_gets_no_devices() {
    for (requests, devices) in [
        (serde_json::json!({"nvidia.com/gpu": "1"}), 1),
        (serde_json::json!({"nvidia.com/gpu": "1", "kerf.dev/gpu-10gb": "0"}), 1),
        (serde_json::json!({"nvidia.com/gpu": "1", "kerf.dev/gpu-10gb": "1"}), 0),
        (serde_json::json!({"kerf.dev/gpu-10gb": "1"}), 0),
    ] {
        let mut pod = pod(&serde_json::json!(null));
        pod["spec"]["containers"][0]["resources"]["requests"] = requests.clone();
        let text = args(&pod, &serde_json::json!([]));
        let args: ExtenderArgs<'_> = serde_json::from_str(&text).unwrap();
        let candidate = args.candidate();
        assert_eq!((args.asks_for_nothing(), candidate.ask), (false, Err(Refusal::NotAdmitted)));
        assert_eq!(candidate.devices.len(), devices, "{requests}");
    }
}

#[test]
fn the_taints_that_a_pod_tolerates_are_read() {
    let mut pod = pod(&serde_json::json!(null));
    pod["spec"]["tolerations"] = serde_json::json!([{"key": "spot", "operator": "Exists"}]);
    let text = args(&pod, &serde_json::json!([]));
    let args: ExtenderArgs<'_> = serde_json::from_str(&text).unwrap();
    assert_eq!(args.candidate().tolerations[0].key.as_deref(), Some("spot"));
}
