//! From a pod's annotations and limits to what it asks for.

use super::{ContainerView, PodView, Role};
use crate::keys;
use crate::kind::{IsolationClass, Kind, UnknownClass};
use crate::mig::{ComputeProfile, Profile};
use crate::quantity::{SizeError, parse_size};
use crate::resource::{ResourceName, asked_size};
use crate::units::SizeGb;
use thiserror::Error;

/// What a pod asks for, before a policy has chosen how it is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAsk {
    /// The class that the pod names, if it names one.
    pub isolation: Option<IsolationClass>,
    /// The containers that ask, in the kubelet's order: init containers and sidecars, then app containers.
    pub containers: Vec<ContainerAsk>,
}

/// What one container asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerAsk {
    /// The container's name.
    pub name: String,
    /// When it runs.
    pub role: Role,
    /// What each slice must be.
    pub want: Want,
    /// How many slices.
    pub count: u32,
    /// The limit that asked; `None` for an annotation.
    pub limit: Option<String>,
}

/// What a slice must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Any slice of this nominal size or more.
    Size(SizeGb),
    /// Exactly this MIG profile.
    Profile(Profile),
    /// Exactly this compute instance.
    Compute(ComputeProfile),
    /// A share of this kind and size.
    Share(Kind, SizeGb),
    /// What an admitted pod was given under a name that is everybody's; nobody asks kerf by it.
    Given(ResourceName),
}

/// Why a pod's request is refused. Each message names the field and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AskError {
    /// An annotation's amount is bad.
    #[error("metadata.annotations[{key}]: {source}")]
    Annotation {
        /// The annotation.
        key: String,
        /// What is wrong.
        source: SizeError,
    },
    /// A limit's name is bad.
    #[error("container {container}, resources.limits[{limit}]: {source}")]
    Limit {
        /// The container.
        container: String,
        /// The limit.
        limit: String,
        /// What is wrong.
        source: SizeError,
    },
    /// A limit's count is no positive integer.
    #[error(
        "container {container}, resources.limits[{limit}]: {count:?} is no number of slices; write a whole number from 1"
    )]
    Count {
        /// The container.
        container: String,
        /// The limit.
        limit: String,
        /// What was written.
        count: String,
    },
    /// One container asks twice.
    #[error(
        "container {container} asks for {first} and for {second}; ask once, by one limit or one annotation"
    )]
    Twice {
        /// The container.
        container: String,
        /// The first ask.
        first: String,
        /// The second.
        second: String,
    },
    /// A container asks by a name that is everybody's, in a pod that asks kerf. Nobody would account for both.
    #[error(
        "container {container}, resources.limits[{limit}]: the pod asks for slices by kerf's keys, beside which this name is not served; remove it, or ask by kerf.dev/gpu-memory here too"
    )]
    Everybodys {
        /// The container.
        container: String,
        /// The limit.
        limit: String,
    },
    /// The annotation could mean any of several containers.
    #[error(
        "metadata.annotations[kerf.dev/gpu-memory]: the pod has several containers; name one, as in kerf.dev/gpu-memory.{0}"
    )]
    Ambiguous(String),
    /// The annotation names no container.
    #[error("metadata.annotations[{key}]: the pod has no container {container}")]
    NoContainer {
        /// The annotation.
        key: String,
        /// The container that it names.
        container: String,
    },
    /// A privileged container asks.
    #[error(
        "container {0} is privileged and would see every GPU of the node, not its slice; remove securityContext.privileged"
    )]
    Privileged(String),
    /// The class is unknown.
    #[error("metadata.annotations[kerf.dev/isolation]: {0}")]
    Isolation(#[from] UnknownClass),
    /// The mark is none.
    #[error(
        "metadata.annotations[kerf.dev/movable]: {0:?} is neither true nor false; write one of them, in quotes"
    )]
    Movable(String),
    /// The user wrote what only kerf writes.
    #[error("metadata.annotations[{0}] is written by kerf; remove it from the manifest")]
    Reserved(&'static str),
    /// The pod goes past the scheduler.
    #[error("spec.nodeName is set, so no scheduler would reserve a slice; remove it and use a nodeSelector")]
    NodeName,
}

/// Reads what `pod` asks for; `None` if it asks for no slice of a GPU.
pub fn read(pod: &PodView) -> Result<Option<PodAsk>, AskError> {
    let ask = read_by(pod, want)?;
    if ask.is_some() {
        refuse_everybodys(pod)?;
    }
    Ok(ask)
}

