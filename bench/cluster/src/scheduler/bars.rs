//! The bars of issue 24, for the scenes that were played.

use super::result::Row;
use crate::report::Figure;

pub fn figures(rows: &[Row]) -> Vec<Figure> {
    let mut figures: Vec<Figure> = rows.iter().flat_map(of_scene).collect();
    figures.extend(rows.iter().filter_map(|row| busy(rows, row)));
    figures.extend(rows.iter().filter_map(|row| storm(rows, row)));
    figures.extend(rows.iter().filter_map(|row| larger(rows, row)));
    figures
}

fn of_scene(row: &Row) -> Vec<Figure> {
    let name = |what: &str| format!("{} nodes, {}: {what}", row.nodes, row.scene);
    let rate = |bar| Figure::at_least(&name("rate / control"), row.rate_ratio, bar);
    let scene = row.scene.as_str();
    let is_calm_burst = scene.starts_with("burst") && !scene.ends_with("busy");
    if scene.starts_with("in-turn") {
        vec![Figure::at_most(&name("p50 beyond the control's, ms"), row.p50_more_ms, 10.0)]
    } else if scene.starts_with("plain") {
        vec![rate(0.97)]
    } else if is_calm_burst && !scene.contains("cut") {
        let cpu = Figure::at_most(&name("API server CPU / control"), row.apiserver_ratio, 2.2);
        vec![rate(0.40), cpu]
    } else {
        Vec::new()
    }
}

/// The part of its rate that kerf keeps with one core taken, over the part that the control keeps.
fn busy(rows: &[Row], row: &Row) -> Option<Figure> {
    let calm = row.scene.strip_suffix(" busy")?;
    let calm = rows.iter().find(|other| other.nodes == row.nodes && other.scene == calm)?;
    let name = format!("{} nodes, {}: rate kept / control's", row.nodes, row.scene);
    Some(Figure::at_least(&name, row.rate_ratio / calm.rate_ratio, 0.8))
}

/// The rate beside pods that fit nowhere, over the rate without them.
fn storm(rows: &[Row], row: &Row) -> Option<Figure> {
    let pods = row.scene.strip_prefix("storm ")?;
    let calm = format!("burst {pods} idle");
    let calm = rows.iter().find(|other| other.nodes == row.nodes && other.scene == calm)?;
    let name = format!("{} nodes, {}: rate / without the storm", row.nodes, row.scene);
    Some(Figure::at_least(&name, row.kerf.rate / calm.kerf.rate, 0.8))
}

/// The ratio of a larger cluster over the ratio at 200 nodes.
fn larger(rows: &[Row], row: &Row) -> Option<Figure> {
    let bar = match row.nodes {
        1000 => 0.8,
        5000 => 0.6,
        _ => return None,
    };
    let is_burst = row.scene.starts_with("burst") && !row.scene.ends_with("busy");
    let small = rows.iter().find(|other| other.nodes == 200 && other.scene == row.scene)?;
    let name = format!("{} nodes, {}: rate / control over that at 200 nodes", row.nodes, row.scene);
    is_burst.then(|| Figure::at_least(&name, row.rate_ratio / small.rate_ratio, bar))
}
