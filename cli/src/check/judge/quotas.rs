//! Finds `ResourceQuotas` that limit a name which pods with the same request do not get. Such a limit has no effect,
//! because kube-apiserver counts a pod only under the name in its limits.

use super::policies::policies;
use super::{Finding, Observed, Seen, unknown};
use k8s_openapi::api::core::v1::ResourceQuota;
use kerf_core::admission;
use kerf_core::contract::GpuNodeStatus;
use kerf_core::keys;
use kerf_core::kind::{IsolationClass, Kind};
use kerf_core::policy::{Policies, Supply};
use kerf_core::resource::ResourceName;
use kerf_core::units::SizeGb;
use kerf_runtime::gpu_node::GpuNode;
use serde_json::json;
use std::collections::BTreeSet;

const REQUESTS: &str = "requests.";

pub fn judge(seen: &Observed) -> Vec<Finding> {
    if let Seen::Unknown(why) = &seen.resource_quotas {
        return vec![unknown("the ResourceQuotas of all namespaces", why)];
    }
    let limited = seen.resource_quotas.all().iter().map(|quota| (quota, limited(quota)));
    let mut limited = limited.filter(|(_, names)| !names.is_empty()).peekable();
    // Without the policies and the GPUs it is not known which names pods get. Other groups report what is missing.
    let (Some(_), Ok(policies), Some(nodes)) = (limited.peek(), policies(seen), seen.gpu_nodes.found())
    else {
        return Vec::new();
    };
    let statuses: Vec<GpuNodeStatus> =
        nodes.iter().filter_map(|node: &GpuNode| node.read_status().ok().flatten()).collect();
    let supply = Supply::from_statuses(&statuses);
    let findings: Vec<Finding> =
        limited.flat_map(|(quota, names)| evaded(quota, &names, &policies, &supply)).collect();
    if findings.is_empty() {
        return vec![Finding::fine("pods get the names that ResourceQuotas limit")];
    }
    findings
}

fn limited(quota: &ResourceQuota) -> Vec<ResourceName> {
    let hard = quota.spec.iter().flat_map(|spec| spec.hard.iter().flatten());
    let names = hard.filter_map(|(key, _)| key.strip_prefix(REQUESTS)?.parse::<ResourceName>().ok());
    names.filter(|name| asked(*name).is_some()).collect()
}

/// The request by size that a name answers, with the kind if the name implies one; `None` for names that no request by
/// size gets.
fn asked(name: ResourceName) -> Option<(SizeGb, Option<Kind>)> {
    match name {
        ResourceName::Mig(profile) => profile.is_plain().then(|| (profile.size(), Some(Kind::Mig))),
        ResourceName::Mps(size) | ResourceName::TimeSlicing(size) | ResourceName::Neutral(size) => {
            Some((size, name.kind()))
        }
        _ => None,
    }
}

fn evaded(
    quota: &ResourceQuota,
    names: &[ResourceName],
    policies: &Policies,
    supply: &Supply,
) -> Vec<Finding> {
    let namespace = quota.metadata.namespace.as_deref().unwrap_or_default();
    let called = format!("{namespace}/{}", quota.metadata.name.as_deref().unwrap_or_default());
    let mut findings = Vec::new();
    for name in names {
        let Some((size, kind)) = asked(*name) else { continue };
        let classes = IsolationClass::ALL.into_iter();
        let classes = classes.filter(|class| kind.is_none_or(|kind| class.is_served_by(kind)));
        let given: BTreeSet<ResourceName> =
            classes.filter_map(|class| given(namespace, size, class, policies, supply)).collect();
        let used_names: Vec<String> =
            given.into_iter().filter(|other| !names.contains(other)).map(|other| other.to_string()).collect();
        if used_names.is_empty() {
            continue;
        }
        let limits: Vec<String> = used_names.iter().map(|other| format!("{REQUESTS}{other}")).collect();
        findings.push(Finding::warning(
            format!(
                "ResourceQuota {called} limits {REQUESTS}{name}, and pods that ask for {size} get {}, which it does not count",
                used_names.join(" or ")
            ),
            format!(
                "add {} to it: kubectl -n {namespace} edit resourcequota {}; or limit the namespace by spec.quota of the GpuPolicy, which counts slices of every name",
                limits.join(" and "),
                quota.metadata.name.as_deref().unwrap_or_default()
            ),
        ));
    }
    findings
}

fn given(
    namespace: &str,
    size: SizeGb,
    class: IsolationClass,
    policies: &Policies,
    supply: &Supply,
) -> Option<ResourceName> {
    // The pod runs as a user, because one that may run as root may get no MPS share, and would hide that name.
    let context = json!({"runAsNonRoot": true, "runAsUser": 1000, "allowPrivilegeEscalation": false});
    let limits = json!({(format!("{}{}gb", keys::SIZE_PREFIX, size.0)): "1"});
    let container = json!({"name": "main", "resources": {"limits": limits}, "securityContext": context});
    let pod = json!({
        "metadata": {"annotations": {(keys::ISOLATION): class.to_string()}},
        "spec": {"serviceAccountName": "default", "containers": [container]},
    });
    let admitted = admission::decide(&pod, namespace, policies, supply).ok()??;
    admitted.document.containers.first().map(|container| container.resource)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::judge::tests::{from_json, good};

    /// The findings for a quota with these limits, on the other tests' cluster, whose GPU serves only MPS shares.
    fn said(hard: &[&str]) -> Vec<String> {
        let hard: serde_json::Map<String, serde_json::Value> =
            hard.iter().map(|key| ((*key).to_owned(), json!("4"))).collect();
        let quota = json!({"metadata": {"namespace": "ml", "name": "gpus"}, "spec": {"hard": hard}});
        let seen = Observed { resource_quotas: Seen::Found(vec![from_json(quota)]), ..good() };
        judge(&seen).into_iter().filter(|it| it.remedy().is_some()).map(|it| it.what).collect()
    }

    #[test]
    fn a_quota_on_another_name_is_reported_with_the_name_that_pods_get() {
        let said = said(&["requests.nvidia.com/mig-1g.10gb"]);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("ResourceQuota ml/gpus limits requests.nvidia.com/mig-1g.10gb, and pods that ask for 10 GB get "), "{said:?}");
        assert!(said[0].contains("nvidia.com/gpu-10gb"), "{said:?}");
    }

    #[test]
    fn names_that_pods_get_and_names_without_a_size_have_no_findings() {
        for hard in [
            &["requests.nvidia.com/gpu-10gb"][..],
            &["requests.nvidia.com/gpu", "requests.nvidia.com/gpu.shared"],
            &["requests.nvidia.com/mig-1g.10gb.me", "requests.nvidia.com/mig-1g.10gb.shared"],
            &["requests.cpu", "limits.memory", "pods", "count/pods"],
            &[],
        ] {
            assert_eq!(said(hard), [""; 0], "{hard:?}");
        }
    }

    #[test]
    fn unreadable_quotas_are_one_warning_and_unreadable_nodes_none() {
        let forbidden = Observed { resource_quotas: Seen::Unknown("forbidden".to_owned()), ..good() };
        assert!(judge(&forbidden)[0].what.contains("ResourceQuotas of all namespaces could not be read"));
        let quota = json!({"metadata": {"namespace": "ml", "name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/mig-1g.10gb": "4"}}});
        let seen = Observed {
            resource_quotas: Seen::Found(vec![from_json(quota)]),
            gpu_nodes: Seen::Absent,
            ..good()
        };
        assert!(judge(&seen).is_empty());
    }
}
