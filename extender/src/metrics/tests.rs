use super::*;
use crate::api_stand_in::ApiStandIn;
use crate::collector::TermCollector;
use crate::policy_source::PolicySource;
use crate::term::{CurrentTerm, Term};
use kerf_core::packing::Terms;
use kerf_runtime::shutdown::CancellationToken;
use std::sync::Arc;

#[tokio::test]
async fn every_metric_is_exported_under_its_name() {
    let current_term = Arc::new(CurrentTerm::default());
    let (metrics, mut registry) = Metrics::new();
    registry.register_collector(Box::new(TermCollector::new(current_term.clone())));
    let client = ApiStandIn::new().client();
    let (policies, stop) = (PolicySource::default(), CancellationToken::new());
    current_term.begin(Term::new(client, metrics.clone(), 1, Terms::default(), policies, stop));
    metrics.answered(Verb::Bind, KindLabel::Of(Kind::Mig), Outcome::TimedOut, Duration::from_secs(4));
    let (created, bound) = (Timestamp::from_second(10).unwrap(), Timestamp::from_second(13).unwrap());
    let pod = Counted { kind: KindLabel::Of(Kind::Whole), created: Some(created) };
    let stages = Stages { accepted: Some(Duration::from_secs(2)), ..Stages::default() };
    metrics.bound(pod, stages, bound);
    metrics.bound(Counted { created: None, ..pod }, Stages::default(), bound);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        r#"kerf_extender_requests_total{verb="bind",outcome="timed-out"} 1"#,
        r#"kerf_extender_request_duration_seconds_sum{verb="bind",kind="mig"} 4.0"#,
        r#"kerf_extender_request_duration_seconds_bucket{le="4.096",verb="bind",kind="mig"} 1"#,
        r#"kerf_extender_request_duration_seconds_count{verb="filter",kind="none"} 0"#,
        r#"kerf_extender_created_to_bound_seconds_sum{kind="whole"} 3.0"#,
        r#"kerf_extender_created_to_bound_seconds_count{kind="whole"} 1"#,
        r#"kerf_extender_stage_duration_seconds_sum{stage="accepted",kind="whole"} 2.0"#,
        r#"kerf_extender_stage_duration_seconds_count{stage="bound",kind="whole"} 0"#,
        r#"kerf_extender_reservations{state="accepted"} 0"#,
        r#"kerf_extender_requests_total{verb="filter",outcome="refused"} 0"#,
        "kerf_extender_leader 1",
        r#"kerf_extender_pending_pods{kind="mps",reason="full"} 0"#,
        r#"kerf_extender_pending_pods{kind="any",reason="full"} 0"#,
        r#"kerf_extender_oldest_pending_seconds{kind="mig",reason="quota"} 0.0"#,
        r#"kerf_extender_unused_room_seconds{kind="mig"} 0.0"#,
        r#"kerf_gpunode_condition{condition="Uncontested",status="False"} 0"#,
        "kerf_extender_managed_nodes 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
}
