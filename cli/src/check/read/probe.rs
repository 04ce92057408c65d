//! Probes the webhook with a pod that asks for GPU memory. The pod is a dry run, so that the API server never creates
//! it.

use crate::check::observed::{PROBED, Probe};
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

pub async fn show(client: &Client) -> Probe {
    let pod = match serde_json::from_value::<Pod>(pod()) {
        Ok(pod) => pod,
        Err(error) => return Probe::Hindered(error.to_string()),
    };
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    outcome(Api::<Pod>::namespaced(client.clone(), PROBED).create(&dry_run, &pod).await)
}

/// A pod that every `PodSecurity` level admits, so that only the webhook decides about it.
fn pod() -> serde_json::Value {
    json!({
        "metadata": {"generateName": "kerf-check-", "annotations": {keys::GPU_MEMORY: "1Gi"}},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "probe", "image": "none",
                "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "1Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

fn outcome(answer: Result<Pod, kube::Error>) -> Probe {
    match answer {
        Ok(pod) => {
            let annotations = pod.metadata.annotations.unwrap_or_default();
            if annotations.contains_key(keys::REQUEST) { Probe::Admitted } else { Probe::PassedBy }
        }
        // The text is parsed, because the status code does not show who has refused the pod.
        Err(kube::Error::Api(status)) => from_message(&status.message),
        Err(error) => Probe::Hindered(format!("{:#}", anyhow::Error::from(error))),
    }
}

/// Parses the API server's messages: kubernetes `plugin/pkg/admission/.../webhook/errors` and
/// `.../mutating/dispatcher.go`.
fn from_message(message: &str) -> Probe {
    let failed = format!("failed calling webhook \"pods.{}\":", keys::GROUP);
    let denied = format!("admission webhook \"pods.{}\" denied the request: ", keys::GROUP);
    // The guard denies a pod that asks for GPUs and that the webhook has not seen.
    if message.contains(&format!("'undecided-pods.guard.{}'", keys::GROUP)) {
        Probe::PassedBy
    } else if let Some((_, why)) = message.split_once(&failed) {
        Probe::Unreachable(why.trim().to_owned())
    } else if let Some((_, why)) = message.split_once(&denied) {
        Probe::Refused(why.to_owned())
    } else {
        Probe::Hindered(message.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_servers_message_identifies_who_refused_the_pod() {
        let cases = [
            (
                "Internal error occurred: failed calling webhook \"pods.kerf.dev\": failed to call webhook: Post \"https://x\": x509: unknown",
                Probe::Unreachable("failed to call webhook: Post \"https://x\": x509: unknown".to_owned()),
            ),
            (
                "admission webhook \"pods.kerf.dev\" denied the request: no policy",
                Probe::Refused("no policy".to_owned()),
            ),
            (
                "pods \"kerf-check-x\" is forbidden: ValidatingAdmissionPolicy 'undecided-pods.guard.kerf.dev' with binding 'undecided-pods.guard.kerf.dev' denied request: no",
                Probe::PassedBy,
            ),
            (
                "admission webhook \"other\" denied the request: no",
                Probe::Hindered("admission webhook \"other\" denied the request: no".to_owned()),
            ),
        ];
        for (message, expected) in cases {
            assert_eq!(from_message(message), expected);
        }
    }

    #[test]
    fn an_unchanged_pod_has_bypassed_the_webhook() {
        let mut pod: Pod = serde_json::from_value(pod()).unwrap();
        assert_eq!(outcome(Ok(pod.clone())), Probe::PassedBy);
        pod.metadata.annotations.get_or_insert_default().insert(keys::REQUEST.to_owned(), "{}".to_owned());
        assert_eq!(outcome(Ok(pod)), Probe::Admitted);
    }
}
