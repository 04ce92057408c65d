//! The decision on an object: by `admit` for Pods, by `templates` for objects that create Pods.

use crate::admit::Admission;
use crate::metrics::{ANY_KIND, Outcome};
use crate::review::{Request, Verdict};
use crate::templates::qualify;
use json_patch::PatchOperation;
use kerf_core::kind::Kind;

pub(crate) enum Decision {
    Pod(Admission),
    /// An object with a pod template, or any other object.
    Template(Vec<PatchOperation>),
}

impl Decision {
    /// Decides on a request; `admit` is called for pods only.
    pub fn for_request(request: &Request, admit: impl FnOnce() -> Admission) -> Self {
        if request.creates_pod() { Self::Pod(admit()) } else { Self::for_template(request) }
    }

    pub fn for_template(request: &Request) -> Self {
        let template = request.writes_template();
        Self::Template(template.map(|template| qualify(&request.object, template)).unwrap_or_default())
    }

    pub fn verdict(&self) -> Verdict<'_> {
        match self {
            Self::Pod(Admission::Untouched) => Verdict::AsItIs,
            Self::Template(ops) if ops.is_empty() => Verdict::AsItIs,
            Self::Pod(Admission::Patched { ops, warnings, .. } | Admission::Mended { ops, warnings }) => {
                Verdict::Patched(ops, warnings)
            }
            Self::Template(ops) => Verdict::Patched(ops, &[]),
            Self::Pod(Admission::Denied { message, .. }) => Verdict::Denied(message),
        }
    }

    pub fn outcome(&self) -> Outcome {
        match self.verdict() {
            Verdict::AsItIs => Outcome::Untouched,
            Verdict::Patched(..) => Outcome::Patched,
            Verdict::Denied(_) => Outcome::Denied,
        }
    }

    /// The kind of slice for metrics: `any` if the extender chooses it, `none` if the pod gets no slice by this
    /// admission.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Pod(Admission::Patched { document, .. }) => document.kind().map_or(ANY_KIND, Kind::as_str),
            Self::Pod(_) | Self::Template(_) => Kind::label(None),
        }
    }

    pub fn log(&self, request: &Request) {
        let (resource, namespace, name) = (request.resource(), &request.namespace, request.name());
        let (dry_run, outcome) = (request.dry_run.unwrap_or(false), self.outcome().as_str());
        match self {
            Self::Pod(Admission::Patched { warnings, document, .. }) => {
                let requests =
                    document.containers.iter().map(|c| format!("{}: {}x {}", c.name, c.count, c.resource));
                let requests = requests.collect::<Vec<_>>().join(", ");
                let warnings = warnings.join("; ");
                tracing::info!(resource, namespace, name, dry_run, outcome, requests, warnings, "admission");
            }
            Self::Pod(Admission::Mended { warnings, .. }) => {
                let warnings = warnings.join("; ");
                tracing::info!(resource, namespace, name, dry_run, outcome, warnings, "admission again");
            }
            Self::Pod(Admission::Denied { message: reason, .. }) => {
                tracing::info!(resource, namespace, name, dry_run, outcome, reason, "admission");
            }
            Self::Pod(Admission::Untouched) | Self::Template(_) => {
                tracing::info!(resource, namespace, name, dry_run, outcome, "admission");
            }
        }
    }
}
