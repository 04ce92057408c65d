//! The client's pod on a node without a registry: it uses the machine's Python from the machine's `/usr` and
//! `/opt`.

use kerf_tests::kubelet_rules::IMAGE;
use serde_json::json;

use crate::args::Args;
use crate::lent;

pub fn text(args: &Args) -> String {
    let (mut volumes, mut mounts) = (lent::volumes(), lent::mounts());
    volumes.push(json!({"name": "tmp", "emptyDir": {}}));
    mounts.push(json!({"name": "tmp", "mountPath": "/tmp"}));
    let template = json!({
        "spec": {
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{
                "name": "client",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                // kerf gives root no MPS share, because root could command the MPS daemon.
                "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": false},
                "command": [args.python],
                // All pods share the machine's ports, so each takes a free one.
                "env": [{"name": "PORT", "value": "0"}, {"name": "LD_LIBRARY_PATH", "value": args.libraries}],
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    });
    // Every YAML parser accepts JSON.
    format!("{template:#}\n")
}
