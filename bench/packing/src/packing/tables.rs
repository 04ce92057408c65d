//! Prints the tables of `packing`.

use super::measure::Measured;
use super::policy::Policy;
use crate::jobs::MIXES;
use crate::report::{print, print_row};

/// Prints all tables: the first scenario by mix, then all scenarios.
pub fn print_all(measured: &[Measured]) {
    if let Some(usual) = measured.first() {
        by_mix(usual);
        beside(usual);
    }
    by_scenario(measured);
}

fn by_mix(usual: &Measured) {
    heading(&format!("Points below the oracle, {}, by mix", usual.scenario.name));
    let names = MIXES.iter().map(|mix| mix.name).chain(["worst", "mean", "its error"]);
    print_row("", 10, names.map(str::to_owned));
    for policy in Policy::ALL {
        let all = [usual.below_worst(policy), usual.below_mean(policy), usual.below_error(policy)];
        let figures = usual.below(policy).into_iter().chain(all);
        print_row(policy.name(), 10, figures.map(|figure| format!("{figure:.2}")));
    }
}

fn beside(usual: &Measured) {
    heading(&format!("Beside that, {}", usual.scenario.name));
    let names = ["7g placed", "on small", "no create", "moves/job"];
    print_row("", 10, names.map(str::to_owned));
    for policy in Policy::ALL {
        let figures = [
            format!("{:.3}", usual.whole_gpus(policy, None)),
            format!("{:.3}", usual.whole_gpus(policy, Some("small"))),
            format!("{:.3}", usual.no_create(policy)),
            format!("{:.4}", usual.moves(policy)),
        ];
        print_row(policy.name(), 10, figures);
    }
}

fn by_scenario(measured: &[Measured]) {
    heading("Points below the oracle, the mean of nine mixes (the worst mix)");
    print_row("", 20, measured.iter().map(|m| m.scenario.name.to_owned()));
    for policy in Policy::ALL {
        let figures =
            measured.iter().map(|m| format!("{:.2} ({:.2})", m.below_mean(policy), m.below_worst(policy)));
        print_row(policy.name(), 20, figures);
    }
}

fn heading(text: &str) {
    print("");
    print(text);
}
