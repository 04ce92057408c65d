//! Compares the means through kerf with those by hand, without I/O.

use kerf_cli::bench::Results;

use super::by_hand::Means;

/// The largest accepted difference of the two means, in percent. Two runs of the same clients differ by about
/// as much.
const BAR: f64 = 5.0;

#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    technology: String,
    copies: u32,
    by_hand: f64,
    kerf: f64,
}

impl Row {
    fn percent(&self) -> f64 {
        100.0 * (self.kerf / self.by_hand - 1.0)
    }

    /// Whether both means agree within the bar. A lower mean fails too, because then the two runs differ in
    /// something else.
    pub fn is_met(&self) -> bool {
        self.percent().abs() <= BAR
    }
}

/// The points that were measured both ways, by copies.
pub fn rows(technology: &str, kerf: &Results, by_hand: &Means) -> Vec<Row> {
    let row = |(copies, by_hand): (&u32, &f64)| {
        let point = kerf.points.iter().find(|point| point.copies == *copies)?;
        let kerf = point.figures.mean_seconds;
        Some(Row { technology: technology.to_owned(), copies: *copies, by_hand: *by_hand, kerf })
    };
    by_hand.iter().filter_map(row).collect()
}

pub fn print(rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    println!("technology      copies   by hand      kerf   difference (bar {BAR} %)");
    for row in rows {
        let Row { technology, copies, by_hand, kerf } = row;
        let verdict = if row.is_met() { "met" } else { "NOT MET" };
        println!(
            "{technology:<14} {copies:>7} {by_hand:>9.5} {kerf:>9.5}   {:>+6.1} %  {verdict}",
            row.percent()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_further_away_than_the_bar_is_not_met_on_either_side() {
        let row = |kerf| Row { technology: "mps".to_owned(), copies: 3, by_hand: 0.1, kerf };
        assert!(row(0.1049).is_met() && row(0.0951).is_met());
        assert!(!row(0.1051).is_met() && !row(0.0949).is_met());
    }
}
