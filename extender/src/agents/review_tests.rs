use super::*;
use kerf_runtime::stand_in::{self, Asked, NO_ANSWER, refusal};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::Instant;

const AGENT: &str = "system:serviceaccount:kerf-system:kerf-node-agent";

/// A reviewer with an API server that gives this answer, and the number of its requests.
fn reviewer(
    answer: impl Fn(Value) -> (u16, Value) + Send + Sync + 'static,
) -> (Arc<Reviewer>, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let client = stand_in::client(move |Asked { method, path, body, .. }| {
        assert_eq!((method.as_str(), path.as_str()), ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"));
        count.fetch_add(1, Ordering::Relaxed);
        answer(body)
    });
    let account = NamespacedName { namespace: "kerf-system".into(), name: "kerf-node-agent".into() };
    (Arc::new(Reviewer::new(client, &account)), asked)
}

fn headers(authorization: &str) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, authorization.parse().unwrap())])
}

/// The review of an agent's token on node `n1`.
fn right() -> Value {
    json!({
        "authenticated": true,
        "audiences": [AUDIENCE],
        "user": {"username": AGENT, "extra": {NODE_NAME: ["n1"]}},
    })
}

/// The caller whose token has this review.
async fn caller(status: Value) -> Result<NodeName, Denied> {
    let (reviewer, _) = reviewer(move |mut review| {
        assert_eq!(review["spec"], json!({"token": "secret", "audiences": [AUDIENCE]}));
        review["status"] = status.clone();
        (201, review)
    });
    reviewer.node(&headers("Bearer secret")).await.map_err(|refusal| refusal.denied())
}

#[tokio::test]
async fn an_agent_gets_the_node_that_its_token_names() {
    assert_eq!(caller(right()).await.unwrap(), NodeName::new("n1"));
}

#[tokio::test]
async fn a_review_with_one_wrong_part_is_refused() {
    let with = |pointer: &str, value: Value| {
        let mut status = right();
        *status.pointer_mut(pointer).unwrap() = value;
        status
    };
    let invalid = (StatusCode::UNAUTHORIZED, "the token is not valid for the audience kerf-extender");
    let no_node = "the token names no node; it must be of a pod, and the API server must name its node (Kubernetes 1.30 and later do)";
    let other = "system:serviceaccount:default:kerf-node-agent";
    let of_other = format!("the token is of {other}; agents are {AGENT}");
    for (status, (code, message)) in [
        (json!({}), invalid),
        (json!({"authenticated": false, "error": "token has expired"}), invalid),
        (with("/authenticated", json!(false)), invalid),
        // An API server whose authenticator ignores audiences returns none.
        (with("/audiences", Value::Null), invalid),
        (with("/audiences", json!(["https://kubernetes.default.svc"])), invalid),
        (with("/user/username", json!(other)), (StatusCode::FORBIDDEN, of_other.as_str())),
        (with("/user/extra", json!({})), (StatusCode::FORBIDDEN, no_node)),
        (with("/user/extra", json!({NODE_NAME: ["n1", "n2"]})), (StatusCode::FORBIDDEN, no_node)),
        (with("/user/extra", json!({NODE_NAME: [""]})), (StatusCode::FORBIDDEN, no_node)),
    ] {
        let refused = caller(status.clone()).await.unwrap_err();
        assert_eq!(refused, Denied::new(code, message), "{status}");
    }
}

#[tokio::test]
async fn a_request_without_a_token_is_refused_without_a_review() {
    let (reviewer, asked) = reviewer(|_| refusal(500, "the API server is not asked"));
    for headers in [HeaderMap::new(), headers("secret"), headers("Basic secret"), headers("Bearer ")] {
        let refused = reviewer.node(&headers).await.unwrap_err();
        assert!(matches!(refused, Refusal::NoToken), "{refused}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn an_agent_is_refused_if_its_review_fails() {
    let (reviewer, _) = reviewer(|_| refusal(403, "no right"));
    let refused = reviewer.node(&headers("Bearer secret")).await.unwrap_err().denied();
    assert_eq!(refused, Denied::new(StatusCode::SERVICE_UNAVAILABLE, "failed to review the token"));
}

#[tokio::test(start_paused = true)]
async fn reviews_are_limited_in_number_and_in_time() {
    let (reviewer, asked) = reviewer(|_| (NO_ANSWER, Value::Null));
    let began = Instant::now();
    let all: Vec<_> = (0..3 * REVIEWS)
        .map(|_| {
            let reviewer = Arc::clone(&reviewer);
            tokio::spawn(async move { (reviewer.node(&headers("Bearer secret")).await, began.elapsed()) })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(asked.load(Ordering::Relaxed), REVIEWS);
    let mut ended = Vec::new();
    for one in all {
        let (refused, after) = one.await.unwrap();
        assert!(matches!(refused, Err(Refusal::Late)));
        ended.push(after.as_secs());
    }
    ended.sort_unstable();
    // The last third waits for as long as an agent does, and not longer.
    let thirds = [5, 10, 10].map(|seconds| [seconds; REVIEWS]).concat();
    assert_eq!(ended, thirds);
    assert!(asked.load(Ordering::Relaxed) <= 2 * REVIEWS);
}
