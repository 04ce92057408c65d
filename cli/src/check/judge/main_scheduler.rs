//! The cluster's own scheduler, if kerf is installed for it (the chart's `scheduler.mode: main`). Its configuration is
//! a file on its host, which no API shows. So this checks the configuration that the chart prints, and whether the
//! scheduler is started with a file.

use super::{Finding, Observed, Seen, unknown};
use crate::check::observed::name_of;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};

/// The `ConfigMap` that the chart writes in this mode only.
pub const CONFIG_MAP: &str = "kerf-main-scheduler";

pub const KEY: &str = "scheduler.yaml";

/// The path on each control plane node that the chart's notes give for the configuration.
const FILE: &str = "/etc/kubernetes/kerf/scheduler.yaml";

pub fn config_map(seen: &Observed) -> Option<&ConfigMap> {
    seen.config_maps.all().iter().find(|map| name_of(*map) == CONFIG_MAP)
}

pub fn asks_kerf(seen: &Observed) -> bool {
    config_map(seen).is_some()
}

pub fn remedy(namespace: &str) -> String {
    format!(
        "helm upgrade the release (--namespace {namespace} --reuse-values), write {KEY} of ConfigMap {CONFIG_MAP} to {FILE} on each control plane node, and restart kube-scheduler"
    )
}

pub fn running(seen: &Observed) -> Finding {
    let pods = match &seen.main_schedulers {
        Seen::Unknown(why) => return unknown("kube-scheduler's pods in kube-system", why),
        Seen::Absent => &[][..],
        Seen::Found(pods) => pods,
    };
    let start = format!(
        "start kube-scheduler with --config={FILE}: ConfigMap {CONFIG_MAP} has kubeadm's patch and k3s's lines for it; with a managed control plane use scheduler.mode=second"
    );
    if pods.is_empty() {
        return Finding::warning(
            "kube-scheduler is no pod of kube-system: whether it asks kerf cannot be seen from here",
            start,
        );
    }
    let with = |is_it: fn(Option<&str>) -> bool| -> Vec<&str> {
        pods.iter().filter(|pod| is_it(config_of(pod))).map(name_of).collect()
    };
    let (without, elsewhere) =
        (with(|file| file.is_none()), with(|file| file.is_some_and(|file| file != FILE)));
    if !without.is_empty() {
        return Finding::failure(
            format!("{} does not ask kerf: it is started without --config", without.join(", ")),
            start,
        );
    }
    if !elsewhere.is_empty() {
        return Finding::warning(
            format!(
                "{} has a configuration of another name than {FILE}, which cannot be read from here",
                elsewhere.join(", ")
            ),
            format!(
                "make sure that it has the extender of {KEY} in ConfigMap {CONFIG_MAP}, and then the same"
            ),
        );
    }
    Finding::fine(format!(
        "{} is started with --config={FILE}, whose content no API shows",
        with(|_| true).join(", ")
    ))
}

