//! The explorer runs leaders and agents of kerf in virtual time, in every order of events and in random ones.
//!
//! ```text
//!  scheduler ──▶ Leader: copies of the nodes, BindProgress ──▶ Binding ──▶ API server: pods, Lease
//!                  ▲ Change, Answer   │ Order                                  │
//!                  └── Connection ────┘                                        │ watch, look-up
//!                             ▼                                                ▼
//!                           Agent: Ledger, disk, GPUs ──▶ kubelet: containers take slices
//! ```
//!
//! `Ledger`, `BindProgress`, `Change` and `accept` are core's, as the agent and the extender run them. The rest is a
//! model of their environment. An [`event`] is the smallest thing that happens; between two events any part may be
//! slow, crash, or be cut off. After each event, and once the world has come to rest, the [`checks`] must hold.
//!
//! | module | |
//! |---|---|
//! | [`event`], [`enabled`] | what may happen, and when |
//! | [`setting`] | what a world consists of |
//! | [`world`] | what an event does |
//! | [`leader`], [`copies`] | a replica of the extender |
//! | [`agent`] | a node: agent, disk, GPUs, kubelet |
//! | [`network`], [`api`] | connections; the API server |
//! | [`checks`], [`rest`] | what must hold |
//! | [`exhaustive`], [`fingerprint`] | every sequence of events in small worlds |
//! | [`random`], [`trace`] | random events in large ones; the shortest trace of a violation |
//! | [`offers`] | random lives of what one agent offers to its kubelet |
//! | [`until`] | when it ends |
//!
//! A leader's Binding is sent at the moment at which it is decided. The model leaves out that a process may be frozen
//! between the two.
#![forbid(unsafe_code)]

mod agent;
mod api;
mod checks;
mod copies;
mod enabled;
mod event;
mod exhaustive;
mod fingerprint;
mod leader;
mod network;
mod offers;
mod random;
mod rest;
mod setting;
mod trace;
mod until;
mod world;

#[cfg(test)]
mod tests;

use anyhow::{anyhow, bail};
use clap::Parser;
use exhaustive::Begin;
use setting::Setting;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use until::Until;

/// The part of the time of random lives that is for offers: a life takes a few milliseconds.
const OFFERS: u32 = 10;

/// Explores what leaders and agents may do to each other.
#[derive(Debug, Parser)]
struct Args {
    /// The bench's name, as `cargo xtask bench` passes it on.
    #[arg(hide = true)]
    bench: Option<String>,
    /// How long to explore.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The first of the seeds of random lives; others follow. By the clock if it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Random lives only.
    #[arg(long)]
    random: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(seed_by_clock);
    let (time, found) = (Duration::from_secs_f64(args.minutes * 60.0), AtomicBool::new(false));
    thread::scope(|scope| {
        let random = scope.spawn(|| {
            let offers = time / OFFERS;
            explore_offers(seed, Until::new(offers, &found))?;
            explore_random(seed, Until::new(time.saturating_sub(offers), &found))
        });
        let every = if args.random { Ok(()) } else { explore_all(time, &found) };
        every.and(random.join().map_err(|_| anyhow!("an exploration panicked"))?)
    })
}

fn seed_by_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default() << 20
}

/// Explores all small worlds, each for an equal share of the time.
fn explore_all(time: Duration, found: &AtomicBool) -> anyhow::Result<()> {
    let settings = Setting::small();
    let share = time / u32::try_from(settings.len() * Begin::ALL.len())?;
    for setting in &settings {
        for begin in Begin::ALL {
            let searched = exhaustive::search(setting, begin, Until::new(share, found));
            println!("{searched}");
            if let Some(trace) = searched.found {
                bail!("{}, {begin:?}: {trace}", setting.name);
            }
        }
    }
    Ok(())
}

fn explore_offers(seed: u64, until: Until<'_>) -> anyhow::Result<()> {
    let offered = offers::live(seed.., until);
    println!("{offered}, from seed {seed} on");
    match offered.found {
        Some(fault) => bail!("{fault}"),
        None => Ok(()),
    }
}

fn explore_random(seed: u64, until: Until<'_>) -> anyhow::Result<()> {
    let lived = random::live(seed.., until);
    println!("{lived}, from seed {seed} on");
    match lived.found {
        Some((seed, trace)) => bail!("seed {seed}: {trace}"),
        None => Ok(()),
    }
}
