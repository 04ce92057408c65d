//! The bars that packing must meet, with their aims.

use super::measure::Measured;
use super::policy::{MOVES, Policy};
use crate::report::{Bar, as_f64};

/// Each bar with its measured figure. A scenario that was not measured has none.
pub fn bars(measured: &[Measured]) -> Vec<Bar> {
    let mut bars = Vec::new();
    if let Some(usual) = measured.first() {
        bars.extend(usually(usual));
    }
    for (name, figure, pass, aim) in [
        ("drift", "pt below the oracle, mean, the mix reversed half-way", 2.0, 1.5),
        ("16 GPUs", "pt below the oracle, mean, 16 GPUs", 3.5, 2.8),
    ] {
        let scenario = measured.iter().find(|m| m.scenario.name == name);
        bars.extend(scenario.map(|m| Bar::at_most(figure, m.below_mean(Policy::Kerf), pass, aim)));
    }
    let illegal = measured.iter().map(Measured::illegal_of_kerf).sum();
    bars.push(Bar::at_most("illegal decisions of kerf, all scenarios", as_f64(illegal), 0.0, 0.0));
    bars
}

fn usually(usual: &Measured) -> [Bar; 5] {
    [
        Bar::at_most("pt below the oracle, mean of nine mixes", usual.below_mean(Policy::Kerf), 1.7, 1.4),
        Bar::at_most("pt below the oracle, worst mix", usual.below_worst(Policy::Kerf), 2.8, 2.2),
        Bar::at_most("pt below the oracle, mean, with moves", usual.below_mean(Policy::KerfMoves), 0.8, 0.5),
        Bar::at_most(
            "moves per job with moves, most of all lists",
            usual.most_moves(Policy::KerfMoves),
            MOVES,
            MOVES,
        ),
        Bar::at_least("placements that need no create, %", 100.0 * usual.no_create(Policy::Kerf), 81.0, 87.0),
    ]
}