fn config_of(pod: &Pod) -> Option<&str> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.into_iter().find_map(|container| {
        let words: Vec<&str> =
            container.command.iter().chain(&container.args).flatten().map(String::as_str).collect();
        let after = words.windows(2).find(|pair| pair[0] == "--config").map(|pair| pair[1]);
        words.iter().find_map(|word| word.strip_prefix("--config=")).or(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Group;
    use crate::check::judge::tests::{authority, certificates, from_json, good, secret};
    use crate::check::judge::{Findings, after};
    use crate::check::report::{is_good, render};
    use crate::output::Format;
    use crate::scheduler_config::{Args, configuration};
    use kerf_runtime::tls::key;
    use serde_json::json;

    const ADDRESS: &str = "10.96.0.44";

    fn installed() -> Observed {
        let mut seen = good();
        seen.extender_service = Seen::Found(from_json(json!({"spec": {"clusterIP": ADDRESS}})));
        let printed = configuration(&Args::for_main_scheduler(format!("https://{ADDRESS}:9444/scheduler")));
        let policy = include_str!("../../../../policies/default.yaml");
        let policy = policy.replace("schedulerName: kerf-scheduler", "schedulerName: \"\"");
        seen.config_maps = Seen::Found(vec![
            from_json(json!({"metadata": {"name": "kerf-policies"}, "data": {"default.yaml": policy}})),
            from_json(json!({"metadata": {"name": CONFIG_MAP}, "data": {
                KEY: serde_saphyr::to_string(&printed).unwrap(), "k3s.yaml": "kube-scheduler-arg: []", "kube-scheduler.yaml": "spec: {}",
            }})),
        ]);
        if let Seen::Found(pods) = &mut seen.pods {
            pods.retain(|pod| !name_of(pod).starts_with("kerf-scheduler"));
        }
        let authority = authority();
        let [ca, server, _] = certificates(ADDRESS, &authority);
        let [_, client, own] = certificates("kerf-scheduler", &authority);
        let texts = [
            (key::CA_CERT, &*ca),
            (key::SERVER_CERT, &server),
            (key::CLIENT_CERT, &client),
            (key::CLIENT_KEY, &own),
        ];
        seen.secrets.insert("kerf-extender-tls".to_owned(), Seen::Found(secret(&texts)));
        seen.main_schedulers = started(&[&["kube-scheduler", "--config", FILE]]).main_schedulers;
        seen
    }

    fn said(seen: &Observed) -> String {
        let report: Findings =
            after(seen).into_iter().filter(|(group, _)| *group == Group::Scheduler).collect();
        render(&report, Format::Text, false)
    }

    #[test]
    fn a_main_scheduler_that_calls_kerf_has_no_findings() {
        let report = after(&installed());
        assert!(is_good(&report, true), "{}", render(&report, Format::Text, false));
        let said = said(&installed());
        assert!(
            said.contains("✓ kube-scheduler-0 is started with --config=/etc/kubernetes/kerf/scheduler.yaml"),
            "{said}"
        );
        assert!(
            said.contains("✓ ConfigMap kerf-main-scheduler is what kerf scheduler-config prints"),
            "{said}"
        );
    }

    #[test]
    fn a_placeholder_or_changed_address_fails_with_both_addresses() {
        for (at, was) in [("CLUSTER-IP", "before the Service was there"), ("10.96.0.99", "another's")] {
            let mut seen = installed();
            let Seen::Found(maps) = &mut seen.config_maps else { unreachable!() };
            let text = maps[1].data.as_mut().unwrap().get_mut(KEY).unwrap();
            *text = text.replace(ADDRESS, at);
            let said = said(&seen);
            let wanted = format!(
                r#"urlPrefix is "https://{at}:9444/scheduler" and should be "https://{ADDRESS}:9444/scheduler""#
            );
            assert!(said.contains(&wanted) && said.contains("helm upgrade"), "{was}: {said}");
        }
    }

    #[test]
    fn a_policy_with_a_second_scheduler_fails() {
        let mut seen = installed();
        let Seen::Found(maps) = &mut seen.config_maps else { unreachable!() };
        let policy = maps[0].data.as_mut().unwrap().get_mut("default.yaml").unwrap();
        *policy = policy.replace("schedulerName: \"\"", "schedulerName: mine");
        assert!(said(&seen).contains(r#"gives pods to the scheduler "mine", which has no profile here"#));
    }

    #[test]
    fn missing_neutral_names_are_counted_and_fail_if_pods_use_them() {
        let mut seen = installed();
        let Seen::Found(maps) = &mut seen.config_maps else { unreachable!() };
        let text = maps[1].data.as_mut().unwrap().get_mut(KEY).unwrap();
        let mut found: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        let names = found["extenders"][0]["managedResources"].as_array_mut().unwrap();
        names.retain(|name| !name["name"].as_str().unwrap().starts_with("kerf.dev/gpu-"));
        *text = serde_saphyr::to_string(&found).unwrap();
        let lacks = "ConfigMap kerf-main-scheduler lacks 28 names of kerf.dev/gpu-<N>gb";
        let failed = said(&seen);
        assert!(failed.contains(&format!("✗ {lacks}: the scheduler does not ask")), "{failed}");
        assert!(failed.contains("until then set webhook.neutralNames=off"), "{failed}");
        let args = json!([{"name": "main", "args": ["--neutral-names=off"]}]);
        let webhook = json!({"metadata": {"name": "kerf-webhook"},
            "spec": {"selector": {}, "template": {"spec": {"containers": args}}}});
        seen.deployments = Seen::Found(vec![from_json(webhook)]);
        let warned = said(&seen);
        assert!(warned.contains(&format!("! {lacks}, and the webhook gives none")), "{warned}");
        assert!(warned.contains("then set webhook.neutralNames=auto"), "{warned}");
    }

    /// The configuration of an older chart lacks a profile, so pods that are pending for it would stay so.
    #[test]
    fn pending_pods_of_the_earlier_scheduler_need_a_profile() {
        let mut seen = installed();
        let Seen::Found(maps) = &mut seen.config_maps else { unreachable!() };
        let text = maps[1].data.as_mut().unwrap().get_mut(KEY).unwrap();
        *text = text.replace("- schedulerName: kerf-scheduler\n", "");
        let said = said(&seen);
        assert!(said.contains("profiles[1] is missing") && said.contains("helm upgrade"), "{said}");
    }

    fn started(commands: &[&[&str]]) -> Observed {
        let pods = commands.iter().enumerate().map(|(n, command)| {
            let container = json!({"name": "kube-scheduler", "command": command});
            let pod = json!({"metadata": {"name": format!("kube-scheduler-{n}")}, "spec": {"containers": [container]}});
            serde_json::from_value(pod).unwrap()
        });
        Observed { main_schedulers: Seen::Found(pods.collect()), ..Observed::default() }
    }

    #[test]
    fn a_scheduler_with_the_config_flag_has_no_findings() {
        let by_file = format!("--config={FILE}");
        for command in [&["kube-scheduler", &by_file][..], &["kube-scheduler", "--config", FILE]] {
            let finding = running(&started(&[command]));
            assert_eq!(finding.remedy(), None, "{}", finding.what);
        }
    }

    #[test]
    fn a_scheduler_without_the_config_flag_fails_by_its_name() {
        let by_file = format!("--config={FILE}");
        let finding = running(&started(&[
            &["kube-scheduler", &by_file],
            &["kube-scheduler", "--kubeconfig=/etc/kubernetes/scheduler.conf"],
        ]));
        assert!(finding.is_failure());
        assert!(finding.what.starts_with("kube-scheduler-1 does not ask kerf"), "{}", finding.what);
    }

    #[test]
    fn unreadable_schedulers_are_a_warning() {
        assert!(running(&started(&[&["kube-scheduler", "--config=/etc/other.yaml"]])).is_warning());
        assert!(running(&started(&[])).is_warning(), "k3s");
    }
}
