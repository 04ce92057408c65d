//! The scheduler that calls the extender: its pods, and its configuration compared with the output of `kerf
//! scheduler-config`.

use super::policies::policies;
use super::{Finding, Observed, Seen, main_scheduler, pods, unknown};
use crate::check::difference::{Difference, differences};
use crate::check::observed::name_of;
use crate::counted::counted;
use crate::scheduler_config;
use k8s_openapi::api::core::v1::ConfigMap;
use kerf_core::keys;
use kerf_core::policy::Policy;
use serde_json::{Value, json};

const PROGRAM: &str = "kerf-scheduler";

/// The `ConfigMap` of the chart's second scheduler.
const CONFIG_MAP: &str = "kerf-scheduler-config";

const DIFFERENCES_LIMIT: usize = 6;

pub fn judge(seen: &Observed) -> Vec<Finding> {
    let is_main = main_scheduler::asks_kerf(seen);
    let mut findings = vec![if is_main { main_scheduler::running(seen) } else { pods(seen, PROGRAM, 1) }];
    match configuration(seen) {
        Ok((name, found)) => findings.extend(compared(seen, &name, &found)),
        Err(finding) => findings.push(finding),
    }
    findings
}

pub fn extender_host(seen: &Observed) -> Option<String> {
    let (_, found) = configuration(seen).ok()?;
    let url = kerfs_extender(&found)?["urlPrefix"].as_str()?.parse::<http::Uri>().ok()?;
    Some(url.host()?.trim_matches(['[', ']']).to_owned())
}

/// The name of the `ConfigMap` that the Deployment mounts. Kustomize appends a hash to it.
fn mounted(seen: &Observed) -> Option<&str> {
    seen.volumes_of(PROGRAM).find_map(|volume| volume.config_map.as_ref().map(|map| map.name.as_str()))
}

/// The `ConfigMap` in force: the one that the Deployment mounts, or else the first one with the program's name or
/// prefix.
fn config_map(seen: &Observed) -> Option<&ConfigMap> {
    let mounted = mounted(seen);
    let is_it = |map: &&ConfigMap| match mounted {
        Some(mounted) => name_of(*map) == mounted,
        None => name_of(*map) == PROGRAM || name_of(*map).starts_with(&format!("{PROGRAM}-")),
    };
    seen.config_maps.all().iter().find(is_it)
}

fn configuration(seen: &Observed) -> Result<(String, Value), Finding> {
    if let Seen::Unknown(why) = &seen.config_maps {
        return Err(unknown("the scheduler's configuration", why));
    }
    let namespace = &seen.namespace;
    let main = main_scheduler::config_map(seen);
    let Some(map) = main.or_else(|| config_map(seen)) else {
        let name = mounted(seen).unwrap_or(CONFIG_MAP);
        return Err(Finding::failure(
            format!("there is no ConfigMap {name} in {namespace}"),
            written_anew(seen, name),
        ));
    };
    let name = name_of(map).to_owned();
    let remedy = if main.is_some() { main_scheduler::remedy(namespace) } else { written_anew(seen, &name) };
    let mut data = map.data.iter().flatten();
    let Some((key, text)) = data.find(|(key, _)| main.is_none() || *key == main_scheduler::KEY) else {
        return Err(Finding::failure(format!("ConfigMap {name} is empty"), remedy));
    };
    match serde_saphyr::from_str::<Value>(text) {
        Ok(value) => Ok((format!("ConfigMap {name}"), value)),
        Err(error) => Err(Finding::failure(
            format!("ConfigMap {name}: {key} cannot be read: {}", error.without_snippet()),
            remedy,
        )),
    }
}

fn written_anew(seen: &Observed, name: &str) -> String {
    let namespace = &seen.namespace;
    let print = printed_by(&scheduler_name(seen, &Value::Null), namespace);
    format!(
        "{print} > config.yaml; kubectl -n {namespace} create configmap {name} --from-file=config.yaml --dry-run=client -o yaml | kubectl \
         apply -f -; then restart it: kubectl -n {namespace} rollout restart deploy/{PROGRAM}"
    )
}