/// Reads what `pod` was given, which kerf has admitted: whole GPUs included, which nobody asks for by their name.
pub fn read_admitted(pod: &PodView) -> Result<Option<PodAsk>, AskError> {
    read_by(pod, |container, limit| Ok(want(container, limit)?.or(everybodys(limit).map(Want::Given))))
}

/// What a limit's name asks for.
type Meaning = fn(&str, &str) -> Result<Option<Want>, AskError>;

fn read_by(pod: &PodView, meaning: Meaning) -> Result<Option<PodAsk>, AskError> {
    let mut containers = Vec::new();
    let annotations = annotation_asks(pod)?;
    for (container, role) in pod.spec.in_order() {
        let noted = annotations.iter().find(|a| a.name == container.name);
        if let Some(ask) = merge(noted, limit_ask(container, role, meaning)?)? {
            containers.push(ask);
        }
    }
    if containers.is_empty() {
        return Ok(None);
    }
    refuse_unsafe(pod, &containers)?;
    let movable = pod.metadata.annotations.get(keys::MOVABLE);
    if let Some(text) = movable.filter(|text| !matches!(text.as_str(), "true" | "false")) {
        return Err(AskError::Movable(text.clone()));
    }
    let isolation = pod.metadata.annotations.get(keys::ISOLATION);
    let isolation = isolation.map(|text| text.parse::<IsolationClass>()).transpose()?;
    Ok(Some(PodAsk { isolation, containers }))
}

fn refuse_everybodys(pod: &PodView) -> Result<(), AskError> {
    for (container, _) in pod.spec.in_order() {
        let mut limits = container.resources.limits.keys().chain(container.resources.requests.keys());
        if let Some(limit) = limits.find(|limit| everybodys(limit).is_some()) {
            let (container, limit) = (container.name.clone(), limit.clone());
            return Err(AskError::Everybodys { container, limit });
        }
    }
    Ok(())
}

fn refuse_unsafe(pod: &PodView, asks: &[ContainerAsk]) -> Result<(), AskError> {
    let asks_here = |c: &&ContainerView| asks.iter().any(|a| a.name == c.name);
    let privileged = |c: &&ContainerView| c.security_context.privileged == Some(true);
    let mut containers = pod.spec.in_order().map(|(container, _)| container).filter(asks_here);
    if let Some(container) = containers.find(privileged) {
        return Err(AskError::Privileged(container.name.clone()));
    }
    if pod.spec.node_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Err(AskError::NodeName);
    }
    Ok(())
}

fn annotation_asks(pod: &PodView) -> Result<Vec<ContainerAsk>, AskError> {
    let mut asks: Vec<ContainerAsk> = Vec::new();
    for (key, text) in &pod.metadata.annotations {
        let Some(rest) = key.strip_prefix(keys::GPU_MEMORY) else { continue };
        let name = match rest.strip_prefix('.') {
            Some(container) => container,
            None if rest.is_empty() => only_container(pod)?,
            None => continue,
        };
        let named = pod.spec.in_order().find(|(container, _)| container.name == name);
        let no_container = || AskError::NoContainer { key: key.clone(), container: name.to_owned() };
        let (_, role) = named.ok_or_else(no_container)?;
        let size = parse_size(text).map_err(|source| AskError::Annotation { key: key.clone(), source })?;
        let ask = ContainerAsk { name: name.to_owned(), role, want: Want::Size(size), count: 1, limit: None };
        match asks.iter().find(|a| a.name == name) {
            Some(first) if first.want != ask.want => return Err(twice(first, &ask)),
            Some(_) => {}
            None => asks.push(ask),
        }
    }
    Ok(asks)
}

/// The container that an annotation without a name means: the pod's only app container, whatever comes before it.
fn only_container(pod: &PodView) -> Result<&str, AskError> {
    match pod.spec.containers.as_slice() {
        [only] => Ok(&only.name),
        [first, ..] => Err(AskError::Ambiguous(first.name.clone())),
        [] => Err(AskError::Ambiguous("<container>".to_owned())),
    }
}

