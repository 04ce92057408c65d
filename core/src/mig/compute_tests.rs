//! Tests of the names of compute instances, and of which fit into which GPU instance.

use super::super::catalog;
use super::*;
use proptest::prelude::*;

fn p(text: &str) -> Profile {
    text.parse().unwrap()
}

#[test]
fn names_are_read_as_they_are_written() {
    for text in ["1c.3g.40gb", "2c.4g.20gb", "3g.40gb", "1g.24gb+me.all", "1c.2g.48gb-me", "4c.7g.141gb"] {
        assert_eq!(text.parse::<ComputeProfile>().unwrap().to_string(), text);
    }
    assert_eq!("3c.3g.40gb".parse::<ComputeProfile>().unwrap().to_string(), "3g.40gb");
}

#[test]
fn texts_that_are_no_compute_profile_are_refused() {
    for text in
        ["", "1c.", "c.3g.40gb", "0c.3g.40gb", "01c.3g.40gb", "+1c.3g.40gb", "1c.1c.3g.40gb", "1c.big"]
    {
        assert_eq!(text.parse::<ComputeProfile>(), Err(UnknownComputeProfile::Malformed(text.into())));
    }
    let error = "3c.4g.40gb".parse::<ComputeProfile>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "a 4g.40gb offers no compute instance of 3 slices; write one of 1c.4g.40gb, 2c.4g.40gb, 4g.40gb"
    );
}

#[test]
fn a_gpu_instance_takes_the_compute_instances_of_the_guide() {
    let fits =
        |of: &str| ComputeProfile::all(p(of)).map(|c| (c.compute(), c.starts().len())).collect::<Vec<_>>();
    assert_eq!(fits("1g.10gb"), [(1, 1)]);
    assert_eq!(fits("2g.20gb"), [(1, 2), (2, 1)]);
    assert_eq!(fits("3g.40gb"), [(1, 3), (2, 1), (3, 1)]);
    assert_eq!(fits("4g.40gb"), [(1, 4), (2, 2), (4, 1)]);
    assert_eq!(fits("7g.80gb"), [(1, 7), (2, 3), (3, 2), (4, 1), (7, 1)]);
}

#[test]
fn every_gpu_instance_of_the_catalog_has_a_compute_instance_of_full_size() {
    for profile in catalog::profiles() {
        assert_eq!(ComputeProfile::full(profile).unwrap().to_string(), profile.to_string());
    }
}

#[test]
fn each_rule_refuses_for_its_own_reason() {
    let four = ComputeGeometry::empty(p("4g.40gb")).place(2, 0).unwrap().place(1, 3).unwrap();
    assert_eq!(four.compute(), 3);
    assert_eq!(four.clone().place(2, 2), Err(ComputeIllegal::Taken(2, 3)));
    assert_eq!(
        four.clone().place(2, 1).unwrap_err().to_string(),
        "2c.4g.40gb cannot start at compute slice 1"
    );
    assert_eq!(four.clone().place(3, 0), Err(ComputeIllegal::NotOffered(3, p("4g.40gb"))));
    assert!(four.place(1, 2).is_ok());
}

proptest! {
    #[test]
    fn placed_compute_instances_never_overlap_and_stay_in_their_gpu_instance(
        of in any::<prop::sample::Index>(), tries in prop::collection::vec((0_u8..9, 0_u8..9), 0..24)
    ) {
        let profiles: Vec<_> = catalog::profiles().into_iter().collect();
        let of = *of.get(&profiles);
        let mut geometry = ComputeGeometry::empty(of);
        for (compute, start) in tries {
            geometry = geometry.clone().place(compute, start).unwrap_or(geometry);
        }
        let mut slices = vec![0; usize::from(of.compute())];
        for instance in geometry.instances() {
            for slice in instance.start..instance.start + instance.compute {
                slices[usize::from(slice)] += 1;
            }
        }
        prop_assert!(slices.iter().all(|&holders| holders <= 1));
        prop_assert!(geometry.compute() <= of.compute());
        prop_assert_eq!(ComputeGeometry::from_instances(of, geometry.instances().iter().copied()), Ok(geometry));
    }
}
