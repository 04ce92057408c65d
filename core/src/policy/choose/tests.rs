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
            "isolation": {
                "hardware": ["mig", "whole"],
                "memory": ["mig", "mps", "whole"],
                "none": ["time-slicing", "mps", "mig", "whole"],
            },
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
fn a_whole_gpu_is_given_for_most_of_it_where_no_slice_serves() {
    let hardware = Some(IsolationClass::Hardware);
    let first = |text: String| text.split(" | ").next().unwrap().to_owned();
    let mut l40s = node_status(&["L40S-48GB"]);
    l40s.gpus[0].kinds = vec![Kind::Whole];
    let chosen_of = |gb| {
        let asked = ask(Want::Size(SizeGb(gb)), hardware);
        choose(&policy(), &Supply::of(&[l40s.clone()]), &asked).unwrap().document.containers[0].resource
    };
    assert_eq!(chosen_of(40).to_string(), "nvidia.com/gpu");
    assert_eq!(chosen_of(10).to_string(), "nvidia.com/mig-1g.10gb", "it waits for a slice");
    assert_eq!(first(chosen(&["A30-24GB", "L40S-48GB"], 24, hardware)), "nvidia.com/mig-4g.24gb");
    assert_eq!(first(chosen(&["A30-24GB", "L40S-48GB"], 30, hardware)), "nvidia.com/gpu");
    assert_eq!(first(chosen(&["A30-24GB", "L40S-48GB"], 40, None)), "nvidia.com/gpu-40gb");
}

#[test]
fn a_compute_instance_is_given_to_those_who_want_nothing_fenced() {
    let part = Want::Compute("1c.3g.40gb".parse().unwrap());
    let of = |class| choose(&policy(), &supply(&["H100-80GB"]), &ask(part, Some(class)));
    let choice = of(IsolationClass::None).unwrap();
    assert_eq!(choice.document.containers[0].resource.to_string(), "nvidia.com/mig-1c.3g.40gb");
    assert_eq!(verify(&policy(), &choice.document), Ok(()));
    assert!(matches!(of(IsolationClass::Memory), Err(Denied::Kind { .. })));
    let forged = RequestDocument { isolation: IsolationClass::Hardware, ..choice.document };
    assert_eq!(verify(&policy(), &forged), Err(Denied::Forged));
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
