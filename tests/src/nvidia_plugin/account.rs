//! The identity of NVIDIA's programs for the API server: the rights of the chart's `ClusterRole`
//! (`templates/role.yml`) that config-manager needs.

use std::path::PathBuf;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::control_plane::ControlPlane;

const NAME: &str = "nvidia-device-plugin";

/// Creates the account and its rights, and returns its kubeconfig.
pub(super) async fn kubeconfig(plane: &ControlPlane) -> anyhow::Result<PathBuf> {
    let apply = PatchParams::apply("kerf-tests").force();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": NAME},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}],
    });
    Api::<ClusterRole>::all(plane.client()).patch(NAME, &apply, &Patch::Apply(role)).await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": NAME},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": NAME}],
    });
    Api::<ClusterRoleBinding>::all(plane.client()).patch(NAME, &apply, &Patch::Apply(binding)).await?;
    plane.kubeconfig_for(NAME, None)
}
