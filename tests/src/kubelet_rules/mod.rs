//! The kubelet's rules of devices, as cases. The tests run them against the stand-in kubelet, and
//! `single_node judge` runs the same cases against the real one. Where they differ, the stand-in is wrong.
//!
//! A case uses a kubelet only from outside: its device plugin folder, its sockets, and the API server.

mod admission;
mod containers;
mod health;
mod names;
mod node;
pub mod plugin;
mod pods;
mod registration;
mod restart;
mod scene;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::future::LocalBoxFuture;
use futures::{StreamExt as _, stream};

use scene::Scene;

/// An image whose program waits. Its links lead into a `/usr` that pods mount from the machine.
pub const IMAGE: &str = "kerf.local/pause:1";

/// A kubelet under test, with an API server behind it.
#[tonic::async_trait(?Send)]
pub trait JudgedKubelet: Send + Sync {
    fn node(&self) -> &str;

    /// A client with an admin's rights.
    fn client(&self) -> kube::Client;

    /// The folder of the registration socket and of plugins' sockets.
    fn device_plugins(&self) -> PathBuf;

    fn pod_resources(&self) -> PathBuf;

    /// How often it writes the node's status.
    fn tick(&self) -> Duration;

    /// Kills the kubelet and starts it again, until it accepts registrations. Containers keep running.
    async fn restart(&self) -> anyhow::Result<()>;
}

/// A rule as a sentence, and the function that checks it.
struct Case {
    rule: &'static str,
    show: for<'a> fn(&'a Scene<'a>) -> LocalBoxFuture<'a, anyhow::Result<()>>,
}

macro_rules! case {
    ($rule:literal, $show:path) => {
        $crate::kubelet_rules::Case { rule: $rule, show: |scene| Box::pin($show(scene)) }
    };
}
use case;

/// How many rules are checked side by side. Their pods share one node, and the machine may be small.
const AT_ONCE: usize = 6;

/// Checks all rules whose sentence contains `only`. `tell` gets a text for each. Returns the rules that do
/// not hold.
///
/// Rules about restarts come last, one after the other, because a restart would disturb other cases.
pub async fn judge(
    kubelet: &dyn JudgedKubelet,
    only: &str,
    mut tell: impl FnMut(&str),
) -> anyhow::Result<Vec<&'static str>> {
    let groups = [registration::CASES, node::CASES, names::CASES, admission::CASES, health::CASES];
    let groups = groups.into_iter().chain([containers::CASES]).flatten();
    let wanted = |cases: &mut dyn Iterator<Item = &'static Case>| -> Vec<&'static Case> {
        cases.filter(|case| case.rule.contains(only)).collect()
    };
    let (calm, restarts) = (wanted(&mut groups.into_iter()), wanted(&mut restart::CASES.iter()));
    let mut broken = Vec::new();
    let first_restart = calm.len();
    let calm = calm.into_iter().enumerate().map(|(number, case)| shown(kubelet, number, case));
    let restarts = restarts.into_iter().enumerate();
    let restarts = restarts.map(|(number, case)| shown(kubelet, first_restart + number, case));
    let mut all = stream::iter(calm).buffer_unordered(AT_ONCE).chain(stream::iter(restarts).buffered(1));
    while let Some((case, text, holds)) = all.next().await {
        tell(&text);
        broken.extend((!holds).then_some(case.rule));
    }
    Ok(broken)
}

/// Checks one rule. Returns the text about it, and whether it holds.
async fn shown(
    kubelet: &dyn JudgedKubelet,
    number: usize,
    case: &'static Case,
) -> (&'static Case, String, bool) {
    let begun = Instant::now();
    let (outcome, notes) = match Scene::new(kubelet, number) {
        Ok(scene) => {
            let shown = (case.show)(&scene).await;
            let cleared = scene.clear().await;
            (shown.and(cleared), scene.notes())
        }
        Err(error) => (Err(error), Vec::new()),
    };
    let reported = format!("{} ({:.1} s)", case.rule, begun.elapsed().as_secs_f64());
    let holds = outcome.is_ok();
    let reported = match outcome {
        Ok(()) => format!("holds    {reported}"),
        Err(error) => format!("DIFFERS  {reported}: {error:#}"),
    };
    let lines: Vec<String> = std::iter::once(reported).chain(notes).collect();
    (case, lines.join("\n         "), holds)
}
