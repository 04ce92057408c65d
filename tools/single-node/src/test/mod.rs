//! `test`: pods on a real GPU report what they see. They are created through the API server and started by
//! the kubelet. No pod uses the GPU before or after a scene.

mod catalog;
mod compiles;
mod each_gpu;
mod fences;
mod mixed;
mod node;
mod own_limits;
mod pending;
mod restarts;
mod root_tenant;
mod scene;
mod server;
mod time_slices;
mod users;
mod whole;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use tokio::time::timeout;

use crate::args::Args;
use crate::job;
use scene::Scene;

/// Timeout of a scene. The longest scene is the one whose tenants make hundreds of tries.
const TIMEOUT: Duration = Duration::from_mins(7);

/// Timeout of all scenes, so that the step ends on a machine that is lent for ten minutes.
const SCENES_TIMEOUT: Duration = Duration::from_mins(8);

/// How long a pod of `mixed` may take, on average.
const POD_TIME_LIMIT: Duration = Duration::from_secs(3);

/// The scene that kills programs. The chart's agent cannot be restarted by the holder, so `--chart` skips it.
const RESTARTS: &str = "restarts";

/// The scene for GPUs in MIG mode. The other scenes need a node without MIG.
const MIXED: &str = "mixed";

/// A scene. It returns what the test prints on success.
type Play = for<'a> fn(&'a Scene<'a>) -> LocalBoxFuture<'a, anyhow::Result<String>>;

const SCENES: [(&str, Play); 17] = [
    ("catalog", |scene| async { catalog::agrees_with_nvml(scene) }.boxed_local()),
    ("limits", |scene| fences::limits(scene).boxed_local()),
    ("two users", |scene| users::share_one_server(scene).boxed_local()),
    ("a client killed", |scene| server::client_killed(scene).boxed_local()),
    ("a server killed", |scene| server::server_killed(scene).boxed_local()),
    ("a daemon killed", |scene| server::daemon_killed(scene).boxed_local()),
    (RESTARTS, |scene| restarts::of_agent_and_kubelet(scene).boxed_local()),
    ("own limits", |scene| own_limits::are_caught(scene).boxed_local()),
    ("waiting", |scene| pending::until_capacity_is_free(scene).boxed_local()),
    ("whole GPU", |scene| whole::waits_for_the_shares(scene).boxed_local()),
    ("two GPUs: each has its server", |scene| each_gpu::has_its_own_server(scene).boxed_local()),
    ("two GPUs: a whole GPU beside a share", |scene| whole::beside_a_share(scene).boxed_local()),
    ("two GPUs: both for one pod", |scene| whole::two_for_one_pod(scene).boxed_local()),
    ("another distribution", |scene| compiles::for_a_share(scene).boxed_local()),
    ("time slices", |scene| time_slices::by_turns(scene).boxed_local()),
    ("root tenant", |scene| root_tenant::harms_no_other_tenant(scene).boxed_local()),
    (MIXED, |scene| mixed::each_holds_what_it_was_assigned(scene).boxed_local()),
];

/// Plays the selected scenes one after another, and fails with the names of those that failed.
pub async fn test(args: &Args) -> anyhow::Result<()> {
    job::write_scripts(args)?;
    let scene = Scene::open(args).await?;
    let named = |name: &str| {
        args.scenes.is_empty() || args.scenes.iter().any(|wanted| name.contains(wanted.as_str()))
    };
    // With `--chart` the kubelet restarts the agent, so the holder cannot.
    let can_be = |name: &str| (!args.chart || name != RESTARTS) && (args.mig == 0 || name == MIXED);
    // `--pods` may ask for more than fits into the time above; such a run has a machine of its own.
    let mixed = TIMEOUT.max(POD_TIME_LIMIT * args.pods);
    let (mut failed, until) = (Vec::new(), Instant::now() + SCENES_TIMEOUT.max(mixed));
    for (name, play) in SCENES.into_iter().filter(|(name, _)| named(name) && can_be(name)) {
        let begun = Instant::now();
        let limit = if name == MIXED { mixed } else { TIMEOUT };
        let limit = limit.min(until.saturating_duration_since(Instant::now()));
        let played = timeout(limit, play(&scene)).await;
        let played = played.unwrap_or_else(|_| Err(anyhow::anyhow!("not over after {limit:?}")));
        let seconds = begun.elapsed().as_secs_f64();
        match played {
            Ok(reported) => println!("ok     {name} ({seconds:.1} s): {reported}"),
            Err(error) => {
                println!("FAILED {name} ({seconds:.1} s): {error:#}");
                failed.push(name);
            }
        }
        // Each scene begins on free GPUs, even if the one before has failed.
        scene.clear().await.with_context(|| format!("after {name}"))?;
    }
    ensure!(failed.is_empty(), "{} of the scenes failed: {}", failed.len(), failed.join(", "));
    Ok(())
}
