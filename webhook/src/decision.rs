//! Decides on a request, by `admit` for Pods and by `templates` for objects that create Pods, and logs the decision.

use crate::admission::Admission;
use crate::admit::admit;
use crate::review::Request;
use crate::templates::qualify;
use kerf_core::policy::{Policies, Supply};
use kerf_core::request::Namespace;

/// Decides on `request`. The namespace's labels count for pods only, because templates are qualified without a policy.
pub(crate) fn decide<'n>(
    request: &Request,
    namespace: impl Into<Namespace<'n>>,
    policies: &Policies,
    supply: &Supply,
) -> Admission {
    if request.creates_pod() {
        return admit(&request.object, namespace, policies, supply);
    }
    let template = request.writes_template();
    let ops = template.map(|template| qualify(&request.object, template)).unwrap_or_default();
    if ops.is_empty() { Admission::Untouched } else { Admission::Qualified { ops } }
}

pub(crate) fn log(request: &Request, admission: &Admission) {
    let (resource, namespace, name) = (request.resource(), &request.namespace, request.name());
    let (dry_run, outcome) = (request.dry_run.unwrap_or(false), admission.outcome().as_str());
    match admission {
        Admission::Patched { warnings, document, .. } => {
            let requests =
                document.containers.iter().map(|c| format!("{}: {}x {}", c.name, c.count, c.resource));
            let requests = requests.collect::<Vec<_>>().join(", ");
            let warnings = warnings.join("; ");
            tracing::info!(resource, namespace, name, dry_run, outcome, requests, warnings, "admission");
        }
        Admission::Mended { warnings, .. } => {
            let warnings = warnings.join("; ");
            tracing::info!(resource, namespace, name, dry_run, outcome, warnings, "admission again");
        }
        Admission::Denied { message: reason, .. } => {
            tracing::info!(resource, namespace, name, dry_run, outcome, reason, "admission");
        }
        Admission::Untouched | Admission::Qualified { .. } => {
            tracing::info!(resource, namespace, name, dry_run, outcome, "admission");
        }
    }
}
