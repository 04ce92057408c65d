//! Turns what was read into findings: pure functions, one file for each group.

mod clocks;
mod extender;
mod gpu_managers;
mod gpu_operator;
mod gpus;
mod kubernetes;
mod main_scheduler;
mod managed;
mod match_condition;
mod policies;
mod quotas;
mod resources;
mod rights;
mod scheduler;
mod static_nodes;
mod tls;
pub(crate) mod versions;
mod webhook;

pub use extender::overdue;

use super::finding::{Finding, Findings, Group};
use super::observed::{Observed, Seen};
use crate::counted::counted;
use std::collections::BTreeSet;

pub fn before(seen: &Observed) -> Findings {
    vec![
        (Group::KubernetesApi, kubernetes::judge(seen)),
        (Group::InstallRights, rights::judge_installer(seen)),
        (Group::Resources, resources::judge_before(seen)),
        (Group::GpuNodes, gpus::judge(seen)),
        (Group::GpuOperator, gpu_operator::judge(seen)),
        (Group::Others, gpu_managers::judge(seen)),
        (Group::StaticNodes, static_nodes::judge(seen)),
        (Group::Clocks, clocks::judge(seen)),
    ]
}

pub fn after(seen: &Observed) -> Findings {
    let kubernetes = (Group::KubernetesApi, kubernetes::judge(seen));
    let resources = resources::judge(seen);
    // No other check runs then, because each would fail for the same reason.
    if let Some(nothing) = not_installed(seen) {
        return vec![kubernetes, (Group::Resources, vec![nothing])];
    }
    vec![
        kubernetes,
        (Group::Resources, resources),
        (Group::ProgramRights, rights::judge_programs(seen)),
        (Group::Policies, policies::judge(seen)),
        (Group::Webhook, webhook::judge(seen)),
        (Group::Extender, extender::judge(seen)),
        (Group::Scheduler, scheduler::judge(seen)),
        (Group::Quotas, quotas::judge(seen)),
        (Group::ManagedNodes, managed::judge(seen)),
        (Group::StaticNodes, static_nodes::judge(seen)),
        (Group::Others, gpu_managers::judge(seen)),
        (Group::Versions, versions::judge(seen)),
        (Group::Clocks, clocks::judge(seen)),
    ]
}

fn not_installed(seen: &Observed) -> Option<Finding> {
    let nothing = seen.crd == Seen::Absent && seen.webhook == Seen::Absent && seen.pods.all().is_empty();
    nothing.then(|| {
        Finding::failure(
            format!("kerf is not installed: there is no CRD, no webhook configuration and no pod in {}", seen.namespace),
            "kerf check --pre says whether it can be; then: helm install kerf deploy/chart -n kerf-system --create-namespace, or name its namespace by --kerf-namespace",
        )
    })
}

pub fn secrets(seen: &Observed) -> BTreeSet<String> {
    [webhook::secret(seen), extender::SECRET.to_owned()].into()
}

fn unknown(what: &str, why: &str) -> Finding {
    Finding::warning(
        format!("{what} could not be read: {why}"),
        "run kerf check as a user who may read it, such as a cluster admin",
    )
}

fn pods(seen: &Observed, program: &str, at_least: usize) -> Finding {
    if let Seen::Unknown(why) = &seen.pods {
        return unknown(&format!("the pods of {program}"), why);
    }
    let namespace = &seen.namespace;
    let all: Vec<_> = seen.pods_of(program).collect();
    let ready = all.iter().filter(|pod| super::observed::is_ready(pod)).count();
    let worst = all.iter().find(|pod| !super::observed::is_ready(pod));
    let describe = format!("kubectl -n {namespace} describe pods -l app.kubernetes.io/name={program}");
    let are = if all.len() == 1 { "is" } else { "are" };
    let count = format!("{ready} of {} of {program} {are} ready", counted(all.len(), "pod"));
    match (worst, ready >= at_least) {
        (None, true) => Finding::fine(count),
        (Some(pod), true) => Finding::warning(format!("{count}; {}", trouble(pod)), describe),
        (Some(pod), false) => Finding::failure(format!("{count}; {}", trouble(pod)), describe),
        (None, false) => Finding::failure(
            format!("there is no pod of {program} in {namespace}"),
            format!(
                "look at its Deployment or DaemonSet: kubectl -n {namespace} describe deployments,daemonsets; if it is gone, install kerf anew"
            ),
        ),
    }
}

fn trouble(pod: &k8s_openapi::api::core::v1::Pod) -> String {
    format!("{}: {}", super::observed::name_of(pod), super::observed::trouble_of(pod))
}

#[cfg(test)]
mod tests;