fn compared(seen: &Observed, name: &str, found: &Value) -> Vec<Finding> {
    let (is_main, namespace) = (main_scheduler::asks_kerf(seen), &seen.namespace);
    let scheduler = scheduler_name(seen, found);
    let wanted = scheduler_config::configuration(&if is_main {
        let address = address(seen).unwrap_or_else(|| "the address of Service kerf-extender".to_owned());
        scheduler_config::Args::for_main_scheduler(by_address(&address))
    } else {
        scheduler_config::Args::for_second_scheduler(&scheduler, namespace)
    });
    let (heavy, light): (Vec<_>, Vec<_>) = differences(&wanted, &kerf_profile(&wanted, found))
        .into_iter()
        .filter(|it| !is_by_address(seen, it))
        .partition(breaks);
    let (neutral, heavy): (Vec<_>, Vec<_>) = heavy.into_iter().partition(is_neutral_name);
    let mut findings = Vec::new();
    let remedy = if is_main {
        main_scheduler::remedy(namespace)
    } else {
        let print = printed_by(&scheduler, namespace);
        format!(
            "write what {print} prints into it, and restart: kubectl -n {namespace} rollout restart deploy/{PROGRAM}"
        )
    };
    if !neutral.is_empty() {
        findings.push(without_neutral_names(seen, name, neutral.len(), &remedy));
    }
    if !heavy.is_empty() {
        findings.push(Finding::failure(
            format!("{name} is not what kerf scheduler-config prints: {}", listed(&heavy)),
            remedy,
        ));
    } else if !light.is_empty() {
        findings.push(Finding::warning(
            format!(
                "{name} differs from what kerf scheduler-config prints, where an admin may have meant it: {}",
                listed(&light)
            ),
            remedy,
        ));
    } else if neutral.is_empty() {
        findings.push(Finding::fine(format!("{name} is what kerf scheduler-config prints")));
    }
    findings.extend(names(seen, found));
    findings
}

fn is_neutral_name(difference: &Difference) -> bool {
    let name = difference.path.strip_prefix("extenders[0].managedResources[");
    difference.found.is_none() && name.is_some_and(|name| name.starts_with(keys::SIZE_PREFIX))
}

/// The configuration is the previous version's. That is a warning only, as long as the webhook gives no neutral names.
fn without_neutral_names(seen: &Observed, name: &str, count: usize, remedy: &str) -> Finding {
    let what = format!("{name} lacks {} of kerf.dev/gpu-<N>gb", counted(count, "name"));
    if seen.flag_of("kerf-webhook", "--neutral-names") == Some("off") {
        return Finding::warning(
            format!(
                "{what}, and the webhook gives none (--neutral-names=off): pods wait for the kind that is chosen at their creation"
            ),
            format!("{remedy}; then set webhook.neutralNames=auto in the chart's values"),
        );
    }
    Finding::failure(
        format!("{what}: the scheduler does not ask the extender about pods with these names"),
        format!("{remedy}; until then set webhook.neutralNames=off in the chart's values"),
    )
}

fn printed_by(scheduler: &str, namespace: &str) -> String {
    format!("kerf scheduler-config --leader-elect --scheduler-name {scheduler} --namespace {namespace}")
}

/// The name of kerf's profile. It is searched for, because an admin may choose it: the profile that a policy names, or
/// else the default one, or else the only one.
fn scheduler_name(seen: &Observed, found: &Value) -> String {
    let profiles = profiles(found);
    let policies = policies(seen).map(|policies| policies.pods).unwrap_or_default();
    let named: Vec<&str> =
        policies.iter().map(Policy::scheduler_name).filter(|name| !name.is_empty()).collect();
    let mut known = named.iter().copied().chain([PROGRAM]).filter(|name| profiles.contains(name));
    let only = if let [only] = profiles[..] { Some(only) } else { None };
    known.next().or(only).or(named.first().copied()).unwrap_or(PROGRAM).to_owned()
}

/// Only kerf's profiles and kerf's extender, because a scheduler may have others beside them.
fn kerf_profile(wanted: &Value, found: &Value) -> Value {
    let mut ours = found.clone();
    if let Some(extender) = kerfs_extender(found) {
        ours["extenders"] = json!([extender]);
    }
    let there = profiles(found);
    let kept: Vec<&str> = profiles(wanted).into_iter().filter(|name| there.contains(name)).collect();
    if !kept.is_empty() {
        ours["profiles"] = kept.iter().map(|name| json!({"schedulerName": name})).collect();
    }
    ours
}

fn profiles(document: &Value) -> Vec<&str> {
    let profiles = document["profiles"].as_array().into_iter().flatten();
    profiles.filter_map(|profile| profile["schedulerName"].as_str()).collect()
}

