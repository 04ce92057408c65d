use super::*;

/// A copy that takes `turn` seconds for a turn, prints every second from `begin` on, and is warm after two seconds.
fn copy(begin: f64, lines: u32, turn: f64) -> Copy {
    let mut copy = Copy::default();
    let mut at = begin;
    for number in 0..lines {
        let mut seconds = Vec::new();
        let (start, mut end) = (at, at);
        while end < start + 1.0 {
            end += turn;
            seconds.push(turn);
        }
        at = end;
        let sensors = Sensors {
            power_w: Some(200.0),
            energy_j: Some(300.0 * end),
            memory_mib: Some(f64::from(1000 + number)),
            ..Sensors::default()
        };
        copy.add(Line::Turns(Turns { begin: start, end, warm: number >= 2, seconds, sensors }));
    }
    copy
}

fn near(value: f64, expected: f64) -> bool {
    (value - expected).abs() < 1e-9
}

#[test]
fn a_turn_counts_only_while_all_copies_are_warm_and_running() {
    // One copy is warm from 2 to 10 and the other from 5 to 9, so both are warm from 5 to 9.
    let (early, late) = (copy(0.0, 10, 0.25), copy(3.0, 6, 0.5));
    let window = Window::from_copies([&early, &late].into_iter()).unwrap();
    assert_eq!(window, Window { from: 5.0, to: 9.0 });
    let figures = window.figures(&[&early, &late]).unwrap();
    assert_eq!(figures.turns, 4 * 4 + 4 * 2);
    assert!(near(figures.mean_seconds, (16.0 * 0.25 + 8.0 * 0.5) / 24.0));
    assert!(near(figures.per_second, 4.0 + 2.0));
    assert!(near(figures.window_seconds, 4.0));
    // The counter shows 300 W, at six turns per second.
    assert!(near(figures.energy_per_turn_joules.unwrap(), 50.0));
    assert_eq!(figures.power_watts, Some(200.0));
    assert_eq!(figures.memory_mib, Some(1008.0));
    let alone = window.figures(&[&late]).unwrap();
    assert_eq!((alone.turns, alone.mean_seconds), (8, 0.5));
}

#[test]
fn the_window_ends_with_the_first_copy_that_ends() {
    let (mut early, late) = (copy(0.0, 10, 0.5), copy(0.0, 10, 0.5));
    early.add(Line::End { at: 5.5 });
    let window = Window::from_copies([&early, &late].into_iter()).unwrap();
    assert_eq!(window, Window { from: 2.0, to: 5.5 });
    assert_eq!(window.figures(&[&early, &late]).unwrap().turns, 12);
    let is_enough = |seconds| window.is_enough(Duration::from_secs_f64(seconds), [&early, &late].into_iter());
    assert!(is_enough(3.5) && !is_enough(4.0));
}

#[test]
fn a_window_needs_warm_copies_and_a_figure_needs_a_turn() {
    let (warm, cold) = (copy(0.0, 10, 0.5), copy(0.0, 2, 0.5));
    assert_eq!(Window::from_copies([&warm, &cold].into_iter()), None);
    assert_eq!(Window::from_copies([&Copy::default()].into_iter()), None);
    let (first, second) = (copy(0.0, 4, 0.5), copy(30.0, 4, 0.5));
    let window = Window::from_copies([&first, &second].into_iter()).unwrap();
    assert_eq!(window.figures(&[&first, &second]), Err(NoTurns));
    assert!(!window.is_enough(Duration::ZERO, [&first, &second].into_iter()));
}

#[test]
fn a_window_without_a_line_of_a_copy_has_no_figures() {
    // The slow copy prints every 1.5 s: the window starts at 2.1, when the other is warm, and has no line of the slow
    // one before 4.5.
    let (slow, quick) = (copy(-1.5, 4, 1.5), copy(0.1, 4, 0.25));
    let window = Window::from_copies([&slow, &quick].into_iter()).unwrap();
    assert!(near(window.from, 2.1) && near(window.to, 4.1), "{window:?}");
    assert!(window.is_enough(Duration::from_secs(1), [&quick].into_iter()));
    assert!(!window.is_enough(Duration::from_secs(1), [&slow, &quick].into_iter()));
}

/// Python computes it as `sorted[min(int(len * part), len - 1)]`.
#[test]
fn a_percentile_equals_that_of_the_python_scripts() {
    let values: Vec<f64> = (1..=20_u8).map(f64::from).collect();
    for (part, expected) in [(0.0, 1.0), (0.5, 11.0), (0.95, 20.0), (0.99, 20.0), (1.0, 20.0)] {
        assert!(near(percentile(&values, part), expected), "{part}");
    }
    assert!(near(percentile(&[7.0], 0.5), 7.0));
}

#[test]
fn figures_without_nvml_values_are_absent() {
    let mut copy = copy(0.0, 6, 0.5);
    for turns in &mut copy.turns {
        turns.sensors = Sensors::default();
    }
    let figures = Window::from_copies([&copy].into_iter()).unwrap().figures(&[&copy]).unwrap();
    assert_eq!((figures.memory_mib, figures.power_watts, figures.energy_per_turn_joules), (None, None, None));
}
