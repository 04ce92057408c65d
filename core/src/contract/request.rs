//! The request document: what a pod asks for, normalised by the webhook. The user's spelling is never read again.

use crate::kind::{IsolationClass, Kind};
use crate::mig::Profile;
use crate::resource::ResourceName;
use crate::units::SizeGb;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version that this build writes and reads.
pub const REQUEST_VERSION: u32 = 1;

/// What all containers of a pod ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestDocument {
    /// [`REQUEST_VERSION`].
    pub version: u32,
    /// What the pod wants fenced.
    pub isolation: IsolationClass,
    /// The containers that ask for slices, in the pod's order.
    pub containers: Vec<ContainerRequest>,
}

/// What one container asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerRequest {
    /// The container's name.
    pub name: String,
    /// The size that was asked, in nominal GB.
    pub size_gb: SizeGb,
    /// The profile that the user wrote, which is then exact; absent for a request by size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// How many slices.
    pub count: u32,
    /// The resource name that the container's limits carry.
    pub resource: ResourceName,
}

impl ContainerRequest {
    /// A request for one instance of exactly this profile.
    #[must_use]
    pub fn exact(profile: Profile) -> Self {
        Self {
            name: String::new(),
            size_gb: profile.size(),
            profile: Some(profile),
            count: 1,
            resource: ResourceName::Mig(profile),
        }
    }

    /// The kind of slice that the webhook chose.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.resource.kind()
    }
}

/// Why a request document cannot be read.
#[derive(Debug, Error)]
pub enum UnreadableRequest {
    /// It is no such JSON.
    #[error(
        "failed to parse the annotation kerf.dev/request: {0}; it is written by kerf's webhook, remove it from the manifest"
    )]
    Parse(#[from] serde_json::Error),
    /// Another version wrote it.
    #[error(
        "the annotation kerf.dev/request has version {0}, this program reads version {REQUEST_VERSION}; create the pod anew"
    )]
    Version(u32),
}

impl RequestDocument {
    /// Reads the annotation's text.
    pub fn parse(text: &str) -> Result<Self, UnreadableRequest> {
        let document: Self = serde_json::from_str(text)?;
        if document.version != REQUEST_VERSION {
            return Err(UnreadableRequest::Version(document.version));
        }
        Ok(document)
    }

    /// The annotation's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}
