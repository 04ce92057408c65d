//! Finds the pods that hold GPUs of a node which kerf has not given them: through NVIDIA's device plugin, through one
//! with similar resource names, or through dynamic resource allocation. Pure.

use kerf_core::names::PodKey;
use kerf_runtime::plugin_pod::PluginPod;
use serde_json::Value;
use std::collections::BTreeSet;

const DRIVER: &str = "gpu.nvidia.com";

/// The prefixes of resource names for GPUs and parts of them: NVIDIA's, HAMi's and nos's; gpushare's; Volcano's. They
/// are longer than a domain, because the resources of NVIDIA's network cards must not match.
const RESOURCES: [&str; 4] = ["nvidia.com/gpu", "nvidia.com/mig-", "aliyun.com/gpu-", "volcano.sh/vgpu-"];

pub(super) fn holders(node: &str, pods: &[PluginPod], claimed: &BTreeSet<PodKey>) -> BTreeSet<String> {
    let holds = |pod: &&PluginPod| {
        pod.is_on(node) && !pod.has_slices() && (asks(pod) || claimed.contains(&pod.key()))
    };
    pods.iter().filter(holds).map(|pod| pod.key().to_string()).collect()
}

fn asks(pod: &PluginPod) -> bool {
    let mut requests = pod.spec.requests().amounts();
    requests.any(|(name, amount)| RESOURCES.iter().any(|begin| name.starts_with(begin)) && amount != "0")
}

pub(super) fn claimed(claims: &[Value]) -> BTreeSet<PodKey> {
    let has_gpus = |claim: &&Value| {
        let results = claim["status"]["allocation"]["devices"]["results"].as_array();
        results.into_iter().flatten().any(|result| result["driver"] == DRIVER)
    };
    let pods = |claim: &Value| {
        let namespace = claim["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let consumers = claim["status"]["reservedFor"].as_array().cloned().unwrap_or_default();
        let pods = consumers.into_iter().filter(|consumer| consumer["resource"] == "pods");
        let names: Vec<String> = pods.filter_map(|pod| Some(pod["name"].as_str()?.to_owned())).collect();
        names.into_iter().map(move |name| PodKey::new(namespace.clone(), name))
    };
    claims.iter().filter(has_gpus).flat_map(pods).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::keys;
    use serde_json::json;

    fn pod(name: &str, resource: &str, amount: &str) -> PluginPod {
        let container = json!({"name": "c", "resources": {"requests": {resource: amount}}});
        let metadata = json!({"namespace": "ml", "name": name});
        let spec = json!({"nodeName": "n1", "containers": [container]});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn names(pods: &[PluginPod]) -> Vec<String> {
        holders("n1", pods, &BTreeSet::new()).into_iter().collect()
    }

    #[test]
    fn pods_hold_gpus_by_any_name_of_them() {
        for name in
            ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/gpu-10gb", "nvidia.com/mig-1g.10gb"]
        {
            assert_eq!(names(&[pod("a", name, "1")]), ["ml/a"], "{name}");
        }
        for name in ["aliyun.com/gpu-mem", "volcano.sh/vgpu-number"] {
            assert_eq!(names(&[pod("a", name, "8")]), ["ml/a"], "{name}");
        }
        for (name, amount) in [("nvidia.com/gpu", "0"), ("nvidia.com/hostdev", "1"), ("cpu", "1")] {
            assert_eq!(names(&[pod("a", name, amount)]), Vec::<String>::new(), "{name}: {amount}");
        }
    }

    #[test]
    fn ended_pods_pods_elsewhere_and_pods_with_kerfs_slices_hold_no_gpu() {
        let mut ended = pod("ended", "nvidia.com/gpu", "1");
        ended.status.phase = Some("Succeeded".to_owned());
        let mut elsewhere = pod("elsewhere", "nvidia.com/gpu", "1");
        elsewhere.spec.node_name = Some("n2".to_owned());
        let mut of_kerf = pod("of-kerf", "nvidia.com/mig-1g.10gb", "1");
        let slice =
            json!({"container": "c", "id": "s1", "gpu": "GPU-1", "shape": {"kind": "mps", "sizeGb": 4}});
        let assignment = json!({"version": 1, "slices": [slice]}).to_string();
        of_kerf.metadata.annotations = Some([(keys::ASSIGNMENT.to_owned(), assignment)].into());
        // kerf has bound this pod to a static node. It holds a GPU all the same, because NVIDIA's plugin has given it
        // its device.
        let mut of_plugin = pod("of-plugin", "nvidia.com/gpu", "1");
        let assignment = json!({"version": 1, "slices": []}).to_string();
        of_plugin.metadata.annotations = Some([(keys::ASSIGNMENT.to_owned(), assignment)].into());
        assert_eq!(names(&[ended, elsewhere, of_kerf, of_plugin]), ["ml/of-plugin"]);
    }

    #[test]
    fn pods_hold_the_devices_that_their_claims_allocate() {
        let claim = |driver: &str, pod: &str| {
            let devices = json!({"results": [{"driver": driver, "pool": "n1", "device": "gpu-0"}]});
            let consumers = json!([{"resource": "pods", "name": pod, "uid": "u"}]);
            json!({
                "metadata": {"namespace": "ml", "name": "c"},
                "status": {"allocation": {"devices": devices}, "reservedFor": consumers},
            })
        };
        let claims = [claim(DRIVER, "a"), claim("net.example.com", "b"), json!({"metadata": {"name": "c"}})];
        let claimed = claimed(&claims);
        assert_eq!(claimed, [PodKey::new("ml", "a")].into());
        let pods = [pod("a", "cpu", "1"), pod("b", "cpu", "1")];
        assert_eq!(holders("n1", &pods, &claimed), ["ml/a".to_owned()].into());
    }
}