fn kerfs_extender(document: &Value) -> Option<&Value> {
    let extenders = document["extenders"].as_array()?;
    let is_kerfs = |extender: &&Value| extender["urlPrefix"].as_str().is_some_and(|url| url.contains("kerf"));
    extenders.iter().find(is_kerfs).or(extenders.first())
}

/// Whether the scheduler calls the Service by its address instead of its name. That is no difference, because it works
/// as well.
fn is_by_address(seen: &Observed, difference: &Difference) -> bool {
    let url = difference.found.as_ref().and_then(Value::as_str).unwrap_or_default();
    difference.path == "extenders[0].urlPrefix"
        && address(seen).is_some_and(|address| url == by_address(&address))
}

fn address(seen: &Observed) -> Option<String> {
    seen.extender_service.found().and_then(|service| service.spec.as_ref()?.cluster_ip.clone())
}

fn by_address(address: &str) -> String {
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    format!("https://{host}:9444/scheduler")
}

/// Whether a difference breaks the scheduling of pods. Tuning numbers and the election do not, because they are the
/// admin's choice.
fn breaks(difference: &Difference) -> bool {
    let tuned = ["extenders[0].weight", "extenders[0].httpTimeout", "extenders[0].ignorable"];
    let path = difference.path.as_str();
    let concerns_pods =
        ["apiVersion", "kind", "profiles", "extenders"].iter().any(|part| path.starts_with(part));
    concerns_pods && !tuned.contains(&path)
}

fn listed(differences: &[Difference]) -> String {
    let lines: Vec<String> = differences.iter().take(DIFFERENCES_LIMIT).map(ToString::to_string).collect();
    let rest = differences.len().saturating_sub(DIFFERENCES_LIMIT);
    let rest = if rest > 0 { format!("; and {rest} more") } else { String::new() };
    format!("{}{rest}", lines.join("; "))
}

