//! The client's pod on a node that reaches no registry: the machine's Python, in the machine's /usr and /opt.

use kerf_tests::real_node::IMAGE;
use serde_json::json;

use crate::args::Args;
use crate::lent;

/// A pod template for `kerf bench sharing`.
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
                // Root beside an MPS daemon could command it, and gets no share.
                "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": false},
                "command": [args.python],
                // All pods share the machine's ports.
                "env": [{"name": "PORT", "value": "0"}, {"name": "LD_LIBRARY_PATH", "value": args.libraries}],
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    });
    // JSON, which every reader of YAML accepts.
    format!("{template:#}\n")
}
