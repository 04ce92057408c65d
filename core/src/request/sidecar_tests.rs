//! Tests of pods in the shape that Istio and Linkerd give them: the places, names and restart policies of containers,
//! the proxy's resources, and the annotations that name a default container. No manifest is copied. The shapes are
//! those of the expected outputs of the injectors' own tests:
//!
//! | case | file | commit |
//! |---|---|---|
//! | istio, before it named a default container | istio/istio `pkg/kube/inject/testdata/inject/app_probe/one_container.yaml.injected` | 9433a2d |
//! | istio, holdApplicationUntilProxyStarts | `hello-probes.proxyHoldsApplication.yaml.injected` | 0098d99 |
//! | istio, native | `native-sidecar.yaml.injected` | 07bb7fd |
//! | linkerd | linkerd/linkerd2 `cli/cmd/testdata/inject_emojivoto_deployment.golden.yml` | 1071ec2 |
//! | linkerd, two containers | `inject_contour.golden.yml` | 00bf278 |
//! | linkerd, native | `inject_emojivoto_deployment_native_sidecar.golden.yml` | 005a3a4 |
//!
//! Istio's template names the first app container as the default one where the pod names none. Linkerd names none.

use super::*;
use crate::keys;
use crate::request::Dialect;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn container(name: &str) -> Value {
    json!({"name": name})
}

fn istio_proxy() -> Value {
    let resources =
        json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "128Mi"}});
    json!({"name": "istio-proxy", "resources": resources, "securityContext": {"privileged": false}})
}

fn native(mut proxy: Value) -> Value {
    proxy["restartPolicy"] = json!("Always");
    proxy
}

fn injected(annotations: Value, init_containers: Value, containers: Value) -> Value {
    json!({"metadata": {"annotations": annotations}, "spec": {"initContainers": init_containers, "containers": containers}})
}

