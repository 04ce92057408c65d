//! Asks the API server which rights are granted.

use crate::check::need::{self, Need, Who};
use crate::check::observed::{AGENT, Observed, Seen};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};

const AT_ONCE: usize = 16;

pub async fn for_installer(client: &Client, namespace: &str) -> Vec<(Need, Seen<bool>)> {
    ask_all(client, namespace, need::for_installer(namespace)).await
}

pub async fn for_programs(client: &Client, seen: &Observed) -> Vec<(Need, Seen<bool>)> {
    let namespace = &seen.namespace;
    let agents = super::get(Api::<DaemonSet>::namespaced(client.clone(), namespace), AGENT).await;
    let agents = agents.found().and_then(|agents| agents.spec.as_ref()?.template.spec.as_ref());
    let account_of = |program: &str| {
        let pod = if program == AGENT { agents } else { seen.pod_spec_of(program) };
        let account = pod.and_then(|pod| pod.service_account_name.as_deref());
        account.unwrap_or(program).to_owned()
    };
    // The default never applies, because the manifests are compiled in and a test parses them.
    let needs = need::for_programs(namespace, |what| seen.extender_may(what), account_of).unwrap_or_default();
    ask_all(client, namespace, needs).await
}

async fn ask_all(client: &Client, namespace: &str, needs: Vec<Need>) -> Vec<(Need, Seen<bool>)> {
    let asked = needs.into_iter().map(|need| async move {
        let answer = super::seen(ask(client, namespace, &need).await.map(Some));
        (need, answer)
    });
    futures::stream::iter(asked).buffered(AT_ONCE).collect().await
}

async fn ask(client: &Client, namespace: &str, need: &Need) -> Result<bool, kube::Error> {
    let attributes = Some(ResourceAttributes {
        group: Some(need.group.clone()),
        name: need.name.clone(),
        namespace: need.namespace.clone(),
        resource: Some(need.resource.clone()),
        subresource: need.subresource.clone(),
        verb: Some(need.verb.clone()),
        ..ResourceAttributes::default()
    });
    let params = PostParams::default();
    let status = match need.who {
        Who::User => {
            let spec = SelfSubjectAccessReviewSpec { resource_attributes: attributes, ..Default::default() };
            let review = SelfSubjectAccessReview { spec, ..Default::default() };
            Api::<SelfSubjectAccessReview>::all(client.clone()).create(&params, &review).await?.status
        }
        Who::Account(ref account) => {
            let spec = SubjectAccessReviewSpec {
                resource_attributes: attributes,
                user: Some(format!("system:serviceaccount:{namespace}:{account}")),
                groups: Some(vec![
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{namespace}"),
                    "system:authenticated".to_owned(),
                ]),
                ..Default::default()
            };
            let review = SubjectAccessReview { spec, ..Default::default() };
            Api::<SubjectAccessReview>::all(client.clone()).create(&params, &review).await?.status
        }
    };
    Ok(status.is_some_and(|status| status.allowed))
}
