use super::super::forecast::tests::point;
use super::*;

#[test]
fn a_line_for_each_technology_that_was_measured() {
    let points = [
        point(Technology::TimeSlicing, 1, 0.05, None),
        point(Technology::TimeSlicing, 7, 0.38, None),
        point(Technology::Mps, 1, 0.05, Some(100)),
        point(Technology::Mps, 7, 0.09, Some(57)),
        point(Technology::Whole, 1, 0.05, None),
    ];
    insta::assert_snapshot!(picture("yolos on <H200>", &points));
}

#[test]
fn the_axis_is_divided_into_two_to_five_round_steps() {
    for (highest, step) in [(0.38, 0.1), (0.05, 0.01), (0.7, 0.2), (1.0, 0.2), (9.9, 2.0), (0.0, 1.0)] {
        assert!((tick(highest) - step).abs() < 1e-12, "{highest}: {}", tick(highest));
    }
}

#[test]
fn nothing_measured_is_an_empty_picture() {
    let picture = picture("nothing", &[]);
    assert!(picture.starts_with("<svg") && !picture.contains("polyline"), "{picture}");
}
