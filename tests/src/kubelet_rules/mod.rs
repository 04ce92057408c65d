//! What a kubelet does with devices, rule by rule: the same cases run against the stand-in kubelet, in the tests, and against
//! the real one (`gpu_node judge`). Where they differ the stand-in is wrong.
//!
//! A case sees a kubelet from outside only: its device plugin folder, its sockets, and the API server.

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

use scene::Scene;

/// A kubelet under judgement, with an API server behind it.
#[tonic::async_trait(?Send)]
pub trait JudgedKubelet: Send + Sync {
    /// Its node's name.
    fn node(&self) -> &str;

    /// A client with an admin's rights.
    fn client(&self) -> kube::Client;

    /// The folder of the registration socket and of plugins' sockets.
    fn device_plugins(&self) -> PathBuf;

    /// The pod-resources socket.
    fn pod_resources(&self) -> PathBuf;

    /// How often it writes the node's status.
    fn tick(&self) -> Duration;

    /// Kills its process and starts it again, until it takes registrations; containers run on.
    async fn restart(&self) -> anyhow::Result<()>;
}

/// A rule, as a sentence, and what shows whether it holds.
struct Case {
    rule: &'static str,
    show: for<'a> fn(&'a Scene<'a>) -> LocalBoxFuture<'a, anyhow::Result<()>>,
}

/// A case of an asynchronous function.
macro_rules! case {
    ($rule:literal, $show:path) => {
        $crate::kubelet_rules::Case { rule: $rule, show: |scene| Box::pin($show(scene)) }
    };
}
use case;

/// Shows all rules whose sentence contains `only`, one after the other; `tell` hears of each. Gives the rules that do not hold.
pub async fn judge(
    kubelet: &dyn JudgedKubelet,
    only: &str,
    mut tell: impl FnMut(&str),
) -> anyhow::Result<Vec<&'static str>> {
    let groups = [registration::CASES, node::CASES, names::CASES, admission::CASES, health::CASES];
    let groups = groups.into_iter().chain([containers::CASES, restart::CASES]);
    let mut broken = Vec::new();
    for (number, case) in groups.flatten().filter(|case| case.rule.contains(only)).enumerate() {
        let scene = Scene::new(kubelet, number)?;
        let begun = Instant::now();
        let shown = (case.show)(&scene).await;
        let cleared = scene.clear().await;
        let took = begun.elapsed().as_secs_f64();
        match shown.and(cleared) {
            Ok(()) => tell(&format!("holds    {} ({took:.1} s)", case.rule)),
            Err(error) => {
                broken.push(case.rule);
                tell(&format!("DIFFERS  {} ({took:.1} s): {error:#}", case.rule));
            }
        }
        for note in scene.notes() {
            tell(&format!("         {note}"));
        }
    }
    Ok(broken)
}