/// What a container's limits and requests ask for. A request without a limit counts too: the API server would refuse it
/// with a message about a name that the user never wrote.
fn limit_ask(
    container: &ContainerView,
    role: Role,
    meaning: Meaning,
) -> Result<Option<ContainerAsk>, AskError> {
    let mut found: Option<ContainerAsk> = None;
    let resources = &container.resources;
    for (limit, count) in resources.limits.iter().chain(&resources.requests) {
        let Some(want) = meaning(&container.name, limit)? else { continue };
        let count = count.parse::<u32>().ok().filter(|count| *count > 0).ok_or_else(|| AskError::Count {
            container: container.name.clone(),
            limit: limit.clone(),
            count: count.clone(),
        })?;
        let limit = Some(limit.clone());
        let ask = ContainerAsk { name: container.name.clone(), role, want, count, limit };
        match &found {
            Some(first) if (first.want, first.count, &first.limit) != (ask.want, ask.count, &ask.limit) => {
                return Err(twice(first, &ask));
            }
            Some(_) => {}
            None => found = Some(ask),
        }
    }
    Ok(found)
}

fn want(container: &str, limit: &str) -> Result<Option<Want>, AskError> {
    if let Some(size) = asked_size(limit) {
        let named =
            |source| AskError::Limit { container: container.to_owned(), limit: limit.to_owned(), source };
        return size.map(|size| Some(Want::Size(size))).map_err(named);
    }
    Ok(match limit.parse::<ResourceName>() {
        Ok(ResourceName::Mig(profile)) => Some(Want::Profile(profile)),
        Ok(name @ (ResourceName::Mps(size) | ResourceName::TimeSlicing(size))) => {
            Some(Want::Share(name.kind(), size))
        }
        Ok(ResourceName::Compute(profile)) => Some(Want::Compute(profile)),
        Ok(ResourceName::Whole | ResourceName::Replica) | Err(_) => None,
    })
}

/// The names that other programs serve too: who means kerf's GPUs by them is for a policy to say.
fn everybodys(limit: &str) -> Option<ResourceName> {
    let name = limit.parse().ok()?;
    matches!(name, ResourceName::Whole | ResourceName::Replica).then_some(name)
}

fn merge(
    noted: Option<&ContainerAsk>,
    limit: Option<ContainerAsk>,
) -> Result<Option<ContainerAsk>, AskError> {
    match (noted, limit) {
        (Some(noted), Some(limit)) if noted.want != limit.want => Err(twice(noted, &limit)),
        (_, Some(limit)) => Ok(Some(limit)),
        (noted, None) => Ok(noted.cloned()),
    }
}

