//! The targets: code that parses what users or admins write.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kerf_core::admission::CONTAINERS;
use kerf_core::contract::RequestDocument;
use kerf_core::mig::{ComputeProfile, Profile};
use kerf_core::policy::{Policies, Supply};
use kerf_core::quantity;
use kerf_core::resource::{self, ResourceName};
use kerf_core::testing::node_status;
use kerf_runtime::policy_file::{self, PolicyFileError};
use serde_json::{Value, json};

use super::corpus;
use crate::cluster::root;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The webhook, from the API server's bytes to the answer.
    Review,
    /// Amounts of memory, counts and fractions.
    Quantity,
    /// Names of MIG profiles and of resources.
    Names,
    Policy,
    Request,
}

impl Target {
    pub const ALL: [Self; 5] = [Self::Review, Self::Quantity, Self::Names, Self::Policy, Self::Request];

    /// The target's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Review => "review",
            Self::Quantity => "quantity",
            Self::Names => "names",
            Self::Policy => "policy",
            Self::Request => "request",
        }
    }

    /// Its corpus, its words, and the function to feed.
    pub(super) fn reader(self) -> anyhow::Result<Reader> {
        let (corpus, words, feed): (_, _, Feed) = match self {
            Self::Review => (corpus::reviews()?, corpus::REVIEW_WORDS, review()?),
            Self::Quantity => (corpus::texts(corpus::QUANTITIES), corpus::QUANTITY_WORDS, Box::new(quantity)),
            Self::Names => (corpus::texts(corpus::NAMES), corpus::NAME_WORDS, Box::new(names)),
            Self::Policy => (corpus::policies()?, corpus::POLICY_WORDS, Box::new(policy)),
            Self::Request => (corpus::requests()?, corpus::REVIEW_WORDS, Box::new(request)),
        };
        Ok(Reader { corpus, words, feed })
    }
}

/// Takes an input and returns whether it is valid. The error is a defect.
type Feed = Box<dyn Fn(&[u8]) -> Result<bool, String> + Send + Sync>;

/// A target with what its inputs are made from.
pub(super) struct Reader {
    pub corpus: Vec<Vec<u8>>,
    pub words: &'static [&'static str],
    pub feed: Feed,
}

/// The webhook with each shipped policy for pods, with an inventory of several models and with an empty one.
fn review() -> anyhow::Result<Feed> {
    let mut policies = Vec::new();
    for path in corpus::policy_files()? {
        match policy_file::read(&path) {
            Err(PolicyFileError::NoPodPolicy(_)) => {}
            read => policies.push(read?),
        }
    }
    let supplies =
        [Supply::from_statuses(&[node_status(&["H100-80GB", "A100-40GB", "T4-16GB"])]), Supply::default()];
    Ok(Box::new(move |input| {
        let mut accepted = false;
        for policies in &policies {
            for supply in &supplies {
                accepted |= twice_is_once(input, policies, supply)?;
            }
        }
        Ok(accepted)
    }))
}

/// Whether the review is answered with a patch. The patched object must be admitted unchanged the next time.
fn twice_is_once(input: &[u8], policies: &Policies, supply: &Supply) -> Result<bool, String> {
    let Some(answer) = kerf_webhook::testing::answer(input, policies, supply) else { return Ok(false) };
    let answer: Value = serde_json::from_str(&answer).map_err(|error| format!("the answer: {error}"))?;
    let Some(patch) = answer["response"]["patch"].as_str() else { return Ok(false) };
    let patch = STANDARD.decode(patch).map_err(|error| format!("the patch: {error}"))?;
    let patch: json_patch::Patch =
        serde_json::from_slice(&patch).map_err(|error| format!("the patch: {error}"))?;
    // The webhook skips texts that it does not use. A review with invalid Unicode in one cannot be sent
    // again.
    let Ok(mut question) = serde_json::from_slice::<Value>(input) else { return Ok(true) };
    // The API server rejects a pod with duplicate container names after the webhook, so it never reviews it
    // again.
    if !has_own_names(&question["request"]["object"]["spec"]) {
        return Ok(true);
    }
    json_patch::patch(&mut question["request"]["object"], &patch.0)
        .map_err(|error| format!("the patch does not apply: {error}"))?;
    let again = kerf_webhook::testing::answer(question.to_string().as_bytes(), policies, supply);
    let again: Value = again.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    if again["response"] == json!({"uid": answer["response"]["uid"], "allowed": true}) {
        return Ok(true);
    }
    Err(format!("admitted twice is not admitted once: {}", again["response"]))
}

/// Whether each container has a unique name.
fn has_own_names(spec: &Value) -> bool {
    let lists = CONTAINERS.into_iter().filter_map(|list| spec[list].as_array());
    let mut names = BTreeSet::new();
    lists.flatten().all(|container| container["name"].as_str().is_some_and(|name| names.insert(name)))
}

#[expect(clippy::unnecessary_wraps, reason = "one of the targets, which can find fault with what they get")]
fn quantity(input: &[u8]) -> Result<bool, String> {
    let text = String::from_utf8_lossy(input);
    let size = quantity::parse_size(&text);
    let memory = quantity::parse_memory(&text);
    let count = quantity::parse_count(&text);
    Ok(size.is_ok() | memory.is_ok() | count.is_some() | quantity::parse_millionths(&text).is_some())
}

fn names(input: &[u8]) -> Result<bool, String> {
    let text = String::from_utf8_lossy(input);
    let asked = resource::asked_size(&text).is_some_and(|size| size.is_ok());
    let profile = text.parse::<Profile>();
    if let Ok(profile) = &profile
        && profile.to_string().parse() != Ok(*profile)
    {
        return Err(format!("{text:?} is written as {profile}, which is another"));
    }
    let part = text.parse::<ComputeProfile>();
    if let Ok(part) = &part
        && part.to_string().parse() != Ok(*part)
    {
        return Err(format!("{text:?} is written as {part}, which is another"));
    }
    let name = text.parse::<ResourceName>();
    if let Ok(name) = &name
        && name.to_string().parse() != Ok(*name)
    {
        return Err(format!("{text:?} is written as {name}, which is another"));
    }
    Ok(asked | profile.is_ok() | part.is_ok() | name.is_ok())
}

#[expect(clippy::unnecessary_wraps, reason = "one of the targets, which can find fault with what they get")]
fn policy(input: &[u8]) -> Result<bool, String> {
    Ok(policy_file::parse(Path::new("fuzz.yaml"), &String::from_utf8_lossy(input)).is_ok())
}

fn request(input: &[u8]) -> Result<bool, String> {
    let Ok(document) = RequestDocument::parse(&String::from_utf8_lossy(input)) else { return Ok(false) };
    let text = serde_json::to_string(&document).map_err(|error| error.to_string())?;
    match RequestDocument::parse(&text) {
        Ok(again) if again == document => Ok(true),
        Ok(_) => Err(format!("{text} is read as another document")),
        Err(error) => Err(format!("{text} is not read: {error}")),
    }
}

/// Reads a shipped file, from which the corpus is made.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
}

/// The YAML files in a folder of the repository, in order.
pub(super) fn yaml_files(folder: &str) -> anyhow::Result<Vec<std::path::PathBuf>> {
    let folder = root().join(folder);
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("failed to read {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let mut files: Vec<_> =
        paths.into_iter().filter(|p| p.extension().is_some_and(|e| e == "yaml")).collect();
    files.sort();
    Ok(files)
}
