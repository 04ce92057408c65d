//! What a pod asks for: its request document, with the text by which equal asks are found equal.

use kerf_core::contract::RequestDocument;
use kerf_core::packing::Refusal;
use kerf_core::policy::PodFacts;
use std::sync::Arc;

/// A readable request document and its text. Clones share both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The annotation's text. Pods of one template have the same.
    pub text: Arc<str>,
    /// What it says.
    pub document: Arc<RequestDocument>,
    /// What decides which policy is for the pod, where the document's is gone.
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

    /// The same of a pod of which this is known.
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
