//! What a pod asks for: its request document, with the text that is compared to find equal requests.

use kerf_core::contract::RequestDocument;
use kerf_core::packing::Refusal;
use kerf_core::request::PodFacts;
use std::sync::Arc;

/// A readable request document and its text. Clones share both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The text of the annotation. Pods of one template have the same text.
    pub text: Arc<str>,
    pub document: Arc<RequestDocument>,
    /// Facts of the pod that select its policy, if the policy that the document names no longer exists.
    pub facts: Arc<PodFacts>,
}

impl Ask {
    /// Reads the text of a pod's annotation, absent if the pod has none.
    pub fn read(text: Option<&str>) -> Result<Self, Refusal> {
        let text = text.ok_or(Refusal::NotAdmitted)?;
        let document = RequestDocument::parse(text).map_err(|error| {
            tracing::warn!(%error, "unreadable request document");
            Refusal::UnreadableRequest
        })?;
        Ok(Self { text: text.into(), document: Arc::new(document), facts: Arc::default() })
    }

    /// The same request, with the facts of its pod.
    #[must_use]
    pub fn of(self, facts: Arc<PodFacts>) -> Self {
        Self { facts, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_a_readable_document_is_refused() {
        assert_eq!(Ask::read(None), Err(Refusal::NotAdmitted));
        assert_eq!(Ask::read(Some("10Gi")), Err(Refusal::UnreadableRequest));
        let other_version = r#"{"version":9,"isolation":"none","containers":[]}"#;
        assert_eq!(Ask::read(Some(other_version)), Err(Refusal::UnreadableRequest));
    }
}
