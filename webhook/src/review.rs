//! The wire format of `AdmissionReview` (admission.k8s.io/v1), with only the fields that are used.
//!
//! The patch is sent as base64 of its JSON text, which is Kubernetes' form of bytes.
//!
//! kube has these types too (`kube::core::admission`). They parse the whole review, buffer it on the way
//! (`serde(flatten)`) and write a patch as an array of numbers. Measured on one core with a review of a pod with three
//! containers, optimised:
//!
//! | what | here | kube 5.0 |
//! |---|---|---|
//! | read a CREATE (9.6 kB) | 58 µs, 117 kB at the peak | 80 µs, 146 kB |
//! | read an UPDATE (18 kB, with `oldObject`) | 66 µs, 117 kB | 170 µs, 262 kB |
//! | write an answer with four patch operations | 1.3 µs, 857 bytes | 3.5 µs, 1994 bytes |

use crate::admission::Admission;
use crate::templates::template_of;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use json_patch::PatchOperation;
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use thiserror::Error;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// The status of a denial, which clients show as "Forbidden".
const FORBIDDEN: u16 = 403;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Question {
    api_version: String,
    kind: String,
    request: Option<Request>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    /// The question's id, which the answer repeats.
    pub uid: String,
    /// The operation in capitals, like `CREATE`.
    #[serde(default)]
    pub operation: String,
    #[serde(default)]
    pub resource: Resource,
    /// The subresource; `None` or empty for the object itself.
    #[serde(default)]
    pub sub_resource: Option<String>,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub dry_run: Option<bool>,
    #[serde(default)]
    pub object: Value,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Resource {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resource: String,
}

impl Request {
    /// Whether a pod is being created. Updates must never be denied here, because that would keep finalizers from being
    /// removed.
    pub fn creates_pod(&self) -> bool {
        let is_pod = self.resource.group.is_empty() && self.resource.resource == "pods";
        is_pod && self.is_of_the_object() && self.operation == "CREATE"
    }

    pub fn writes_template(&self) -> Option<&'static [&'static str]> {
        let writes = matches!(self.operation.as_str(), "CREATE" | "UPDATE") && self.is_of_the_object();
        writes.then(|| template_of(&self.resource.group, &self.resource.resource)).flatten()
    }

    fn is_of_the_object(&self) -> bool {
        self.sub_resource.as_deref().is_none_or(str::is_empty)
    }

    pub fn resource(&self) -> &str {
        &self.resource.resource
    }

    pub fn name(&self) -> &str {
        let text = |key: &str| self.object["metadata"][key].as_str().filter(|name| !name.is_empty());
        text("name").or_else(|| text("generateName")).unwrap_or_default()
    }
}

#[derive(Debug, Error)]
pub(crate) enum BadReview {
    #[error("failed to read the AdmissionReview: {0}")]
    Parse(#[from] serde_json::Error),
    #[error("{0} {1} is not known; this webhook answers {KIND} of {API_VERSION}")]
    Version(String, String),
    #[error("the AdmissionReview has no request")]
    NoRequest,
}

pub(crate) fn read(body: &[u8]) -> Result<Request, BadReview> {
    let question: Question = serde_json::from_slice(body)?;
    if question.api_version != API_VERSION || question.kind != KIND {
        return Err(BadReview::Version(question.api_version, question.kind));
    }
    question.request.ok_or(BadReview::NoRequest)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<Patch<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status<'a>>,
}

impl<'a> Response<'a> {
    fn patched(uid: &'a str, ops: &'a [PatchOperation], warnings: &'a [String]) -> Self {
        let (patch_type, patch) = (Some("JSONPatch"), Some(Patch(ops)));
        Self { uid, allowed: true, patch_type, patch, warnings, ..Self::default() }
    }
}

#[derive(Debug)]
struct Patch<'a>(&'a [PatchOperation]);

impl Serialize for Patch<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let text = serde_json::to_vec(self.0).map_err(S::Error::custom)?;
        to.collect_str(&Base64Display::new(&text, &STANDARD))
    }
}

#[derive(Debug, Serialize)]
struct Status<'a> {
    code: u16,
    message: &'a str,
}

pub(crate) fn answer<'a>(uid: &'a str, admission: &'a Admission) -> impl Serialize + 'a {
    let response = match admission {
        Admission::Untouched => Response { uid, allowed: true, ..Response::default() },
        Admission::Patched { ops, warnings, .. } | Admission::Mended { ops, warnings } => {
            Response::patched(uid, ops, warnings)
        }
        Admission::Qualified { ops } => Response::patched(uid, ops, &[]),
        Admission::Denied { message, .. } => {
            Response { uid, status: Some(Status { code: FORBIDDEN, message }), ..Response::default() }
        }
    };
    Review { api_version: API_VERSION, kind: KIND, response }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_that_the_webhook_does_not_use_are_not_parsed() {
        let request = json!({"uid": "u", "operation": "UPDATE", "userInfo": 1, "kind": [], "oldObject": "none",
            "options": 2, "object": {"metadata": {"name": "n"}}});
        let review = json!({"apiVersion": API_VERSION, "kind": KIND, "request": request, "response": 3});
        let request = read(review.to_string().as_bytes()).unwrap();
        assert_eq!((request.uid.as_str(), request.name()), ("u", "n"));
    }
}