fn twice(first: &ContainerAsk, second: &ContainerAsk) -> AskError {
    let text = |ask: &ContainerAsk| {
        let limit = ask.limit.as_ref().map(|limit| format!("{}x {limit}", ask.count));
        limit.unwrap_or_else(|| match ask.want {
            Want::Size(size) => format!("{}Gi by annotation", size.0),
            Want::Profile(_) | Want::Compute(_) | Want::Share(..) | Want::Given(_) => {
                "a slice by annotation".to_owned()
            }
        })
    };
    AskError::Twice { container: first.name.clone(), first: text(first), second: text(second) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(annotations: Value, containers: Value) -> PodView {
        serde_json::from_value(
            json!({"metadata": {"annotations": annotations}, "spec": {"containers": containers}}),
        )
        .unwrap()
    }

    fn limits(limits: Value) -> Value {
        json!([{"name": "main", "resources": {"limits": limits}}])
    }

    fn asked(pod: &PodView) -> Vec<(String, Want, u32)> {
        let ask = read(pod).unwrap();
        ask.into_iter().flat_map(|a| a.containers).map(|c| (c.name, c.want, c.count)).collect()
    }

    #[test]
    fn a_pod_without_a_gpu_asks_for_nothing() {
        assert_eq!(read(&pod(json!(null), limits(json!({"cpu": 1, "nvidia.com/gpu": "1"})))), Ok(None));
    }

    #[test]
    fn every_spelling_asks_for_the_same() {
        let ten = vec![("main".to_owned(), Want::Size(SizeGb(10)), 1)];
        assert_eq!(asked(&pod(json!({"kerf.dev/gpu-memory": "10Gi"}), json!([{"name": "main"}]))), ten);
        assert_eq!(
            asked(&pod(
                json!({"kerf.dev/gpu-memory.main": "10G"}),
                json!([{"name": "main"}, {"name": "log"}])
            )),
            ten
        );
        assert_eq!(asked(&pod(json!({}), limits(json!({"kerf.dev/gpu-10gb": "1"})))), ten);
        assert_eq!(asked(&pod(json!({}), limits(json!({"gpu-10gb": 1})))), ten);
        assert_eq!(asked(&pod(json!({"kerf.dev/gpu-memory": "10Gi"}), limits(json!({"gpu-10gb": 1})))), ten);
    }

    #[test]
    fn a_limit_may_ask_for_several_and_for_an_exact_profile() {
        let mig = "1g.10gb".parse().unwrap();
        assert_eq!(
            asked(&pod(json!({}), limits(json!({"gpu-10gb": "3"})))),
            [("main".into(), Want::Size(SizeGb(10)), 3)]
        );
        assert_eq!(
            asked(&pod(json!({}), limits(json!({"nvidia.com/mig-1g.10gb": "2"})))),
            [("main".into(), Want::Profile(mig), 2)]
        );
        let part = "1c.3g.40gb".parse().unwrap();
        assert_eq!(
            asked(&pod(json!({}), limits(json!({"nvidia.com/mig-1c.3g.40gb": "1"})))),
            [("main".into(), Want::Compute(part), 1)]
        );
    }

    #[test]
    fn a_whole_gpu_is_given_under_a_name_by_which_nobody_asks() {
        let whole = pod(json!({"kerf.dev/isolation": "hardware"}), limits(json!({"nvidia.com/gpu": "2"})));
        assert_eq!(read(&whole), Ok(None));
        let given = read_admitted(&whole).unwrap().unwrap().containers;
        assert_eq!((given[0].want, given[0].count), (Want::Given(ResourceName::Whole), 2));
    }

    fn roles(pod: &PodView) -> Vec<(String, Role, u32)> {
        let ask = read(pod).unwrap();
        ask.into_iter().flat_map(|a| a.containers).map(|c| (c.name, c.role, c.count)).collect()
    }

    #[test]
    fn init_containers_and_sidecars_ask_as_app_containers_do() {
        let mut asking = pod(
            json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/gpu-memory.fetch": "20Gi"}),
            json!([{"name": "main"}]),
        );
        asking.spec.init_containers = serde_json::from_value(json!([
            {"name": "fetch"},
            {"name": "proxy", "restartPolicy": "Always", "resources": {"limits": {"gpu-5gb": "1"}}},
            {"name": "load", "resources": {"limits": {"kerf.dev/gpu-10gb": "2"}}},
            {"name": "chown"},
        ]))
        .unwrap();
        let expected = [
            ("fetch", Role::Init, 1),
            ("proxy", Role::Sidecar, 1),
            ("load", Role::Init, 2),
            ("main", Role::App, 1),
        ];
        assert_eq!(roles(&asking), expected.map(|(name, role, count)| (name.to_owned(), role, count)));
        asking.spec.init_containers[2].security_context.privileged = Some(true);
        assert_eq!(read(&asking), Err(AskError::Privileged("load".to_owned())));
        asking.spec.init_containers[2].security_context.privileged = None;
        asking.spec.init_containers[3].security_context.privileged = Some(true);
        assert!(read(&asking).is_ok(), "it has no slice to look beyond");
    }

    #[test]
    fn bad_requests_are_named_with_their_field_and_remedy() {
        let main = json!([{"name": "main"}]);
        let two = json!([{"name": "main"}, {"name": "side"}]);
        let cases = [
            pod(json!({"kerf.dev/gpu-memory": "10"}), main.clone()),
            pod(json!({"kerf.dev/gpu-memory": "-1Gi"}), main.clone()),
            pod(json!({"kerf.dev/gpu-memory": "10Ti"}), main.clone()),
            pod(json!({}), limits(json!({"gpu-0gb": "1"}))),
            pod(json!({}), limits(json!({"kerf.dev/gpu-999gb": "1"}))),
            pod(json!({}), limits(json!({"gpu-10gb": "0"}))),
            pod(json!({}), limits(json!({"gpu-10gb": "1", "gpu-20gb": "1"}))),
            pod(json!({"kerf.dev/gpu-memory": "20Gi"}), limits(json!({"gpu-10gb": "1"}))),
            pod(json!({"kerf.dev/gpu-memory": "20Gi"}), limits(json!({"nvidia.com/gpu": "1"}))),
            pod(json!({}), limits(json!({"gpu-10gb": "1", "nvidia.com/gpu.shared": "1"}))),
            pod(json!({"kerf.dev/gpu-memory": "20Gi"}), two.clone()),
            pod(json!({"kerf.dev/gpu-memory.other": "20Gi"}), two),
            pod(json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/isolation": "total"}), main.clone()),
            pod(json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/movable": "yes"}), main),
            pod(
                json!({"kerf.dev/gpu-memory": "10Gi"}),
                json!([{"name": "main", "securityContext": {"privileged": true}}]),
            ),
        ];
        let texts = cases.map(|pod| read(&pod).unwrap_err().to_string());
        insta::assert_snapshot!(texts.join("\n"));
    }
}
