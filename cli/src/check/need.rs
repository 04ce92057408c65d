//! The rights that kerf needs: those of the user who installs it, and those of its programs. The programs' rights come
//! from the manifests in `deploy/base`, so that the check never differs from what is granted.

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;
use serde_json::Value;
use std::fmt;

const RBAC: [(&str, &str); 3] = [
    ("kerf-webhook", include_str!("../../../deploy/base/webhook/rbac.yaml")),
    ("kerf-extender", include_str!("../../../deploy/base/extender/rbac.yaml")),
    ("kerf-node-agent", include_str!("../../../deploy/base/node-agent/rbac.yaml")),
];

/// Optional abilities of the extender, by the names of their flags, with the manifests of their rights.
const EXTENDERS: [(&str, &str); 2] = [
    ("moves", include_str!("../../../deploy/base/extender/moves.yaml")),
    ("layouts", include_str!("../../../deploy/components/extender-layouts/rights.yaml")),
];

/// What `kubectl apply` and `helm install` create: group, resource, and whether it is in kerf's namespace.
const INSTALLED: [(&str, &str, bool); 16] = [
    ("", "namespaces", false),
    ("apiextensions.k8s.io", "customresourcedefinitions", false),
    ("rbac.authorization.k8s.io", "clusterroles", false),
    ("rbac.authorization.k8s.io", "clusterrolebindings", false),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", false),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", false),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", false),
    ("", "serviceaccounts", true),
    ("", "configmaps", true),
    ("", "secrets", true),
    ("", "services", true),
    ("apps", "deployments", true),
    ("apps", "daemonsets", true),
    ("policy", "poddisruptionbudgets", true),
    ("rbac.authorization.k8s.io", "roles", true),
    ("rbac.authorization.k8s.io", "rolebindings", true),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    User,
    Account(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    pub who: Who,
    pub verb: String,
    pub group: String,
    pub resource: String,
    pub subresource: Option<String>,
    /// The name of the object, for a right to one object only.
    pub name: Option<String>,
    /// The namespace; `None` for all namespaces, and for cluster-wide resources.
    pub namespace: Option<String>,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(part) = &self.subresource {
            write!(f, "/{part}")?;
        }
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in {namespace}"),
            None => Ok(()),
        }
    }
}

pub fn for_installer(namespace: &str) -> Vec<Need> {
    let need = |(group, resource, inside): (&str, &str, bool)| Need {
        who: Who::User,
        verb: "create".to_owned(),
        group: group.to_owned(),
        resource: resource.to_owned(),
        subresource: None,
        name: None,
        namespace: inside.then(|| namespace.to_owned()),
    };
    INSTALLED.into_iter().map(need).collect()
}

/// The rights of kerf's programs. `extender_may` says which optional abilities count, because the rights of the others
/// are not installed. `account_of` names each program's service account.
pub fn for_programs(
    namespace: &str,
    extender_may: impl Fn(&str) -> bool,
    account_of: impl Fn(&str) -> String,
) -> Result<Vec<Need>, serde_saphyr::Error> {
    let mut needs = Vec::new();
    let extenders = EXTENDERS.into_iter().filter(|(what, _)| extender_may(what));
    let extenders = extenders.map(|(_, manifest)| ("kerf-extender", manifest));
    for (program, manifest) in RBAC.into_iter().chain(extenders) {
        let account = account_of(program);
        for role in serde_saphyr::from_multiple::<Value>(manifest)? {
            let namespace = match role["kind"].as_str() {
                Some("ClusterRole") => None,
                Some("Role") => Some(namespace),
                _ => continue,
            };
            let rules = Vec::<PolicyRule>::deserialize(&role["rules"]).unwrap_or_default();
            needs.extend(rules.iter().flat_map(|rule| needs_from_rule(&account, namespace, rule)));
        }
    }
    Ok(needs)
}

fn needs_from_rule(account: &str, namespace: Option<&str>, rule: &PolicyRule) -> Vec<Need> {
    let names: Vec<Option<String>> = match rule.resource_names.as_deref() {
        None | Some([]) => vec![None],
        Some(names) => names.iter().cloned().map(Some).collect(),
    };
    let mut needs = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            let (resource, part) =
                resource.split_once('/').map_or((resource.as_str(), None), |(r, p)| (r, Some(p)));
            for name in &names {
                needs.extend(rule.verbs.iter().map(|verb| Need {
                    who: Who::Account(account.to_owned()),
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.to_owned(),
                    subresource: part.map(str::to_owned),
                    name: name.clone(),
                    namespace: namespace.map(str::to_owned),
                }));
            }
        }
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_need_what_the_manifests_give_them() {
        let account_of = |program: &str| program.replace("kerf-webhook", "mine");
        let needs = for_programs("kerf-system", |what| what != "layouts", account_of).unwrap();
        let of = |account: &str| {
            needs
                .iter()
                .filter(|n| n.who == Who::Account(account.to_owned()))
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        for right in ["create pods/binding", "create pods/eviction"] {
            assert!(of("kerf-extender").contains(&right.to_owned()), "{right}");
        }
        for right in ["patch nodes", "delete pods"] {
            assert!(!of("kerf-extender").contains(&right.to_owned()), "{right}");
        }
        assert!(
            of("kerf-extender")
                .contains(&"update leases.coordination.k8s.io kerf-extender in kerf-system".to_owned())
        );
        assert!(of("mine").contains(&"get secrets kerf-webhook-tls in kerf-system".to_owned()));
        assert!(of("kerf-node-agent").contains(&"patch gpunodes.kerf.dev/status".to_owned()));
        assert!(needs.len() > 30, "{}", needs.len());
    }

    #[test]
    fn the_installer_needs_to_create_every_kind_of_the_manifests() {
        let needs: Vec<String> = for_installer("k").iter().map(ToString::to_string).collect();
        assert!(needs.contains(&"create deployments.apps in k".to_owned()));
        assert!(needs.contains(&"create customresourcedefinitions.apiextensions.k8s.io".to_owned()));
    }
}
