use super::*;
use crate::policy::PolicyDocument;
use crate::request::Role;
use crate::testing::node_status;
use serde_json::json;

fn policy() -> Policy {
    let document: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "default"},
        "spec": {
            "defaultIsolation": "memory",
            "isolation": {"hardware": ["mig"], "memory": ["mig", "mps"], "none": ["time-slicing", "mps", "mig"]},
            "maxCount": 8,
        }
    }))
    .unwrap();
    document.try_into().unwrap()
}

fn supply(models: &[&str]) -> Supply {
    Supply::of(&[node_status(models)])
}

fn ask(want: Want, isolation: Option<IsolationClass>) -> PodAsk {
    let main = ContainerAsk { name: "main".into(), role: Role::App, want, count: 1, limit: None };
    PodAsk { isolation, containers: vec![main] }
}

fn chosen(models: &[&str], gb: u32, isolation: Option<IsolationClass>) -> String {
    match choose(&policy(), &supply(models), &ask(Want::Size(SizeGb(gb)), isolation)) {
        Ok(choice) => {
            let warnings = choice.warnings.iter().map(ToString::to_string);
            let resource = choice.document.containers[0].resource.to_string();
            std::iter::once(resource).chain(warnings).collect::<Vec<_>>().join(" | ")
        }
        Err(denied) => denied.to_string(),
    }
}

#[test]
fn the_first_kind_that_the_cluster_serves_is_taken() {
    assert_eq!(chosen(&["H100-80GB", "T4-16GB"], 9, None), "nvidia.com/mig-1g.10gb");
    assert_eq!(chosen(&["T4-16GB"], 10, None), "nvidia.com/gpu-10gb");
    assert_eq!(
        chosen(&["H100-80GB", "T4-16GB"], 10, Some(IsolationClass::None)),
        "nvidia.com/gpu-10gb.shared"
    );
}

#[test]
fn a_size_beyond_the_first_kind_takes_the_next() {
    assert_eq!(
        chosen(&["H100-80GB", "T4-16GB"], 20, Some(IsolationClass::None)).split(" | ").next(),
        Some("nvidia.com/mig-1g.20gb")
    );
}

#[test]
fn a_name_is_the_smallest_profile_of_the_cluster() {
    assert_eq!(chosen(&["H200-141GB"], 10, None), "nvidia.com/mig-1g.18gb");
    assert_eq!(
        chosen(&["H200-141GB", "A100-40GB"], 5, None).split(" | ").next(),
        Some("nvidia.com/mig-1g.5gb")
    );
}

#[test]
fn an_empty_cluster_is_served_by_the_policys_order() {
    assert_eq!(chosen(&[], 10, None), "nvidia.com/mig-1g.10gb");
    assert_eq!(chosen(&[], 10, Some(IsolationClass::None)), "nvidia.com/gpu-10gb.shared");
}

#[test]
fn what_a_user_should_know_is_said() {
    insta::assert_snapshot!(
        [
            chosen(&["H100-80GB"], 10, None),
            chosen(&["H100-80GB"], 100, None),
            chosen(&["T4-16GB"], 13, None),
            chosen(&["T4-16GB"], 40, Some(IsolationClass::Hardware)),
        ]
        .join("\n")
    );
}

#[test]
fn an_exact_profile_is_kept_and_a_weak_kind_refused() {
    let profile = "2g.20gb".parse().unwrap();
    let choice = choose(&policy(), &supply(&["H100-80GB"]), &ask(Want::Profile(profile), None)).unwrap();
    assert_eq!(choice.document.containers[0].profile, Some(profile));
    let weak = ask(Want::Share(Kind::TimeSlicing, SizeGb(10)), None);
    insta::assert_snapshot!(choose(&policy(), &supply(&["T4-16GB"]), &weak).unwrap_err());
}

#[test]
fn what_was_chosen_verifies_and_what_was_forged_does_not() {
    let choice = choose(&policy(), &supply(&["H100-80GB"]), &ask(Want::Size(SizeGb(10)), None)).unwrap();
    assert_eq!(verify(&policy(), &choice.document), Ok(()));
    let mut forged = choice.document.clone();
    forged.containers[0].size_gb = SizeGb(40);
    assert_eq!(verify(&policy(), &forged), Err(Denied::Forged));
    let mut greedy = choice.document;
    greedy.containers[0].count = 9;
    assert!(matches!(verify(&policy(), &greedy), Err(Denied::Count { .. })));
}