/// The injected pods, each with its own app containers.
fn pods() -> Vec<(&'static str, Value, Vec<&'static str>)> {
    let (hello, web) = (container("hello"), container("web-svc"));
    let (init, linkerd_init) = (container("istio-init"), container("linkerd-init"));
    let linkerd = || container("linkerd-proxy");
    let status = json!({"sidecar.istio.io/status": r#"{"initContainers":["istio-init"],"containers":["istio-proxy"]}"#});
    let names_default = || json!({"kubectl.kubernetes.io/default-container": "hello", "kubectl.kubernetes.io/default-logs-container": "hello"});
    vec![
        (
            "istio, before it named a default container",
            injected(status, json!([init]), json!([hello, istio_proxy()])),
            vec!["hello"],
        ),
        (
            "istio, holdApplicationUntilProxyStarts",
            injected(names_default(), json!([init]), json!([istio_proxy(), hello, container("world")])),
            vec!["hello", "world"],
        ),
        (
            "istio, native",
            injected(
                names_default(),
                json!([init, native(istio_proxy()), native(container("other-sidecar"))]),
                json!([hello]),
            ),
            vec!["hello"],
        ),
        (
            "linkerd",
            injected(
                json!({"linkerd.io/created-by": "linkerd/cli"}),
                json!([linkerd_init]),
                json!([linkerd(), web]),
            ),
            vec!["web-svc"],
        ),
        (
            "linkerd, two containers",
            injected(
                json!({"linkerd.io/created-by": "linkerd/cli"}),
                json!([container("envoy-initconfig"), linkerd_init]),
                json!([linkerd(), container("contour"), container("envoy")]),
            ),
            vec!["contour", "envoy"],
        ),
        (
            "linkerd, native",
            injected(
                json!({"config.alpha.linkerd.io/proxy-enable-native-sidecar": "true"}),
                json!([linkerd_init, native(linkerd())]),
                json!([web]),
            ),
            vec!["web-svc"],
        ),
    ]
}

fn asking(mut pod: Value, notes: &[(&str, &str)]) -> PodView {
    for (key, text) in notes {
        pod["metadata"]["annotations"][key] = json!(text);
    }
    serde_json::from_value(pod).unwrap()
}

fn askers(pod: &PodView, sidecars: Option<&[String]>) -> Result<Vec<String>, AskError> {
    let ask = read(pod, &Reading { sidecars, ..Reading::without_policy(&BTreeSet::new()) })?;
    Ok(ask.into_iter().flat_map(|ask| ask.containers).map(|container| container.name).collect())
}

#[test]
fn an_annotation_without_a_name_means_the_container_that_was_not_injected() {
    for (what, pod, own) in pods() {
        let names_default = pod["metadata"]["annotations"][keys::DEFAULT_CONTAINER].is_string();
        let asked = askers(&asking(pod, &[(keys::GPU_MEMORY, "10Gi")]), None);
        match own.as_slice() {
            [first, ..] if names_default => assert_eq!(asked, Ok(vec![(*first).to_owned()]), "{what}"),
            [only] => assert_eq!(asked, Ok(vec![(*only).to_owned()]), "{what}"),
            [first, ..] => {
                let (key, first) = (keys::GPU_MEMORY.to_owned(), (*first).to_owned());
                assert_eq!(asked, Err(AskError::Ambiguous { key, first }), "{what}");
            }
            [] => unreachable!("every pod has a container of its own"),
        }
    }
}

/// The order of the webhooks matters for such a pod, as `docs/reference/requests.md` explains.
#[test]
fn a_pod_with_two_containers_is_refused_before_istio_and_accepted_after_it() {
    let own = json!([container("hello"), container("world")]);
    let notes = [(keys::GPU_MEMORY, "10Gi")];
    let before = askers(&asking(injected(json!({}), json!([]), own), &notes), None);
    assert!(matches!(before, Err(AskError::Ambiguous { .. })), "{before:?}");
    let (_, after, _) = pods().remove(1);
    assert_eq!(askers(&asking(after, &notes), None), Ok(vec!["hello".to_owned()]));
}

#[test]
fn every_key_without_a_name_means_the_same_container() {
    let (_, istio, _) = pods().remove(0);
    let pod = asking(istio, &[(keys::GPU_PROFILE, "1g.10gb"), (keys::GPU_COUNT, "2")]);
    let ask = read(&pod, &Reading::without_policy(&BTreeSet::new())).unwrap().unwrap();
    assert_eq!(ask.containers.iter().map(|c| (c.name.as_str(), c.count)).collect::<Vec<_>>(), [("hello", 2)]);
}

#[test]
fn the_default_container_is_meant_at_any_position() {
    for (what, pod, own) in pods() {
        for named in own {
            let notes = [(keys::GPU_MEMORY, "10Gi"), (keys::DEFAULT_CONTAINER, named)];
            assert_eq!(askers(&asking(pod.clone(), &notes), None), Ok(vec![named.to_owned()]), "{what}");
        }
    }
}

#[test]
fn a_default_container_that_is_no_app_container_is_refused_by_its_name() {
    for (what, pod, own) in pods() {
        let init = pod["spec"]["initContainers"][0]["name"].as_str().unwrap().to_owned();
        for missing in ["gone", &init] {
            let notes = [(keys::GPU_MEMORY, "10Gi"), (keys::DEFAULT_CONTAINER, missing)];
            let error = askers(&asking(pod.clone(), &notes), None).unwrap_err().to_string();
            let parts = [keys::DEFAULT_CONTAINER, missing, &format!("{}.{}", keys::GPU_MEMORY, own[0])];
            assert!(parts.iter().all(|part| error.contains(*part)), "{what}: {error}");
            // A key with a container's name needs no default.
            let notes =
                [(&*format!("{}.{}", keys::GPU_MEMORY, own[0]), "10Gi"), (keys::DEFAULT_CONTAINER, missing)];
            assert_eq!(askers(&asking(pod.clone(), &notes), None), Ok(vec![own[0].to_owned()]), "{what}");
        }
    }
}

#[test]
fn a_policy_lists_other_sidecars() {
    let pod = injected(json!({}), json!([]), json!([container("vault-agent"), container("main")]));
    let pod = asking(pod, &[(keys::GPU_MEMORY, "10Gi")]);
    assert!(matches!(askers(&pod, None), Err(AskError::Ambiguous { .. })));
    assert_eq!(askers(&pod, Some(&["vault-agent".to_owned()])), Ok(vec!["main".to_owned()]));
    let gateway =
        asking(injected(json!({}), json!([]), json!([istio_proxy()])), &[(keys::GPU_MEMORY, "10Gi")]);
    assert_eq!(askers(&gateway, None), Ok(vec!["istio-proxy".to_owned()]), "it is the pod's only container");
}

#[test]
fn a_pod_without_containers_is_refused() {
    let error =
        askers(&asking(injected(json!({}), json!([]), json!([])), &[(keys::GPU_MEMORY, "10Gi")]), None)
            .unwrap_err();
    assert_eq!(
        error.to_string(),
        "metadata.annotations[kerf.dev/gpu-memory]: the pod has no container in spec.containers; add the one that is to have the slice"
    );
}

#[test]
fn kais_first_container_skips_injected_ones() {
    let dialects = [Dialect::Kai].into();
    let reading = Reading {
        dialects: &dialects,
        fraction_of: Some(crate::units::SizeGb(80)),
        ..Reading::without_policy(&BTreeSet::new())
    };
    for (what, pod, own) in pods() {
        let ask = read(&asking(pod, &[("gpu-fraction", "0.5")]), &reading).unwrap().unwrap();
        assert_eq!(ask.containers.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), [own[0]], "{what}");
    }
}

proptest! {
    /// An injector that only adds a container may run before kerf or after it.
    #[test]
    fn a_sidecar_does_not_change_the_container_of_a_key_without_a_name(
        own in prop::collection::btree_set("[a-d]", 1..4),
        default in prop::option::of("[a-e]"),
        proxy in prop::sample::select(vec!["istio-proxy", "linkerd-proxy"]),
        place in 0_usize..4,
        is_native in any::<bool>(),
    ) {
        let mut notes = vec![(keys::GPU_MEMORY, "10Gi")];
        notes.extend(default.as_deref().map(|default| (keys::DEFAULT_CONTAINER, default)));
        let mut containers: Vec<Value> = own.iter().map(|name| container(name)).collect();
        let before = injected(json!({}), json!([]), json!(containers));
        let inits = if is_native { json!([native(container(proxy))]) } else { json!([]) };
        if !is_native {
            containers.insert(place.min(containers.len()), container(proxy));
        }
        let after = injected(json!({}), inits, json!(containers));
        prop_assert_eq!(askers(&asking(before, &notes), None), askers(&asking(after, &notes), None));
    }
}
