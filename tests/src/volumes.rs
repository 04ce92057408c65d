//! Volumes for clusters without volume controllers: both sides are already bound, as the controllers would
//! leave them.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// The label with a node's zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// Creates the claim `name` in the namespace `default`, bound to a volume of the same name that only nodes of
/// this zone can use.
pub async fn bound_in_zone(client: &Client, name: &str, zone: &str) -> anyhow::Result<()> {
    let size = json!({"storage": "1Gi"});
    let claim = json!({
        "metadata": {"name": name, "annotations": {
            "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
        }},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": size},
            "storageClassName": "", "volumeName": name,
        },
    });
    // The claim comes first, because the volume names its UID.
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(client.clone());
    let claim = claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await;
    let uid = claim.with_context(|| format!("failed to make the claim {name}"))?.metadata.uid;
    let here = json!([{"key": ZONE, "operator": "In", "values": [zone]}]);
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": size, "accessModes": ["ReadWriteOnce"], "local": {"path": "/data"},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": "default", "name": name, "uid": uid,
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": here}]}},
        },
    });
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let made = volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await;
    made.with_context(|| format!("failed to make the volume {name}"))?;
    let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
    volumes.patch_status(name, &PatchParams::default(), &bound).await?;
    claims.patch_status(name, &PatchParams::default(), &bound).await?;
    Ok(())
}