fn names(seen: &Observed, found: &Value) -> Vec<Finding> {
    let profiles = profiles(found);
    let Ok(policies) = policies(seen) else { return Vec::new() };
    let is_main = main_scheduler::asks_kerf(seen);
    // An empty name is known then, because pods of a policy without a scheduler name stay with the cluster's own
    // scheduler.
    let is_known = |name: &str| profiles.contains(&name) || is_main && name.is_empty();
    let strange = policies.pods.iter().filter(|policy| !is_known(policy.scheduler_name()));
    strange
        .map(|policy| {
            Finding::failure(
                format!(
                    "policy {} gives pods to the scheduler {:?}, which has no profile here ({})",
                    policy.name(),
                    policy.scheduler_name(),
                    profiles.join(", ")
                ),
                "write one of the profiles' names into the policy's schedulerName, or add the profile",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Value {
        scheduler_config::configuration(&scheduler_config::Args::default())
    }

    fn first_finding(found: &Value) -> Finding {
        compared(&observed(), "ConfigMap kerf-scheduler", found).remove(0)
    }

    fn observed() -> Observed {
        Observed { namespace: "kerf-system".to_owned(), ..Observed::default() }
    }

    fn troubled(mounted: Option<&str>, maps: &Value) -> String {
        let volumes = mounted.map(|name| json!([{"name": "config", "configMap": {"name": name}}]));
        let deployment = json!({
            "metadata": {"name": PROGRAM},
            "spec": {"selector": {}, "template": {"spec": {"containers": [], "volumes": volumes}}},
        });
        let deployments = Seen::Found(vec![serde_json::from_value(deployment).unwrap()]);
        let config_maps = Seen::Found(serde_json::from_value(maps.clone()).unwrap());
        let finding = configuration(&Observed { config_maps, deployments, ..observed() }).unwrap_err();
        format!("{}: {}", finding.what, finding.remedy().unwrap_or_default())
    }

    #[test]
    fn a_missing_config_map_is_named_as_mounted_and_the_remedy_creates_it() {
        let chart = "kerf-scheduler-config";
        for (mounted, name) in [
            (None, chart),
            (Some(chart), chart),
            (Some("kerf-scheduler-config-7f"), "kerf-scheduler-config-7f"),
        ] {
            let text = troubled(mounted, &json!([]));
            assert!(text.contains(&format!("there is no ConfigMap {name} in kerf-system")), "{text}");
            assert!(
                text.contains(&format!("create configmap {name} --from-file=config.yaml --dry-run")),
                "{text}"
            );
        }
        for (data, main_data) in
            [(json!({}), json!({})), (json!({"config.yaml": "{"}), json!({"scheduler.yaml": "{"}))]
        {
            let text = troubled(Some(chart), &json!([{"metadata": {"name": chart}, "data": data}]));
            assert!(text.contains(&format!("create configmap {chart} --from-file")), "{text}");
            let main = json!([{"metadata": {"name": "kerf-main-scheduler"}, "data": main_data}]);
            let text = troubled(None, &main);
            assert!(text.contains("write scheduler.yaml of ConfigMap kerf-main-scheduler to"), "{text}");
        }
    }

    #[test]
    fn the_printed_configuration_has_no_findings() {
        assert_eq!(first_finding(&shipped()).remedy(), None);
    }

    #[test]
    fn a_breaking_change_fails_and_names_the_field() {
        let mut found = shipped();
        found["extenders"][0]["managedResources"].as_array_mut().unwrap().remove(0);
        found["extenders"][0]["tlsConfig"]["caFile"] = json!("/tmp/ca");
        let finding = first_finding(&found);
        assert!(finding.is_failure());
        assert!(finding.what.contains("extenders[0].managedResources["), "{}", finding.what);
        assert!(
            finding.what.contains(r#"caFile is "/tmp/ca" and should be "/etc/kerf/extender-tls/ca.crt""#),
            "{}",
            finding.what
        );
    }

    #[test]
    fn preemption_without_kerf_fails_with_a_remedy() {
        let mut found = shipped();
        found["extenders"][0].as_object_mut().unwrap().remove("preemptVerb");
        let finding = first_finding(&found);
        assert!(finding.is_failure());
        assert!(
            finding.what.ends_with(r#"extenders[0].preemptVerb is missing and should be "preempt""#),
            "{}",
            finding.what
        );
        assert!(
            finding.remedy().is_some_and(|remedy| remedy.contains("rollout restart deploy/kerf-scheduler"))
        );
    }

    #[test]
    fn a_tuned_field_is_a_warning_and_other_extenders_are_ignored() {
        let mut found = shipped();
        found["clientConnection"]["qps"] = json!(50);
        assert!(first_finding(&found).is_warning());
        let mut found = shipped();
        found["extenders"].as_array_mut().unwrap().insert(0, json!({"urlPrefix": "https://other"}));
        found["profiles"].as_array_mut().unwrap().push(json!({"schedulerName": "default-scheduler"}));
        assert_eq!(first_finding(&found).remedy(), None);
    }

    #[test]
    fn the_services_address_may_replace_its_name() {
        for (address, url) in [
            ("10.0.0.7", "https://10.0.0.7:9444/scheduler"),
            ("fd00:10:96::44", "https://[fd00:10:96::44]:9444/scheduler"),
        ] {
            let mut found = shipped();
            found["extenders"][0]["urlPrefix"] = json!(url);
            assert!(first_finding(&found).is_failure());
            let service = serde_json::from_value(json!({"spec": {"clusterIP": address}})).unwrap();
            let seen = Observed { extender_service: Seen::Found(service), ..observed() };
            assert_eq!(compared(&seen, "it", &found)[0].remedy(), None, "{address}");
        }
    }

    #[test]
    fn another_namespace_and_name_are_accepted_and_used_in_the_remedy() {
        let args = scheduler_config::Args::for_second_scheduler("mine", "gpu");
        let mut found = scheduler_config::configuration(&args);
        let policy = include_str!("../../../../policies/default.yaml")
            .replace("schedulerName: kerf-scheduler", "schedulerName: mine");
        let map = json!({"metadata": {"name": "kerf-policies"}, "data": {"default.yaml": policy}});
        let maps = Seen::Found(vec![serde_json::from_value(map).unwrap()]);
        let seen = Observed { namespace: "gpu".to_owned(), config_maps: maps, ..Observed::default() };
        let judged = |found: &Value| compared(&seen, "it", found);
        assert_eq!(judged(&found).iter().find_map(Finding::remedy), None);
        found["profiles"].as_array_mut().unwrap().insert(0, json!({"schedulerName": "other"}));
        assert_eq!(judged(&found).iter().find_map(Finding::remedy), None);
        found["extenders"][0]["bindVerb"] = json!("");
        let remedy = judged(&found)[0].remedy().unwrap_or_default().to_owned();
        assert!(remedy.contains("--scheduler-name mine --namespace gpu"), "{remedy}");
        assert!(judged(&shipped())[0].what.contains("urlPrefix"), "another namespace's extender");
    }
}
