//! Whether a pod that carries a request document is one that kerf admitted: it comes a second time when another webhook
//! changed it, or when somebody copied it. A document that does not match its pod is not believed.

use crate::admit::Refusal;
use crate::patch::is_patched;
use kerf_core::contract::RequestDocument;
use kerf_core::keys;
use kerf_core::policy::{self, Denied, Policy};
use kerf_core::request::{self, AskError, PodAsk, PodView, ResourcesView, Want};
use serde_json::Value;

/// Checks `document` against the pod that carries it, by the rules that would have made it.
pub(crate) fn readmit(
    pod: &Value,
    view: &PodView,
    document: &RequestDocument,
    policy: &Policy,
) -> Result<(), Refusal> {
    let Some(limits) = request::read_admitted(&without_notes(view))? else {
        return Err(AskError::Reserved(keys::REQUEST).into());
    };
    let notes = request::read(&without_limits(view, document))?;
    let agrees = agrees_with_limits(document, &limits)
        && notes.is_none_or(|notes| agrees_with_notes(document, &notes))
        && is_patched(pod, document, policy);
    if !agrees {
        return Err(Denied::Forged.into());
    }
    Ok(policy::verify(policy, document)?)
}

/// The same containers, each with exactly the resource and the count of the document.
fn agrees_with_limits(document: &RequestDocument, ask: &PodAsk) -> bool {
    document.containers.len() == ask.containers.len()
        && ask.isolation.is_none_or(|class| class == document.isolation)
        && document.containers.iter().zip(&ask.containers).all(|(request, ask)| {
            let limit = request.resource.to_string();
            (&request.name, request.role, request.count) == (&ask.name, ask.role, ask.count)
                && ask.limit.as_ref() == Some(&limit)
        })
}

/// Annotations that ask, which stay in an admitted pod, ask for the document's sizes.
fn agrees_with_notes(document: &RequestDocument, notes: &PodAsk) -> bool {
    notes.containers.iter().all(|note| {
        let request = document.containers.iter().find(|request| request.name == note.name);
        request.is_some_and(|request| request.profile.is_none() && note.want == Want::Size(request.size_gb))
    })
}

/// The pod as if it asked by limits alone.
fn without_notes(view: &PodView) -> PodView {
    let mut view = view.clone();
    view.metadata.annotations.retain(|key, _| !key.starts_with(keys::GPU_MEMORY));
    view
}

/// The pod as if it asked by annotations alone. The annotation for a pod's only app container is read as that container's:
/// others may have been injected since.
fn without_limits(view: &PodView, document: &RequestDocument) -> PodView {
    let mut view = view.clone();
    let annotations = &mut view.metadata.annotations;
    let mut apps = document.containers.iter().filter(|request| request.role.is_app());
    if let (Some(only), None) = (apps.next(), apps.next())
        && let Some(size) = annotations.remove(keys::GPU_MEMORY)
    {
        annotations.entry(format!("{}.{}", keys::GPU_MEMORY, only.name)).or_insert(size);
    }
    for container in view.spec.containers.iter_mut().chain(&mut view.spec.init_containers) {
        container.resources = ResourcesView::default();
    }
    view
}
