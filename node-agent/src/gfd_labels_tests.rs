use super::*;
use crate::api_stand_in::{client, refusal};

fn present(of: &[(&str, &str)]) -> Present {
    of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn labels_that_differ_are_set_stale_ones_removed_and_foreign_ones_kept() {
    let node = present(&[
        ("nvidia.com/gpu.product", "NVIDIA-A10G"),
        ("nvidia.com/gpu.count", "1"),
        ("nvidia.com/mig-1g.5gb.count", "7"),
        ("nvidia.com/mig.config", "all-1g.5gb"),
        ("nvidia.com/gpu.present", "true"),
        ("zone", "a"),
    ]);
    let wanted = present(&[("nvidia.com/gpu.product", "NVIDIA-A10G-SHARED"), ("nvidia.com/gpu.count", "1")]);
    let expected =
        json!({"nvidia.com/gpu.product": "NVIDIA-A10G-SHARED", "nvidia.com/mig-1g.5gb.count": null});
    assert_eq!(Value::from(changes(&node, &wanted, &BTreeSet::new())), expected);
}

#[test]
fn labels_that_nfd_manages_are_skipped() {
    let node = present(&[("nvidia.com/gpu.product", "NVIDIA-A10G"), ("nvidia.com/mig-1g.5gb.count", "7")]);
    let wanted = present(&[("nvidia.com/gpu.product", "NVIDIA-A10G-SHARED"), ("nvidia.com/gpu.count", "1")]);
    for (annotation, counts) in [
        ("nfd.node.kubernetes.io/feature-labels", true),
        ("gpus.nfd.node.kubernetes.io/feature-labels", true),
        ("example.com/feature-labels", false),
        ("xnfd.node.kubernetes.io/feature-labels", false),
    ] {
        let list = "cpu-model.id,nvidia.com/gpu.product,nvidia.com/mig-1g.5gb.count";
        let others = names_from_nfd(Some(&present(&[(annotation, list)])));
        let left = changes(&node, &wanted, &others);
        assert_eq!(left.len(), if counts { 1 } else { 3 }, "{annotation}: {left:?}");
    }
    assert_eq!(names_from_nfd(None), BTreeSet::new());
}

#[test]
fn mig_labels_are_not_set_while_the_operator_would_switch_mig_off() {
    let names = |has_mig: &str, node: &[(&str, &str)]| -> Vec<String> {
        let wanted = present(&[
            ("nvidia.com/gpu.count", "1"),
            ("nvidia.com/gpu.product", "NVIDIA-H100"),
            ("nvidia.com/mig.capable", has_mig),
        ]);
        harmless(&present(node), &wanted).into_keys().collect()
    };
    let operator = ("nvidia.com/gpu.deploy.driver", "true");
    assert_eq!(names("true", &[operator]), ["nvidia.com/gpu.count"]);
    assert_eq!(names("true", &[operator, ("nvidia.com/gpu.deploy.mig-manager", "false")]).len(), 3);
    assert_eq!(names("true", &[]).len(), 3);
    assert_eq!(names("false", &[operator]).len(), 3, "a GPU without MIG");
}

const QUICK: Pace = Pace { gather: Duration::from_millis(50), look: Duration::from_millis(1) };

#[tokio::test]
async fn a_burst_of_changes_is_one_patch_and_a_failed_patch_is_retried() {
    let answers = std::sync::atomic::AtomicUsize::new(0);
    let (client, log) = client(move |asked| match asked.method.as_str() {
        "GET" => (200, json!({"metadata": {"name": "n1", "labels": {}}})),
        _ if answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 => refusal(503),
        _ => (200, json!({"metadata": {"name": "n1"}})),
    });
    let (sender, labels) = watch::channel(GfdLabels::new());
    let stop = CancellationToken::new();
    for replicas in 1..=5 {
        sender.send_replace(present(&[("nvidia.com/gpu.replicas", &replicas.to_string())]));
    }
    let kept = tokio::spawn(keep((Api::all(client), "n1".to_owned()), labels, Some(QUICK), stop.clone()));
    let patches = || log.all().into_iter().filter(|asked| asked.method == "PATCH");
    while patches().count() < 2 {
        tokio::time::sleep(QUICK.look).await;
    }
    let newest = json!({"metadata": {"labels": {"nvidia.com/gpu.replicas": "5"}}});
    for patch in patches() {
        assert_eq!(patch.body["metadata"]["labels"], newest["metadata"]["labels"]);
    }
    stop.cancel();
    kept.await.unwrap();
}

#[tokio::test]
async fn no_labels_are_written_if_there_are_none_or_the_admin_disables_them() {
    let some = present(&[("nvidia.com/gpu.count", "1")]);
    for (pace, wanted) in [(Some(QUICK), Present::new()), (None, some)] {
        let (client, log) = client(|_| refusal(404));
        let (sender, labels) = watch::channel(GfdLabels::new());
        let stop = CancellationToken::new();
        let kept = tokio::spawn(keep((Api::all(client), "n1".to_owned()), labels, pace, stop.clone()));
        sender.send_replace(wanted);
        tokio::time::sleep(QUICK.gather * 4).await;
        assert_eq!(log.all(), []);
        stop.cancel();
        kept.await.unwrap();
    }
}
